//! Tests that the checked machine finds races, lost wake-ups, deadlocks and awaits that nobody
//! ends, besides memory orders, and that a failure can be replayed.
#![allow(missing_docs, unsafe_code, clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;

use millrace_checker::{
    Checked, CheckedLine, CheckedLock, CheckedParker, CheckedWord, Explorer, ensure,
};
use millrace_machine::Order::{Acquire, Relaxed, Release, SeqCst};
use millrace_machine::{Doorbell, Line, Lock, Machine, Parker, Thread, Word};

fn spawn(body: impl FnOnce() + Send + 'static) -> <Checked as Machine>::Thread {
    Checked::spawn("t", None, Box::new(body))
}

/// A value handed over in a line under a flag.
fn publish(store: millrace_machine::Order) -> impl Fn() {
    move || {
        let shared = Arc::new((CheckedLine::new(0u64), CheckedWord::new(0)));
        let theirs = Arc::clone(&shared);
        let writer = spawn(move || {
            // SAFETY: nobody reads before the flag is set; the checker fails if that is not so.
            unsafe { *theirs.0.write() = 7 };
            theirs.1.store(1, store);
        });
        Checked::spin_until(u64::MAX, || shared.1.load(Acquire) == 1);
        // SAFETY: the flag was set after the write.
        assert_eq!(unsafe { *shared.0.read() }, 7);
        writer.join();
    }
}

#[test]
fn a_line_published_by_a_relaxed_store_is_a_race() {
    let report = Explorer::new().exhaustive().check(publish(Release));
    println!("publish: {report}");
    let failure = Explorer::new().exhaustive().find(publish(Relaxed)).unwrap();
    assert!(failure.reason.contains("data race on line 0"), "{failure}");
}

#[test]
fn a_write_that_an_earlier_read_does_not_precede_is_a_race() {
    let failure = Explorer::new().find(|| {
        let line = Arc::new(CheckedLine::new(0u64));
        let theirs = Arc::clone(&line);
        let reader = spawn(move || {
            let _ = theirs.read();
        });
        let _ = line.write();
        reader.join();
    });
    assert!(failure.unwrap().reason.contains("data race"));
}

#[test]
fn a_lock_orders_what_it_protects_and_a_try_may_fail() {
    let (seen, report) = Explorer::new().exhaustive().outcomes(|| {
        let lock = Arc::new(CheckedLock::new("sum", 0u32));
        let adders: Vec<_> = (0..2)
            .map(|_| {
                let lock = Arc::clone(&lock);
                spawn(move || *lock.lock() += 1)
            })
            .collect();
        let tried = lock.try_lock().map(|sum| *sum);
        adders.into_iter().for_each(|adder| assert!(adder.join()));
        assert_eq!(*lock.lock(), 2);
        tried
    });
    println!("lock: {report}");
    assert_eq!(seen, [None, Some(0), Some(1), Some(2)].into());
}

