//! Hyper-threads, and threads that wake elsewhere.

use std::borrow::Cow;

use millrace_machine::{Machine, Order, Parker, Thread, Word};
use millrace_simulator::{Factor, HyperThreads, Model, Simulated};

use super::{Notes, SimParker, SimWord, exact, run, spawn, time_of};

/// Two hyper-threads a core, which together do 1.25 times what one does: each takes 1.6 times as
/// long.
fn with_siblings(cores: u32) -> Model {
    let gain = Factor { factor: 1.25, origin: Cow::Borrowed("a round number") };
    Model { hyper_threads: Some(HyperThreads { per_core: 2, gain }), ..exact(1, cores) }
}

#[test]
fn work_takes_longer_while_the_sibling_works_and_only_then() {
    for (cpu, expected_ns) in [(1, 16_000), (2, 10_000)] {
        let notes = Notes::default();
        let result = notes.clone();
        run(&with_siblings(2), move || {
            let other = spawn("other", cpu, || Simulated::charge(1_000_000));
            Simulated::charge(20_000);
            notes.add(time_of(|| Simulated::charge(10_000)));
            assert!(other.join());
            assert_eq!(time_of(|| Simulated::charge(10_000)), 10_000, "it has ended");
        });
        assert_eq!(result.take(), [expected_ns], "CPU {cpu}");
    }
}

#[test]
fn a_sibling_that_spins_takes_nothing() {
    run(&with_siblings(1), || {
        let until_ns = Simulated::now() + 100_000;
        let other = spawn("other", 1, move || {
            Simulated::spin_until(until_ns, || false);
        });
        Simulated::charge(20_000);
        // A turn, without which nothing is seen of others.
        SimWord::new(0).load(Order::Relaxed);
        assert_eq!(time_of(|| Simulated::charge(10_000)), 10_000);
        assert!(other.join());
    });
}

/// The CPU on which a thread of CPU 0 goes on after a sleep, with CPUs that are busy then.
fn woken_on(busy: &'static [u32], roams: bool) -> u64 {
    let notes = Notes::default();
    let result = notes.clone();
    run(&with_siblings(2), move || {
        // The waker's own CPU is busy, too.
        let parker = SimParker::new();
        let bell = parker.clone();
        let sleeper = spawn("sleeper", 0, move || {
            if roams {
                Simulated::roam();
            }
            bell.park(None);
            notes.add(u64::from(Simulated::cpu().0));
        });
        let waker = spawn("waker", 3, move || {
            Simulated::charge(50_000);
            let busy = busy.iter().map(|cpu| spawn("busy", *cpu, || Simulated::charge(500_000)));
            let busy: Vec<_> = busy.collect();
            Simulated::charge(50_000);
            parker.unpark();
            busy.into_iter().for_each(|thread| assert!(thread.join()));
        });
        assert!(waker.join() && sleeper.join());
    });
    result.take()[0]
}

#[test]
fn roaming_thread_wakes_on_an_idle_core_then_a_sibling() {
    assert_eq!(woken_on(&[], true), 0, "its own CPU is idle");
    assert_eq!(woken_on(&[0], false), 0, "it may not");
    assert_eq!(woken_on(&[0], true), 1, "CPU 3 keeps the other core from being wholly idle");
    assert_eq!(woken_on(&[0, 1], true), 0, "CPU 2 shares no core with it");
}

#[test]
fn a_wholly_idle_core_goes_before_an_idle_sibling() {
    let notes = Notes::default();
    let result = notes.clone();
    run(&with_siblings(2), move || {
        let parker = SimParker::new();
        let bell = parker.clone();
        // This thread has CPU 0, and wakes the other there.
        let sleeper = spawn("sleeper", 0, move || {
            Simulated::roam();
            bell.park(None);
            notes.add(u64::from(Simulated::cpu().0));
        });
        SimParker::new().park(Some(Simulated::now() + 50_000));
        parker.unpark();
        Simulated::charge(50_000);
        assert!(sleeper.join());
    });
    assert_eq!(result.take(), [2]);
}

#[test]
fn gains_that_cannot_be_are_refused() {
    let mut model = with_siblings(2);
    assert_eq!((model.cpus(), model.cpus_per_socket()), (4, 4));
    model.validate().expect("within its ranges");
    model.hyper_threads.as_mut().expect("given").gain.factor = 2.5;
    let error = model.validate().expect_err("two threads do not do 2.5 times as much");
    let expected = "machine model: hyper_threads.gain: factor must be 1 to 2, is 2.5";
    assert_eq!(error.to_string(), expected);
}
