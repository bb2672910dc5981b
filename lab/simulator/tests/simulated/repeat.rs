//! A seed gives the same run each time, in every build.

use std::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Parker, Stage, Thread, Word};
use millrace_simulator::{Model, Report, Simulated, Simulation};

use super::{SimLock, SimParker, SimWord, spawn};

/// A bit of everything, on 24 CPUs.
fn busy(seed: u64) -> Report {
    let simulation = Simulation::new(&Model::plain(4, 6), seed).expect("the input must be valid");
    let main = || {
        let words: Arc<Vec<_>> = Arc::new((0..5).map(|_| SimWord::new(0)).collect());
        let lock = Arc::new(SimLock::new("shared", 0u64));
        let start = |number: u64| {
            let (words, lock) = (Arc::clone(&words), Arc::clone(&lock));
            spawn("worker", (number % 24) as u32, move || {
                let parker = SimParker::new();
                for round in 0..200 {
                    Simulated::work(Stage::Submit, 1);
                    words[((number + round) % 5) as usize].fetch_add(1, Order::AcqRel);
                    *lock.lock() += 1;
                    if (round + number).is_multiple_of(50) {
                        parker.park(Some(Simulated::now() + 3_000));
                    }
                }
                let word = &words[(number % 5) as usize];
                let deadline_ns = Simulated::now() + 10_000;
                Simulated::spin_until(deadline_ns, || word.load(Order::Acquire) > 1_000);
            })
        };
        let threads: Vec<_> = (0..30).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        assert_eq!(*lock.lock(), 6_000);
    };
    simulation.run(main).expect("ends")
}

#[test]
fn same_seed_same_report_and_another_seed_another() {
    let first = busy(7);
    assert_eq!(format!("{first:?}"), format!("{:?}", busy(7)));
    assert_ne!(first.end_ns, busy(8).end_ns);
    let elsewhere = std::thread::spawn(|| busy(7)).join().expect("the simulation must not panic");
    assert_eq!(first, elsewhere, "on another thread of the system");
}

#[test]
fn every_nanosecond_of_a_cpu_is_busy_spinning_or_idle() {
    let report = busy(3);
    for cpu in &report.cpus {
        let sum_ns = cpu.busy_ns + cpu.spin_ns + cpu.idle_ns;
        assert!(sum_ns.abs_diff(report.elapsed_ns()) <= 3, "{cpu:?} of {}", report.elapsed_ns());
    }
    let spun_ns: u64 = report.cpus.iter().map(|cpu| cpu.spin_ns).sum();
    let waited_ns = report.locks[0].counts.wait_ns;
    assert!(waited_ns > 0 && spun_ns + 1_000 >= waited_ns * 9 / 10, "{spun_ns}, {waited_ns}");
}

#[test]
fn debug_and_release_builds_agree() {
    // Whoever changes what the model charges changes these numbers; a build must not.
    let report = busy(7);
    assert_eq!((report.end_ns, report.events), (5_319_538, 30_232));
}
