//! Parking, spinning, sharing a CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_machine::{CpuId, Doorbell, Lock, Machine, Order, Parker, Thread, Word};
use millrace_simulator::{BEGIN_NS, Cost, Fairness, Model, Simulated};

use super::{Notes, SimLock, SimParker, SimWord, exact, run, spawn, time_of};

#[test]
fn unpark_before_park_is_kept() {
    run(&exact(1, 1), || {
        let parker = SimParker::new();
        assert_eq!(time_of(|| parker.unpark()), 100, "nobody sleeps: a system call");
        assert_eq!(time_of(|| parker.park(None)), 100, "it returns at once");
    });
}

#[test]
fn park_ends_at_its_deadline() {
    run(&exact(1, 1), || {
        let parker = SimParker::new();
        let deadline_ns = Simulated::now() + 50_000;
        parker.park(Some(deadline_ns));
        assert_eq!(Simulated::now(), deadline_ns + 2_000, "and the CPU takes a while to wake up");
        assert_eq!(time_of(|| parker.park(Some(deadline_ns))), 100, "it is over already");
    });
}

#[test]
fn waker_pays_and_sleeper_comes_after_the_latency() {
    let notes = Notes::default();
    let result = notes.clone();
    let report = run(&exact(1, 2), move || {
        let parker = SimParker::new();
        let sleeper = parker.clone();
        let thread = spawn("sleeper", 1, move || {
            sleeper.park(Some(Simulated::now() + 1_000_000_000));
            notes.add(Simulated::now());
        });
        Simulated::charge(100_000);
        let start_ns = Simulated::now();
        assert_eq!(time_of(|| parker.unpark()), 500);
        assert!(thread.join());
        assert!(Simulated::now() < 1_000_000, "the deadline is forgotten");
        assert_eq!(result.take(), [start_ns + 2_000]);
    });
    let idle = report.cpus[1];
    assert!(idle.idle_ns > 95_000 && idle.busy_ns < 5_000 && idle.spin_ns == 0, "{idle:?}");
}

#[test]
fn doorbell_rung_by_another_cpu_ends_the_sleep() {
    run(&exact(2, 2), || {
        let bell = Arc::new(Doorbell::<Simulated>::new(SimParker::new()));
        let work = Arc::new(SimWord::new(0));
        let (ringer, given) = (Arc::clone(&bell), Arc::clone(&work));
        let thread = spawn("ringer", 3, move || {
            for _ in 0..100 {
                Simulated::charge(10_000);
                given.fetch_add(1, Order::Release);
                ringer.ring();
            }
        });
        let mut rounds = 0;
        while work.load(Order::Acquire) < 100 {
            let seen = work.load(Order::Acquire);
            bell.sleep_unless(None, || work.load(Order::Acquire) != seen);
            rounds += 1;
        }
        assert!((90..=101).contains(&rounds), "{rounds}");
        assert!(thread.join());
    });
}

#[test]
fn spinning_ends_with_a_write_at_the_cost_of_reading_again() {
    let notes = Notes::default();
    let result = notes.clone();
    let report = run(&exact(1, 2), move || {
        let word = Arc::new(SimWord::new(0));
        let looked = Arc::clone(&word);
        let thread = spawn("spinner", 1, move || {
            assert!(Simulated::spin_until(u64::MAX, || looked.load(Order::Acquire) == 2));
            notes.add(Simulated::now());
        });
        for value in 0..=2 {
            Simulated::charge(100_000);
            word.store(value, Order::Release);
        }
        let end_ns = Simulated::now();
        assert!(thread.join());
        // The store ends 40 ns after it began; then the line comes back, which takes another 40.
        assert_eq!(result.take(), [end_ns + 40]);
    });
    let spinner = report.cpus[1];
    assert!(spinner.spin_ns > 290_000 && spinner.busy_ns < 2_000, "{spinner:?}");
    assert!(report.events < 30, "{} events", report.events);
}

