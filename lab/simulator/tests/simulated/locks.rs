//! Ticket locks: order, costs, statistics.

use std::sync::Arc;

use millrace_machine::{Lock, Machine, Thread};
use millrace_simulator::{Report, Simulated};

use super::{Notes, SimLock, exact, run, spawn, time_of};

#[test]
fn a_lock_goes_to_who_came_first() {
    let notes = Notes::default();
    let result = notes.clone();
    run(&exact(4, 2), move || {
        let lock = Arc::new(SimLock::new("fifo", ()));
        let guard = lock.lock();
        let order = [5, 1, 7, 2, 6, 3, 4];
        let start = |(place, cpu): (usize, &u32)| {
            let (lock, notes, cpu) = (Arc::clone(&lock), notes.clone(), *cpu);
            spawn("waiter", cpu, move || {
                Simulated::charge(place as u64 * 1_000);
                let _guard = lock.lock();
                notes.add(cpu.into());
            })
        };
        let threads: Vec<_> = order.iter().enumerate().map(start).collect();
        Simulated::charge(100_000);
        drop(guard);
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    assert_eq!(result.take(), [5, 1, 7, 2, 6, 3, 4]);
}

/// Time from the moment a holder lets go until the first of `waiters` CPUs of its socket goes on.
fn hand_over_ns(waiters: u32) -> (u64, Report) {
    let notes = Notes::default();
    let result = notes.clone();
    let report = run(&exact(1, 16), move || {
        let lock = Arc::new(SimLock::new("handed", 0u64));
        let guard = lock.lock();
        let start = |cpu: u32| {
            let (lock, notes) = (Arc::clone(&lock), notes.clone());
            spawn("waiter", cpu, move || {
                let _guard = lock.lock();
                notes.add(Simulated::now());
            })
        };
        let threads: Vec<_> = (1..=waiters).map(start).collect();
        Simulated::charge(100_000);
        notes.add(Simulated::now());
        drop(guard);
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    let times = result.take();
    (times[1] - times[0], report)
}

#[test]
fn handing_a_lock_over_takes_longer_the_more_cpus_spin() {
    for waiters in [1, 4, 15] {
        // The releasing store takes the line from the spinners (40); the next holder reads it
        // (40), behind half of the others' reads (20 each); then comes the value's line (40).
        let expected_ns = 40 + 40 + 20 * u64::from(waiters - 1) + 40;
        assert_eq!(hand_over_ns(waiters).0, expected_ns, "{waiters} waiters");
    }
}

/// Time from the moment a CPU joins `waiters` that spin, a nanosecond before the holder lets go,
/// until the first of them goes on.
fn hand_over_behind_a_joiner_ns(waiters: u32, spinner_share: f64) -> u64 {
    let notes = Notes::default();
    let result = notes.clone();
    let mut model = exact(1, 16);
    model.cache.spinner.share = spinner_share;
    run(&model, move || {
        let lock = Arc::new(SimLock::new("joined", 0u64));
        let guard = lock.lock();
        let joined_ns = Simulated::now() + 100_000;
        notes.add(joined_ns);
        let start = |(cpu, at_ns): (u32, u64)| {
            let (lock, notes) = (Arc::clone(&lock), notes.clone());
            spawn("waiter", cpu, move || {
                Simulated::charge(at_ns.saturating_sub(Simulated::now()));
                let _guard = lock.lock();
                notes.add(Simulated::now());
            })
        };
        let early = (1..=waiters).map(|cpu| (cpu, 0));
        let threads: Vec<_> = early.chain([(waiters + 1, joined_ns)]).map(start).collect();
        Simulated::charge(joined_ns + 1 - Simulated::now());
        drop(guard);
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    let times = result.take();
    times[1] - times[0]
}

#[test]
fn holder_yields_to_spinning_reads_when_another_joins() {
    for waiters in [1, 4, 14] {
        let spinners = u64::from(waiters);
        // The joiner's atomic (48) and the reads behind it (40 each); then as without it, but for
        // one spinner more.
        let expected_ns = 48 + 40 * spinners + 40 + 40 + 20 * spinners + 40;
        assert_eq!(hand_over_behind_a_joiner_ns(waiters, 0.5), expected_ns, "{waiters} waiters");
        assert_eq!(hand_over_behind_a_joiner_ns(waiters, 0.0), 48 + 40 + 40 + 40);
    }
}

/// Bytes that the links carried when a holder on socket 0 of two lets go, `waiters` CPUs of socket
/// 1 spinning.
fn bytes_handed(waiters: u32) -> u64 {
    let mut model = exact(2, 4);
    model.cache.socket.shared_ns = Some(10.0);
    let report = run(&model, move || {
        let lock = Arc::new(SimLock::new("handed", ()));
        let guard = lock.lock();
        let start = |cpu: u32| {
            let lock = Arc::clone(&lock);
            spawn("waiter", 4 + cpu, move || drop(lock.lock()))
        };
        let threads: Vec<_> = (0..waiters).map(start).collect();
        Simulated::charge(100_000);
        drop(guard);
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    let to_next = report.links.iter().find(|link| link.from == 0).expect("the lock went there");
    to_next.bytes
}

#[test]
fn lock_that_is_handed_over_crosses_to_next_holders_socket_once() {
    // Transfers among the other CPUs of that socket use no link.
    assert_eq!(bytes_handed(4), bytes_handed(1));
}

#[test]
fn a_wait_begins_when_a_thread_asks_for_the_locks_line() {
    let report = run(&exact(1, 8), || {
        let lock = Arc::new(SimLock::new("asked", ()));
        let guard = lock.lock();
        let asked_ns = Simulated::now() + 50_000;
        let start = |cpu: u32| {
            let lock = Arc::clone(&lock);
            spawn("waiter", cpu, move || {
                Simulated::charge(asked_ns - Simulated::now());
                drop(lock.lock());
            })
        };
        let threads: Vec<_> = (1..8).map(start).collect();
        Simulated::charge(100_000);
        drop(guard);
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    let row = report.locks.iter().find(|row| row.name == "asked").expect("taken");
    assert_eq!((row.counts.acquisitions, row.counts.contended), (8, 7));
    // All seven asked at once. The line comes to one after another, within 48 ns each and behind
    // the reads (40 each) of those that the one before joined, and only then does a CPU spin.
    let spun_ns: u64 = report.cpus.iter().map(|cpu| cpu.spin_ns).sum();
    let (atomics, reads) = (1 + 2 + 3 + 4 + 5 + 6 + 7, 1 + 3 + 6 + 10 + 15);
    assert_eq!(row.counts.wait_ns - spun_ns, atomics * 48 + reads * 40);
}

#[test]
fn lines_under_single_queues_lock_are_as_many_as_model_says() {
    let mut model = exact(1, 2);
    model.work.request_queue.lines = 5;
    let notes = Notes::default();
    let result = notes.clone();
    run(&model, move || {
        for name in ["request-queue", "another"] {
            let lock = Arc::new(SimLock::new(name, 0u64));
            drop(lock.lock());
            let notes = notes.clone();
            let thread = spawn("next", 1, move || {
                let start_ns = Simulated::now();
                let _guard = lock.lock();
                notes.add(Simulated::now() - start_ns);
            });
            assert!(thread.join());
        }
    });
    let times = result.take();
    // 40 for each line from the other core of the socket: five in place of the value's one.
    assert_eq!(times[0] - times[1], 4 * 40, "{times:?}");
}

#[test]
fn statistics_tell_waits_and_holds_by_name_and_place() {
    let (_, report) = hand_over_ns(3);
    let rows: Vec<_> = report.locks.iter().filter(|row| row.name == "handed").collect();
    assert_eq!(rows.len(), 3, "the sum and two places: {rows:?}");
    let (sum, first, second) = (rows[0].counts, rows[1].counts, rows[2].counts);
    assert!(rows[0].site.is_none() && rows[1].site.is_some());
    assert_eq!((sum.acquisitions, sum.contended), (4, 3));
    assert_eq!((first.acquisitions, first.contended, first.wait_ns), (1, 0, 0));
    assert_eq!((second.acquisitions, second.contended), (3, 3));
    assert!(first.hold_ns >= 100_000 && first.hold_ns < 110_000, "{first:?}");
    assert!(second.wait_ns > 3 * 90_000 && second.wait_ns < 3 * 105_000, "{second:?}");
    assert!(second.wait_ns_max >= second.wait_ns / 3);
    let spun_ns: u64 = report.cpus.iter().map(|cpu| cpu.spin_ns).sum();
    assert!(spun_ns <= second.wait_ns && spun_ns > second.wait_ns * 9 / 10, "{spun_ns}");
    let share = sum.wait_share(report.elapsed_ns() * 16);
    assert!((0.1..0.25).contains(&share), "3 of 16 CPUs spin nearly always: {share}");
}

#[test]
fn free_lock_costs_its_instructions_and_lines_of_its_value() {
    run(&exact(1, 2), || {
        let lock = Arc::new(SimLock::new("free", [0u64; 16]));
        let take = |lock: &SimLock<[u64; 16]>| time_of(|| drop(lock.lock()));
        // In no cache: the lock's line, two of the value, and the store that releases.
        assert_eq!(take(&lock), 80 + 8 + 2 * 80 + 2);
        assert_eq!(take(&lock), 2 + 8 + 2 * 2 + 2);
        let there = Arc::clone(&lock);
        super::on(1, move || assert_eq!(take(&there), 40 + 8 + 2 * 40 + 2));
    });
}

#[test]
fn try_lock_takes_what_is_free_and_does_not_wait() {
    run(&exact(1, 2), || {
        let lock = Arc::new(SimLock::new("tried", 5));
        let guard = lock.try_lock().expect("free");
        let there = Arc::clone(&lock);
        super::on(1, move || assert_eq!(time_of(|| assert!(there.try_lock().is_none())), 40));
        drop(guard);
        assert_eq!(*lock.try_lock().expect("free again"), 5);
    });
    let lock = SimLock::new("outside", 1);
    let guard = lock.lock();
    assert!(lock.try_lock().is_none());
    drop(guard);
    assert_eq!(lock.try_lock().as_deref(), Some(&1));
}

#[test]
fn a_thread_that_holds_a_lock_keeps_its_cpu() {
    let notes = Notes::default();
    let result = notes.clone();
    run(&exact(1, 2), move || {
        let lock = Arc::new(SimLock::new("kept", ()));
        let (inside, other) = (notes.clone(), notes.clone());
        let holder = spawn("holder", 1, move || {
            let guard = lock.lock();
            (0..10_000).for_each(|_| Simulated::charge(1_000));
            inside.add(1);
            drop(guard);
            (0..10_000).for_each(|_| Simulated::charge(1_000));
            inside.add(3);
        });
        let other = spawn("other", 1, move || other.add(2));
        assert!(holder.join() && other.join());
    });
    assert_eq!(result.take(), [1, 2, 3]);
}
