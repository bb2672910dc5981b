//! Tests the costs of accesses, fences, clocks and work.

use std::sync::Arc;

use millrace_machine::{Line, Machine, Order, Stage, Thread, Word};
use millrace_simulator::{Model, Simulated, Simulation, Transfer, Wiring};

use super::{Notes, SimWord, exact, on, run, spawn, time_of};

/// Two boards of four sockets in a ring, two cores each.
fn two_boards() -> Model {
    let mut model = exact(8, 2);
    model.sockets_per_board = 4;
    model.wiring = Wiring::Ring;
    model
}

#[test]
fn a_line_costs_by_the_distance_of_who_holds_it() {
    run(&two_boards(), || {
        // Core 1 shares the socket; sockets 1 and 3 are neighbours of 0, 2 is opposite, 4 is on
        // the other board.
        for (cpu, transfer_ns) in [(1, 40), (2, 100), (4, 150), (6, 100), (8, 250), (15, 250)] {
            let word = Arc::new(SimWord::new(0));
            let there = Arc::clone(&word);
            on(cpu, move || assert_eq!(time_of(|| there.store(7, Order::Relaxed)), 80));
            assert_eq!(time_of(|| assert_eq!(word.load(Order::Relaxed), 7)), transfer_ns);
            assert_eq!(time_of(|| word.load(Order::Relaxed)), 2, "a hit");
            assert_eq!(time_of(|| word.fetch_add(1, Order::AcqRel)), transfer_ns + 8, "upgrade");
            assert_eq!(time_of(|| word.fetch_add(1, Order::AcqRel)), 10, "a hit");
            assert_eq!(time_of(|| word.store(1, Order::Release)), 2, "a hit");
            let there = Arc::clone(&word);
            on(cpu, move || assert_eq!(time_of(|| there.load(Order::Relaxed)), transfer_ns));
        }
    });
}

#[test]
fn a_write_waits_for_the_farthest_of_those_that_share_the_line() {
    run(&two_boards(), || {
        let word = Arc::new(SimWord::new(0));
        for cpu in [1, 2, 8] {
            let there = Arc::clone(&word);
            on(cpu, move || assert_eq!(there.load(Order::Relaxed), 0));
        }
        assert_eq!(time_of(|| word.store(1, Order::Relaxed)), 250);
        let there = Arc::clone(&word);
        on(1, move || assert_eq!(time_of(|| there.load(Order::Relaxed)), 40));
    });
}

#[test]
fn a_value_of_several_lines_is_charged_for_each() {
    run(&exact(2, 2), || {
        let line = Arc::new(<Simulated as Machine>::Line::new([0u64; 17]));
        assert_eq!(time_of(|| line.write()), 3 * 80);
        assert_eq!(time_of(|| line.read()), 3 * 2);
        assert_eq!(time_of(|| line.held()), 0);
        on(2, move || assert_eq!(time_of(|| line.read()), 3 * 100));
    });
}

#[test]
fn transfers_of_one_line_follow_each_other() {
    let report = run(&exact(1, 8), || {
        let word = Arc::new(SimWord::new(0));
        let start = |cpu| {
            let word = Arc::clone(&word);
            spawn("adder", cpu, move || {
                (0..1_000).for_each(|_| _ = word.fetch_add(1, Order::Relaxed));
            })
        };
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        assert_eq!(word.load(Order::Relaxed), 8_000);
    });
    // 8,000 times a transfer in the socket and the locked instruction, however many CPUs.
    let ideal_ns = 8_000 * (40 + 8);
    let elapsed_ns = report.elapsed_ns();
    assert!(elapsed_ns.abs_diff(ideal_ns) < ideal_ns / 50, "{elapsed_ns} against {ideal_ns}");
}