#[test]
fn spinning_ends_at_its_deadline() {
    run(&exact(1, 1), || {
        let word = SimWord::new(0);
        let deadline_ns = Simulated::now() + 70_000;
        assert!(!Simulated::spin_until(deadline_ns, || word.load(Order::Relaxed) == 1));
        assert_eq!(Simulated::now(), deadline_ns + 2, "and a last look");
    });
}

#[test]
fn spinning_on_what_is_no_line_is_polled() {
    let report = run(&exact(1, 2), || {
        let flag = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&flag);
        let thread = spawn("setter", 1, move || {
            (0..1_000).for_each(|_| Simulated::charge(1_000));
            Simulated::system_call();
            set.store(true, Ordering::Relaxed);
        });
        assert!(Simulated::spin_until(u64::MAX, || flag.load(Ordering::Relaxed)));
        assert!(Simulated::spin_until(u64::MAX, || Simulated::now() > 3_000_000));
        assert!(thread.join());
    });
    assert!((3_000_000..3_010_000).contains(&report.end_ns), "{}", report.end_ns);
}

#[test]
fn spinner_gives_its_cpu_to_the_thread_that_it_waits_for() {
    run(&exact(1, 1), || {
        let word = Arc::new(SimWord::new(0));
        let written = Arc::clone(&word);
        let thread = spawn("writer", 0, move || written.store(1, Order::Release));
        assert!(Simulated::spin_until(u64::MAX, || word.load(Order::Acquire) == 1));
        assert!(thread.join());
        // A writer that sleeps first is let in, too.
        let written = Arc::clone(&word);
        let thread = spawn("late", 0, move || {
            SimParker::new().park(Some(Simulated::now() + 100_000));
            written.store(2, Order::Release);
        });
        assert!(Simulated::spin_until(u64::MAX, || word.load(Order::Acquire) == 2));
        assert!(thread.join());
        assert!(Simulated::now() < 200_000);
    });
}

