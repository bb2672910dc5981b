//! Simulations that cannot end: deadlocks, time limits, panics.

use std::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Parker, Stage, Thread, Word};
use millrace_simulator::{SimError, Simulated, Simulation};

use super::{SimLock, SimParker, SimWord, exact, run, spawn, try_run};

#[test]
fn deadlock_names_every_thread_and_what_it_waits_for() {
    let error = try_run(&exact(1, 4), || {
        let locks = [("first", 0), ("second", 0)].map(|(name, v)| Arc::new(SimLock::new(name, v)));
        let [a, b] = locks.clone();
        let thread = spawn("left", 1, move || {
            let _first = a.lock();
            Simulated::charge(100_000);
            let _second = b.lock();
        });
        let [a, b] = locks;
        spawn("right", 2, move || {
            let _second = b.lock();
            Simulated::charge(100_000);
            let _first = a.lock();
        });
        spawn("dozer", 3, || SimParker::new().park(None));
        spawn("spinner", 0, || {
            let word = SimWord::new(0);
            Simulated::spin_until(u64::MAX, || word.load(Order::Relaxed) == 1);
        });
        assert!(thread.join());
    })
    .expect_err("the run must end with a deadlock");
    let expected = "deadlock: every thread waits; main on CPU 0 waits for the end of thread left; \
                    left on CPU 1 waits for lock second, held by right; \
                    right on CPU 2 waits for lock first, held by left; \
                    dozer on CPU 3 waits for a wake-up; \
                    spinner on CPU 0 waits for a write to any of the cache lines that it polls (1)";
    assert_eq!(error.to_string(), expected);
    run(&exact(1, 1), || Simulated::charge(1)); // And the next simulation is not disturbed.
}

#[test]
fn a_lock_taken_twice_is_a_deadlock() {
    let error = try_run(&exact(1, 1), || {
        let lock = SimLock::new("twice", ());
        let _guard = lock.lock();
        let _again = lock.lock();
    });
    let text = error.expect_err("the run must end with a deadlock").to_string();
    assert!(text.ends_with("main on CPU 0 waits for lock twice, held by main"), "{text}");
}

#[test]
fn a_run_that_goes_on_for_ever_ends_at_its_limit() {
    for parks in [false, true] {
        let simulation = Simulation::new(&exact(1, 2), 0)
            .expect("the input must be valid")
            .time_limit_ns(5_000_000);
        let result = simulation.run(move || {
            let parker = SimParker::new();
            loop {
                match parks {
                    true => parker.park(Some(Simulated::now() + 1_000)),
                    false => Simulated::work(Stage::Submit, 1),
                }
            }
        });
        let Err(SimError::TimeLimit(limit_ns, threads)) = result else { panic!("{result:?}") };
        assert_eq!((limit_ns, threads.len()), (5_000_000, 1));
        assert_eq!(threads[0].name, "main");
    }
}

#[test]
fn a_panic_ends_the_simulation_with_the_threads_name_and_time() {
    let error = try_run(&exact(1, 4), || {
        let lock = Arc::new(SimLock::new("held", 0));
        let held = Arc::clone(&lock);
        spawn("unlucky", 2, move || {
            let _guard = held.lock();
            Simulated::charge(5_000);
            panic!("number {}", 17);
        });
        loop {
            Simulated::charge(1_000);
            drop(lock.lock());
        }
    })
    .expect_err("the run must panic");
    let SimError::Panic { thread, at_ns, message } = &error else { panic!("{error:?}") };
    assert_eq!((thread.as_str(), message.as_str()), ("unlucky", "number 17"));
    // Started at 1,100, woken at 3,100, running at 4,100, and it has worked for 5,000.
    assert!((9_100..9_500).contains(at_ns), "{at_ns}");
    run(&exact(1, 1), || Simulated::charge(1));
}

#[test]
fn destructors_of_a_thread_that_panics_do_not_wait_for_others() {
    struct Sleeps(SimParker);
    impl Drop for Sleeps {
        fn drop(&mut self) {
            self.0.park(Some(Simulated::now() + 1_000_000));
            let word = SimWord::new(0);
            let deadline_ns = Simulated::now() + 1_000_000;
            assert!(!Simulated::spin_until(deadline_ns, || word.load(Order::Relaxed) == 1));
        }
    }
    let error = try_run(&exact(1, 2), || {
        spawn("bystander", 1, || {
            loop {
                Simulated::charge(100);
                SimWord::new(0).store(1, Order::Relaxed);
            }
        });
        let _sleeps = Sleeps(SimParker::new());
        Simulated::charge(1_000);
        panic!("early");
    });
    let text = error.expect_err("the run must panic").to_string();
    assert!(text.starts_with("thread main panicked") && text.ends_with("early"), "{text}");
}

#[test]
fn a_clock_beyond_the_last_time_that_counts_is_over_its_limit() {
    let simulation = Simulation::new(&exact(1, 1), 0).expect("the input must be valid");
    let result = simulation.run(|| {
        Simulated::charge(u64::MAX);
        SimWord::new(0).store(1, Order::Relaxed);
    });
    assert!(matches!(result, Err(SimError::TimeLimit(4_503_599_627_370, _))), "{result:?}");
}

#[test]
fn destructor_waiting_for_a_lock_in_a_panic_ends_the_run() {
    struct Takes(Arc<SimLock<u32>>);
    impl Drop for Takes {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }
    // On a thread of its own, since the panic that is never over stays with it.
    let result = std::thread::spawn(|| {
        try_run(&exact(1, 2), || {
            let lock = Arc::new(SimLock::new("wanted", 0));
            let takes = Takes(Arc::clone(&lock));
            spawn("holder", 1, move || {
                let _guard = lock.lock();
                SimParker::new().park(None);
            });
            Simulated::charge(10_000);
            SimWord::new(0).store(1, Order::Relaxed); // The holder's turn comes before this.
            let _takes = takes;
            panic!("with a lock still to take");
        })
    });
    let text = result.join().expect("it returns").expect_err("the run must panic").to_string();
    assert!(text.ends_with("a destructor waits for a lock"), "{text}");
}

#[test]
fn simulations_do_not_nest() {
    let error = try_run(&exact(1, 1), || drop(try_run(&exact(1, 1), || ())))
        .expect_err("the run must panic");
    assert!(error.to_string().ends_with("simulations must not be nested"), "{error}");
}

#[test]
#[should_panic(expected = "there is no CPU")]
fn a_first_cpu_that_does_not_exist_is_refused() {
    let _ =
        Simulation::new(&exact(1, 1), 0).expect("the input must be valid").first_cpu(1).run(|| ());
}