/// Virtual time in which `readers` CPUs of socket 1 read 1,000 lines each that socket 0 wrote, over
/// a link of 1 byte a nanosecond.
fn reading_over_a_link(readers: u32) -> u64 {
    let mut model = exact(2, 8);
    model.cache.link.bytes_per_ns = 1.0;
    let notes = Notes::default();
    let result = notes.clone();
    let report = run(&model, move || {
        let lines: Arc<Vec<_>> = Arc::new((0..8_000).map(|_| SimWord::new(0)).collect());
        lines.iter().for_each(|word| word.store(1, Order::Relaxed));
        let start_ns = Simulated::now();
        let start = |reader: u32| {
            let lines = Arc::clone(&lines);
            spawn("reader", 8 + reader, move || {
                let mine = lines.iter().skip(reader as usize * 1_000).take(1_000);
                mine.for_each(|word| assert_eq!(word.load(Order::Relaxed), 1));
            })
        };
        let threads: Vec<_> = (0..readers).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        notes.add(Simulated::now() - start_ns);
    });
    let bytes: u64 =
        report.links.iter().filter(|l| (l.from, l.to) == (0, 1)).map(|l| l.bytes).sum();
    assert_eq!(bytes, u64::from(readers) * 1_000 * 80);
    result.take()[0]
}

#[test]
fn a_link_carries_no_more_than_its_bandwidth() {
    // One reader: 100 ns a line, of which the link is busy for 80. Starting and joining it take
    // some microseconds.
    let alone_ns = reading_over_a_link(1);
    assert!((100_000..110_000).contains(&alone_ns), "{alone_ns}");
    // Eight readers: 8,000 lines of 80 ns of the link.
    let together_ns = reading_over_a_link(8);
    assert!((640_000..660_000).contains(&together_ns), "{together_ns}");
}

#[test]
fn fences_clocks_and_work_cost_what_the_model_says() {
    let mut model = exact(1, 1);
    model.cpu.clock_read.ns = 7.0;
    run(&model, || {
        assert_eq!(time_of(|| ()), 7);
        assert_eq!(time_of(|| Simulated::fence(Order::SeqCst)), 7 + 10);
        assert_eq!(time_of(|| Simulated::fence(Order::Acquire)), 7);
        assert_eq!(time_of(|| Simulated::work(Stage::Insert, 3)), 7 + 60);
        assert_eq!(time_of(Simulated::system_call), 7 + 100);
        assert_eq!(time_of(|| Simulated::charge(33)), 7 + 33);
    });
}

#[test]
fn jitter_stays_within_its_share_and_means_nothing_on_average() {
    let mut model = exact(1, 1);
    model.work.jitter.share = 0.1;
    run(&model, || {
        let times: Vec<u64> =
            (0..10_000).map(|_| time_of(|| Simulated::work(Stage::Submit, 100))).collect();
        assert!(times.iter().all(|ns| (4_500..=5_500).contains(ns)));
        let mean_ns = times.iter().sum::<u64>() / 10_000;
        assert!((4_980..=5_020).contains(&mean_ns), "{mean_ns}");
        assert!(times.iter().any(|ns| *ns < 4_600) && times.iter().any(|ns| *ns > 5_400));
    });
}

#[test]
fn nothing_is_charged_outside_and_new_runs_start_uncached() {
    let word = Arc::new(SimWord::new(3));
    assert_eq!(word.fetch_add(1, Order::SeqCst), 3);
    for _ in 0..2 {
        let inside = Arc::clone(&word);
        run(&exact(1, 1), move || {
            assert_eq!(time_of(|| inside.fetch_or(64, Order::SeqCst)), 80 + 8);
            assert_eq!(time_of(|| inside.load(Order::SeqCst)), 2);
        });
    }
    assert_eq!(word.load(Order::SeqCst), 68);
    assert!(!Simulated::is_running());
}

/// A cost of a transfer that need not be given.
type Part = fn(&mut Transfer) -> &mut Option<f64>;

const TRANSFER_PARTS: [(&str, Part); 3] = [
    ("shared_ns", |transfer| &mut transfer.shared_ns),
    ("store_ns", |transfer| &mut transfer.store_ns),
    ("atomic_ns", |transfer| &mut transfer.atomic_ns),
];

#[test]
fn a_wrong_model_is_refused_with_its_key() {
    let mut model = exact(2, 2);
    model.cache.one_hop.ns = -1.0;
    let error = Simulation::new(&model, 0).expect_err("negative");
    assert_eq!(error.to_string(), "machine model: cache.one_hop: ns must be 0 to 1e9, is -1");
    for (part, set) in TRANSFER_PARTS {
        let mut model = exact(2, 2);
        *set(&mut model.cache.board) = Some(2e9);
        let error = Simulation::new(&model, 0).expect_err("too long").to_string();
        let expected = format!("cache.board: {part} must be 0 to 1e9, is 2000000000");
        assert!(error.ends_with(&expected), "{error}");
    }
    let mut model = exact(2, 2);
    model.threads.wake.origin = " ".into();
    assert_eq!(Simulation::new(&model, 0).expect_err("no origin").key, "threads.wake");
    assert_eq!(Simulation::new(&exact(3, 90), 0).expect_err("270").key, "cores_per_socket");
    let mut model = exact(6, 2);
    model.sockets_per_board = 4;
    assert_eq!(Simulation::new(&model, 0).expect_err("6 by 4").key, "sockets_per_board");
}