#[test]
fn failing_exchanges_of_spinners_do_not_wake_each_other() {
    let report = run(&exact(1, 8), || {
        let word = Arc::new(SimWord::new(1));
        let start = |cpu| {
            let word = Arc::clone(&word);
            spawn("taker", cpu, move || {
                let taken = || word.compare_exchange(0, 1, Order::Acquire, Order::Relaxed).is_ok();
                assert!(Simulated::spin_until(u64::MAX, taken));
                Simulated::charge(1_000);
                word.store(0, Order::Release);
            })
        };
        let threads: Vec<_> = (1..8).map(start).collect();
        Simulated::charge(10_000_000);
        word.store(0, Order::Release);
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    assert!(report.events < 200, "{}", report.events);
}

#[test]
fn threads_of_one_cpu_share_it_by_time_slices() {
    let notes = Notes::default();
    let result = notes.clone();
    let report = run(&exact(1, 2), move || {
        let start = |_| {
            let notes = notes.clone();
            spawn("worker", 1, move || {
                (0..10_000).for_each(|_| Simulated::charge(1_000));
                notes.add(Simulated::now() - BEGIN_NS);
            })
        };
        let threads: Vec<_> = (0..3).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    // Thirty milliseconds of work in slices of one: nobody is more than a round behind. The last
    // slice of each ends with its work, so that it needs one more to end.
    let ends = result.take();
    assert!(ends.iter().all(|ns| (27_900_000..30_100_000).contains(ns)), "{ends:?}");
    let switches = report.cpus[1].context_switches;
    assert!((30..=34).contains(&switches), "{switches}");
}

#[test]
fn threads_without_a_cpu_of_their_own_take_turns() {
    let notes = Notes::default();
    let result = notes.clone();
    run(&exact(2, 2), move || {
        for _ in 0..5 {
            let notes = notes.clone();
            let body = Box::new(move || notes.add(Simulated::cpu().0.into()));
            assert!(Simulated::spawn("any", None, body).join());
        }
        let topology = Simulated::topology();
        assert_eq!((topology.cpus().len(), topology.nodes()), (4, 2));
        assert_eq!(topology.node_of(CpuId(2)).0, 1);
    });
    assert_eq!(result.take(), [1, 2, 3, 0, 1]);
}

#[test]
fn an_interrupt_takes_time_from_both() {
    let notes = Notes::default();
    let result = notes.clone();
    run(&exact(1, 2), move || {
        let thread = spawn("victim", 1, move || {
            let start_ns = Simulated::now();
            let word = SimWord::new(0);
            (0..100).for_each(|_| {
                Simulated::charge(1_000);
                word.fetch_add(1, Order::Relaxed);
            });
            notes.add(Simulated::now() - start_ns);
        });
        Simulated::charge(20_000);
        assert_eq!(time_of(|| Simulated::interrupt(CpuId(1))), 300);
        assert!(thread.join());
    });
    let expected_ns = 100 * 1_000 + 88 + 99 * 10 + 700;
    assert_eq!(result.take(), [expected_ns]);
}

/// One thread works for 10 ms while another sleeps and is woken after 5; returns when that went on.
fn woken_beside_a_busy_one(model: &Model) -> u64 {
    let notes = Notes::default();
    let result = notes.clone();
    run(model, move || {
        let parker = SimParker::new();
        let (inner, word) = (parker.clone(), SimWord::new(0));
        let sleeper = spawn("sleeper", 1, move || {
            inner.park(None);
            notes.add(Simulated::now() - BEGIN_NS);
        });
        let busy = spawn("busy", 1, move || {
            for _ in 0..1_000 {
                Simulated::charge(10_000);
                // Between two looks at what is shared nothing can be taken from it.
                word.load(Order::Relaxed);
            }
        });
        Simulated::charge(5_000_000);
        parker.unpark();
        assert!(busy.join() && sleeper.join());
    });
    result.take()[0]
}

#[test]
fn waking_thread_takes_a_cpu_only_from_a_long_running_one() {
    let cost = |ns| Cost::new(ns, "a round number");
    let woken_at = |fairness: Option<(f64, f64)>| {
        let mut model = exact(1, 2);
        model.threads.time_slice.ns = 100e6;
        model.threads.fairness = fairness
            .map(|(lead, credit)| Fairness { granularity: cost(lead), credit: cost(credit) });
        woken_beside_a_busy_one(&model)
    };
    assert!(woken_at(None) > 10_000_000, "threads take turns");
    let soon = woken_at(Some((3e6, 9e6)));
    assert!((5_000_000..5_100_000).contains(&soon), "{soon}: it has slept for five of them");
    assert!(woken_at(Some((6e6, 9e6))) > 10_000_000, "five are not six");
}

#[test]
fn overdue_cpu_loses_its_lock_however_soon_it_is_wanted_again() {
    run(&exact(1, 4), || {
        let (lock, set) = (Arc::new(SimLock::new("busy", ())), Arc::new(SimWord::new(0)));
        let start = |cpu: u32| {
            let (lock, set) = (Arc::clone(&lock), Arc::clone(&set));
            spawn("taker", cpu, move || {
                // Nearly all its time it waits for the lock or holds it.
                while set.load(Order::Acquire) == 0 {
                    let held = lock.lock();
                    Simulated::charge(900);
                    drop(held);
                }
            })
        };
        let takers: Vec<_> = (0..4).map(start).collect();
        let inner = Arc::clone(&set);
        let waiting = spawn("waiting", 3, move || inner.store(1, Order::Release));
        assert!(waiting.join());
        // A slice is a millisecond.
        assert!(Simulated::now() - BEGIN_NS < 5_000_000, "{}", Simulated::now() - BEGIN_NS);
        takers.into_iter().for_each(|taker| assert!(taker.join()));
    });
}