#[test]
fn two_locks_in_two_orders_are_a_deadlock() {
    let failure = Explorer::new().find(|| {
        let locks = Arc::new([CheckedLock::new("a", ()), CheckedLock::new("b", ())]);
        let threads: Vec<_> = (0..2)
            .map(|first| {
                let locks = Arc::clone(&locks);
                spawn(move || {
                    let _outer = locks[first].lock();
                    let _inner = locks[1 - first].lock();
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    });
    assert!(failure.unwrap().reason.contains("nobody can run"));
}

#[test]
fn an_await_that_nobody_ends_is_found() {
    let failure = Explorer::new().find(|| {
        let word = CheckedWord::new(0);
        Checked::spin_until(u64::MAX, || word.load(Acquire) == 1);
    });
    assert!(failure.unwrap().reason.contains("a change of location 0"));
}

#[test]
fn an_await_of_either_of_two_words_sees_each_alone_and_both() {
    let (seen, report) = Explorer::new().exhaustive().outcomes(|| {
        let words = Arc::new([CheckedWord::new(0), CheckedWord::new(0)]);
        let threads: Vec<_> = (0..2)
            .map(|at| {
                let words = Arc::clone(&words);
                spawn(move || words[at].store(1, Relaxed))
            })
            .collect();
        let mut last = (0, 0);
        Checked::spin_until(u64::MAX, || {
            last = (words[0].load(Relaxed), words[1].load(Relaxed));
            last != (0, 0)
        });
        threads.into_iter().for_each(|thread| assert!(thread.join()));
        last
    });
    println!("either: {report}");
    assert_eq!(seen, [(0, 1), (1, 0), (1, 1)].into());
}

/// A sleeper that looks, then sleeps: with the bell, or the naive way.
fn sleeper(with_bell: bool) -> impl Fn() {
    move || {
        let bell = Arc::new(Doorbell::<Checked>::new(CheckedParker::new()));
        let work = Arc::new((CheckedWord::new(0), CheckedParker::new()));
        let (theirs, their_work) = (Arc::clone(&bell), Arc::clone(&work));
        let ringer = spawn(move || {
            their_work.0.store(1, Release);
            if with_bell { theirs.ring() } else { their_work.1.unpark() }
        });
        while work.0.load(Acquire) == 0 {
            match with_bell {
                true => bell.sleep_unless(None, || work.0.load(Relaxed) != 0),
                false => work.1.park(None),
            }
        }
        ringer.join();
    }
}

#[test]
fn a_sleep_whose_look_is_not_ordered_is_a_lost_wake_up() {
    println!("bell: {}", Explorer::new().exhaustive().check(sleeper(true)));
    // Parking carries no memory effect here, so the look after the wake-up may be old.
    let failure = Explorer::new().exhaustive().find(sleeper(false)).unwrap();
    assert!(failure.reason.contains("a wake-up of parker"), "{failure}");
}

#[test]
fn deadlines_pass_only_as_often_as_allowed() {
    let body = || {
        let parker = CheckedParker::new();
        let start = Checked::now();
        parker.park(Some(start + 500));
        assert_eq!(Checked::now(), start + 500);
    };
    assert!(Explorer::new().find(body).is_some());
    assert_eq!(Explorer::new().deadlines(1).check(body).executions, 1);
}

#[test]
fn a_failure_is_replayed_from_its_trail() {
    let body = || {
        let words = Arc::new([CheckedWord::new(0), CheckedWord::new(0)]);
        let theirs = Arc::clone(&words);
        let other = spawn(move || {
            theirs[0].store(1, Relaxed);
            assert!(theirs[1].load(Relaxed) == 1, "theirs");
        });
        words[1].store(1, Relaxed);
        ensure(words[0].load(Relaxed) == 1, "mine");
        other.join();
    };
    let explorer = Explorer::new();
    let failure = explorer.find(body).unwrap();
    let again = explorer.replay(&failure.trail, body).unwrap_err();
    assert_eq!((&again.reason, &again.log), (&failure.reason, &failure.log));
    assert!(!again.log.is_empty());
}

#[test]
fn a_panic_while_holding_a_lock_fails_the_execution_only() {
    let failure = Explorer::new().find(|| {
        let lock = Arc::new(CheckedLock::new("held", CheckedWord::new(0)));
        let theirs = Arc::clone(&lock);
        let _other = spawn(move || theirs.lock().store(1, SeqCst));
        let _guard = lock.lock();
        panic!("on purpose");
    });
    assert!(failure.unwrap().reason.contains("on purpose"));
}

#[test]
fn random_runs_find_what_they_draw_and_repeat_by_seed() {
    let explorer = |seed| Explorer::new().exhaustive().random(seed, 10_000);
    let found = explorer(1).find(publish(Relaxed)).unwrap();
    assert_eq!(Some(found), explorer(1).find(publish(Relaxed)));
    assert_eq!(explorer(2).check(publish(Release)).executions, 10_000);
}

#[test]
#[should_panic(expected = "not finished after 2 executions")]
fn too_many_executions_are_an_error() {
    Explorer::new().max_executions(2).check(publish(Release));
}