/// Two sockets of four, where it matters what a line is got for.
fn by_use() -> Model {
    let mut model = exact(2, 4);
    let cache = &mut model.cache;
    (cache.socket.shared_ns, cache.socket.store_ns, cache.socket.atomic_ns) =
        (Some(20.0), Some(50.0), Some(55.0));
    (cache.one_hop.shared_ns, cache.one_hop.store_ns, cache.one_hop.atomic_ns) =
        (Some(90.0), Some(110.0), Some(120.0));
    model
}

#[test]
fn loads_stores_and_atomics_have_prices_of_their_own() {
    run(&by_use(), || {
        for (cpu, [load, shared, store, atomic]) in
            [(1, [40, 20, 50, 55]), (4, [100, 90, 110, 120])]
        {
            let word = Arc::new(SimWord::new(0));
            let there = |f: fn(&SimWord)| {
                let word = Arc::clone(&word);
                on(cpu, move || f(&word));
            };
            there(|word| word.store(1, Order::Relaxed));
            assert_eq!(time_of(|| word.load(Order::Relaxed)), load);
            there(|word| word.store(2, Order::Relaxed));
            assert_eq!(time_of(|| word.store(3, Order::Relaxed)), store);
            there(|word| word.store(4, Order::Relaxed));
            assert_eq!(time_of(|| word.fetch_add(1, Order::Relaxed)), atomic);
            // Shared by two of theirs: from their cache, and not from ours.
            there(|word| word.store(5, Order::Relaxed));
            let (first, second) = (Arc::clone(&word), cpu + 1);
            on(second, move || assert_eq!(first.load(Order::Relaxed), 5));
            assert_eq!(time_of(|| word.load(Order::Relaxed)), shared);
        }
    });
}

/// In how many runs 400 additions of each of 6 CPUs, 3 of each socket, stay within a socket.
fn sockets_in_turn(near_turns: u32) -> u64 {
    let mut model = by_use();
    model.cache.near.turns = near_turns;
    let report = run(&model, || {
        let word = Arc::new(SimWord::new(0));
        let start = |cpu| {
            let word = Arc::clone(&word);
            spawn("adder", cpu, move || {
                (0..400).for_each(|_| _ = word.fetch_add(1, Order::Relaxed));
            })
        };
        let threads: Vec<_> = [1, 2, 3, 4, 5, 6].map(start).into_iter().collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        assert_eq!(word.load(Order::Relaxed), 2_400);
    });
    report.links.iter().map(|link| link.bytes / 80).sum()
}

#[test]
fn contended_line_prefers_near_cpus_as_the_model_says() {
    let [in_order, near] = [0, 5].map(sockets_in_turn);
    // In order of request every other transfer crosses, or so; else one of six.
    assert!((900..=2_400).contains(&in_order), "{in_order}");
    assert!((300..=500).contains(&near), "{near}");
}

#[test]
fn line_users_do_not_wait_for_each_other_without_queueing() {
    let took_ns = |queueing| {
        let mut model = exact(1, 8);
        model.cache.queueing = queueing;
        let report = run(&model, || {
            let word = Arc::new(SimWord::new(0));
            let start = |cpu| {
                let word = Arc::clone(&word);
                spawn("adder", cpu, move || {
                    (0..400).for_each(|_| _ = word.fetch_add(1, Order::Relaxed));
                })
            };
            let threads: Vec<_> = [1, 2, 3, 4, 5, 6].map(start).into_iter().collect();
            threads.into_iter().for_each(|thread| assert!(thread.join()));
            assert_eq!(word.load(Order::Relaxed), 2_400, "each addition counts all the same");
        });
        report.elapsed_ns()
    };
    let [with, without] = [true, false].map(took_ns);
    assert!(with > 4 * without, "six wait for each other: {with}, {without}");
}
