//! Litmus tests of the checked machine: for each the exact set of outcomes, as the language has it.
//!
//! A tuple is what the loads returned. "Weak" outcomes are those that sequential consistency does
//! not have. What the model cannot show is asserted to be absent, so that a change is noticed.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_checker::{Checked, CheckedWord, Explorer};
use millrace_machine::Order::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
use millrace_machine::{Machine, Thread, Word};

type Words = Arc<[CheckedWord; 2]>;
type Body = Box<dyn Fn(&[CheckedWord; 2]) -> u64 + Send + Sync>;

fn body(run: impl Fn(&[CheckedWord; 2]) -> u64 + Send + Sync + 'static) -> Arc<Body> {
    Arc::new(Box::new(run))
}

/// Outcomes of threads that share two words, both 0 at first; each returns a number.
fn outcomes(name: &str, threads: &[Arc<Body>]) -> BTreeSet<Vec<u64>> {
    let (set, report) = Explorer::new().exhaustive().outcomes(|| {
        let words: Words = Arc::new([CheckedWord::new(0), CheckedWord::new(0)]);
        let results: Arc<std::sync::Mutex<Vec<u64>>> =
            Arc::new(std::sync::Mutex::new(vec![0; threads.len()]));
        let mut handles = Vec::new();
        for (index, thread) in threads.iter().enumerate() {
            let (words, thread) = (Arc::clone(&words), Arc::clone(thread));
            let results = Arc::clone(&results);
            let run = move || {
                let result = thread(&words);
                results.lock().unwrap()[index] = result;
            };
            handles.push(Checked::spawn("t", None, Box::new(run)));
        }
        handles.into_iter().for_each(|handle| assert!(handle.join()));
        let mut all = results.lock().unwrap().clone();
        // Appends the final value of each word, the last in its modification order.
        all.extend(words.iter().map(|word| word.load(Relaxed)));
        all
    });
    println!("{name}: {} outcomes, {report}", set.len());
    set
}

/// The outcomes without the final values of the words.
fn returned(name: &str, threads: &[Arc<Body>]) -> BTreeSet<Vec<u64>> {
    let cut = |mut all: Vec<u64>| {
        all.truncate(threads.len());
        all
    };
    outcomes(name, threads).into_iter().map(cut).collect()
}

fn set<const N: usize>(items: impl IntoIterator<Item = [u64; N]>) -> BTreeSet<Vec<u64>> {
    items.into_iter().map(|item| item.to_vec()).collect()
}

/// Two loads as one number: the first in tens.
fn pair(first: u64, second: u64) -> u64 {
    first * 10 + second
}

fn message_passing(store: Order, load: Order, fences: Option<(Order, Order)>) -> Vec<Arc<Body>> {
    let writer = body(move |w| {
        w[0].store(1, Relaxed);
        if let Some((release, _)) = fences {
            Checked::fence(release);
        }
        w[1].store(1, store);
        0
    });
    let reader = body(move |w| {
        let flag = w[1].load(load);
        if let Some((_, acquire)) = fences {
            Checked::fence(acquire);
        }
        pair(flag, w[0].load(Relaxed))
    });
    vec![writer, reader]
}

#[test]
fn message_passing_needs_release_and_acquire() {
    let weak = set([[0, 0], [0, 1], [0, 10], [0, 11]]);
    let strong = set([[0, 0], [0, 1], [0, 11]]);
    let run = |store, load, fences| returned("mp", &message_passing(store, load, fences));
    assert_eq!(run(Relaxed, Relaxed, None), weak);
    assert_eq!(run(Release, Relaxed, None), weak);
    assert_eq!(run(Relaxed, Acquire, None), weak);
    assert_eq!(run(Release, Acquire, None), strong);
    assert_eq!(run(SeqCst, SeqCst, None), strong);
    assert_eq!(run(Relaxed, Relaxed, Some((Release, Acquire))), strong);
    assert_eq!(run(Relaxed, Relaxed, Some((AcqRel, AcqRel))), strong);
    assert_eq!(run(Relaxed, Relaxed, Some((Acquire, Release))), weak);
    assert_eq!(run(Release, Relaxed, Some((Acquire, Acquire))), strong);
}

fn store_buffering(store: Order, load: Order, fence: Option<Order>) -> Vec<Arc<Body>> {
    let side = |mine: usize| {
        body(move |w| {
            w[mine].store(1, store);
            if let Some(order) = fence {
                Checked::fence(order);
            }
            w[1 - mine].load(load)
        })
    };
    vec![side(0), side(1)]
}

#[test]
fn store_buffering_is_excluded_by_seqcst_only() {
    let weak = set([[0, 0], [0, 1], [1, 0], [1, 1]]);
    let strong = set([[0, 1], [1, 0], [1, 1]]);
    let run = |store, load, fence| returned("sb", &store_buffering(store, load, fence));
    assert_eq!(run(Relaxed, Relaxed, None), weak);
    assert_eq!(run(Release, Acquire, None), weak);
    assert_eq!(run(SeqCst, Acquire, None), weak);
    assert_eq!(run(Release, SeqCst, None), weak);
    assert_eq!(run(Relaxed, Relaxed, Some(AcqRel)), weak);
    assert_eq!(run(SeqCst, SeqCst, None), strong);
    assert_eq!(run(Relaxed, Relaxed, Some(SeqCst)), strong);
}

#[test]
fn store_buffering_with_fence_on_one_side_needs_seqcst_on_other() {
    let access = |store, load| {
        let fenced = store_buffering(Relaxed, Relaxed, Some(SeqCst)).swap_remove(0);
        let plain = store_buffering(store, load, None).swap_remove(1);
        returned("sb+fence", &[fenced, plain])
    };
    let strong = set([[0, 1], [1, 0], [1, 1]]);
    assert_eq!(access(SeqCst, SeqCst), strong);
    assert!(access(Relaxed, SeqCst).contains(&vec![0, 0]));
    assert!(access(SeqCst, Relaxed).contains(&vec![0, 0]));
}

#[test]
fn store_buffering_by_exchanges_is_weak_unless_seqcst() {
    let run = |order| {
        let side = |mine: usize| {
            body(move |w| {
                w[mine].swap(1, order);
                w[1 - mine].load(if order == SeqCst { SeqCst } else { Acquire })
            })
        };
        returned("sb+rmw", &[side(0), side(1)])
    };
    assert!(run(AcqRel).contains(&vec![0, 0]));
    assert_eq!(run(SeqCst), set([[0, 1], [1, 0], [1, 1]]));
}

fn iriw(store: Order, load: Order, fence: Option<Order>) -> BTreeSet<Vec<u64>> {
    let write = |at: usize| body(move |w| (w[at].store(1, store), 0).1);
    let read = |first: usize| {
        body(move |w| {
            let a = w[first].load(load);
            if let Some(order) = fence {
                Checked::fence(order);
            }
            pair(a, w[1 - first].load(load))
        })
    };
    returned("iriw", &[write(0), write(1), read(0), read(1)])
}

#[test]
fn readers_agree_on_independent_writes_only_under_seqcst() {
    let values = [0, 1, 10, 11];
    let all = || values.iter().flat_map(|a| values.iter().map(move |b| [0, 0, *a, *b]));
    let weak = set(all());
    let strong = set(all().filter(|o| *o != [0, 0, 10, 10]));
    assert_eq!(iriw(Release, Acquire, None), weak);
    assert_eq!(iriw(Relaxed, Relaxed, Some(AcqRel)), weak);
    assert_eq!(iriw(SeqCst, SeqCst, None), strong);
    assert_eq!(iriw(Relaxed, Relaxed, Some(SeqCst)), strong);
    // SeqCst loads of stores that are not SeqCst agree on nothing.
    assert_eq!(iriw(Release, SeqCst, None), weak);
}

#[test]
fn two_reads_of_a_word_never_go_back() {
    let write = body(|w| {
        w[0].store(1, Relaxed);
        w[0].store(2, Relaxed);
        0
    });
    let read = body(|w| pair(w[0].load(Relaxed), w[0].load(Relaxed)));
    assert_eq!(
        returned("corr", &[write, read]),
        set([[0, 0], [0, 1], [0, 2], [0, 11], [0, 12], [0, 22]])
    );
}

#[test]
fn two_readers_see_two_writers_in_one_order() {
    let write = |value: u64| body(move |w| (w[0].store(value, Relaxed), 0).1);
    let read = || body(|w| pair(w[0].load(Relaxed), w[0].load(Relaxed)));
    let seen = returned("corr2", &[write(1), write(2), read(), read()]);
    assert!(seen.contains(&vec![0, 0, 12, 12]) && seen.contains(&vec![0, 0, 21, 21]));
    assert!(!seen.contains(&vec![0, 0, 12, 21]) && !seen.contains(&vec![0, 0, 21, 12]));
    // 0..2 twice in either order, less what goes back to 0, less the two disagreements.
    assert_eq!(seen.len(), 7 * 7 - 2);
}

#[test]
fn two_writes_of_a_thread_stay_in_order() {
    let write = body(|w| {
        w[0].store(1, Relaxed);
        w[0].store(2, Relaxed);
        0
    });
    let other = body(|w| (w[0].store(3, Relaxed), 0).1);
    assert_eq!(outcomes("coww", &[write, other]), set([[0, 0, 2, 0], [0, 0, 3, 0]]));
}

#[test]
fn a_write_after_a_read_stands_behind_what_was_read() {
    let write = body(|w| (w[0].store(1, Relaxed), 0).1);
    let both = body(|w| {
        let seen = w[0].load(Relaxed);
        w[0].store(2, Relaxed);
        seen
    });
    // Never [0, 1, 1, 0]: what was read cannot come after what was written.
    assert_eq!(outcomes("corw", &[write, both]), set([[0, 0, 1, 0], [0, 0, 2, 0], [0, 1, 2, 0]]));
}

#[test]
fn a_read_after_a_write_returns_it_or_something_later() {
    let write = body(|w| (w[0].store(1, Relaxed), 0).1);
    let both = body(|w| {
        w[0].store(2, Relaxed);
        w[0].load(Relaxed)
    });
    // Never 0; and 1 only if 1 is the later one.
    assert_eq!(outcomes("cowr", &[write, both]), set([[0, 1, 1, 0], [0, 2, 1, 0], [0, 2, 2, 0]]));
}

fn two_plus_two_writes(order: Order, fence: Option<Order>) -> BTreeSet<Vec<u64>> {
    let side = |first: usize| {
        body(move |w| {
            w[first].store(1, order);
            if let Some(order) = fence {
                Checked::fence(order);
            }
            w[1 - first].store(2, order);
            0
        })
    };
    outcomes("2+2w", &[side(0), side(1)])
}

#[test]
fn two_plus_two_writes_may_both_lose_unless_seqcst() {
    let strong = set([[0, 0, 1, 2], [0, 0, 2, 1], [0, 0, 2, 2]]);
    let mut weak = strong.clone();
    weak.insert(vec![0, 0, 1, 1]);
    assert_eq!(two_plus_two_writes(Relaxed, None), weak);
    assert_eq!(two_plus_two_writes(Release, None), weak);
    assert_eq!(two_plus_two_writes(SeqCst, None), strong);
    assert_eq!(two_plus_two_writes(Relaxed, Some(SeqCst)), strong);
}

fn release_sequence(middle: impl Fn(&CheckedWord) + Send + Sync + 'static) -> BTreeSet<Vec<u64>> {
    let write = body(|w| {
        w[0].store(1, Relaxed);
        w[1].store(1, Release);
        0
    });
    let between = body(move |w| (middle(&w[1]), 0).1);
    let read = body(|w| pair(w[1].load(Acquire), w[0].load(Relaxed)));
    returned("rel-seq", &[write, between, read])
}

#[test]
fn read_modify_writes_continue_a_release_sequence() {
    let by_rmw = release_sequence(|flag| {
        let _ = flag.compare_exchange(1, 2, Relaxed, Relaxed);
    });
    assert!(by_rmw.contains(&vec![0, 0, 21]) && !by_rmw.contains(&vec![0, 0, 20]));
    let by_store = release_sequence(|flag| {
        if flag.load(Relaxed) == 1 {
            flag.store(2, Relaxed);
        }
    });
    assert!(by_store.contains(&vec![0, 0, 21]) && by_store.contains(&vec![0, 0, 20]));
}

#[test]
fn store_of_releasing_thread_itself_breaks_sequence_too() {
    let write = body(|w| {
        w[0].store(1, Relaxed);
        w[1].store(1, Release);
        w[1].store(2, Relaxed);
        0
    });
    let read = body(|w| pair(w[1].load(Acquire), w[0].load(Relaxed)));
    let seen = returned("rel-seq-own", &[write, read]);
    assert!(!seen.contains(&vec![0, 10]) && seen.contains(&vec![0, 20]), "as of C++20");
}

#[test]
fn increments_are_never_lost() {
    let add = || body(|w| w[0].fetch_add(1, Relaxed));
    assert_eq!(outcomes("inc", &[add(), add()]), set([[0, 1, 2, 0], [1, 0, 2, 0]]));
    let swap = |value: u64| body(move |w| w[0].swap(value, Relaxed));
    assert_eq!(outcomes("swap", &[swap(1), swap(2)]), set([[0, 1, 2, 0], [2, 0, 1, 0]]));
}

#[test]
fn a_read_modify_write_may_stand_before_a_store_that_ran_first() {
    // The other word's loads fix who ran first; the exchange still reads the old 0.
    let store = body(|w| {
        w[0].store(1, Relaxed);
        w[1].store(1, Relaxed);
        0
    });
    let add = body(|w| pair(w[1].load(Relaxed), w[0].fetch_add(4, Relaxed)));
    let seen = outcomes("rmw+store", &[store, add]);
    assert!(seen.contains(&vec![0, 10, 1, 1]), "{seen:?}");
    assert!(!seen.contains(&vec![0, 0, 0, 1]) && !seen.contains(&vec![0, 1, 1, 1]));
}

#[test]
fn exchange_succeeds_once_and_its_failure_may_read_old_value() {
    let take = || body(|w| w[0].compare_exchange(0, 1, Acquire, Relaxed).is_ok().into());
    assert_eq!(returned("cas", &[take(), take()]), set([[0, 1], [1, 0]]));
    let write = body(|w| {
        w[0].store(1, Relaxed);
        w[0].store(2, Relaxed);
        w[1].store(1, Release);
        0
    });
    let fail = body(|w| {
        let flag = w[1].load(Relaxed);
        pair(flag, w[0].compare_exchange(7, 8, AcqRel, Relaxed).unwrap_or_else(|seen| seen))
    });
    assert_eq!(
        returned("cas-fail", &[write, fail]),
        set([[0, 0], [0, 1], [0, 2], [0, 10], [0, 11], [0, 12]])
    );
}

#[test]
fn a_failed_exchange_has_the_failure_ordering() {
    let run = |fail: Order| {
        let write = body(|w| {
            w[0].store(1, Relaxed);
            w[1].store(1, Release);
            0
        });
        let read = body(move |w| {
            let flag = w[1].compare_exchange(7, 8, Release, fail).unwrap_or_else(|seen| seen);
            pair(flag, w[0].load(Relaxed))
        });
        returned("cas-order", &[write, read]).contains(&vec![0, 10])
    };
    assert!(run(Relaxed));
    assert!(!run(Acquire));
}

#[test]
fn what_was_acquired_is_passed_on() {
    // ISA2: T0 -> T1 -> T2, over two flags in one word each.
    let run = |pass: Order| {
        let first = body(|w| {
            w[0].store(1, Relaxed);
            w[1].store(1, Release);
            0
        });
        let second = body(move |w| match w[1].load(Acquire) {
            1 => (w[1].store(2, pass), 1).1,
            _ => 0,
        });
        let third = body(|w| pair(w[1].load(Acquire), w[0].load(Relaxed)));
        returned("isa2", &[first, second, third]).contains(&vec![0, 1, 20])
    };
    assert!(!run(Release));
    assert!(run(Relaxed));
}

#[test]
fn write_to_read_causality_needs_release_and_acquire() {
    let run = |store: Order, load: Order| {
        let first = body(|w| (w[0].store(1, Relaxed), 0).1);
        let second = body(move |w| {
            let seen = w[0].load(Relaxed);
            w[1].store(1, store);
            seen
        });
        let third = body(move |w| pair(w[1].load(load), w[0].load(Relaxed)));
        returned("wrc", &[first, second, third]).contains(&vec![0, 1, 10])
    };
    assert!(run(Relaxed, Relaxed));
    assert!(!run(Release, Acquire));
}

// Limits of the model: a load is executed before the operations that follow it in its thread, and
// SeqCst operations take effect in the order of execution.

#[test]
fn limit_load_buffering_is_not_shown() {
    let side = |first: usize| {
        body(move |w| {
            let seen = w[first].load(Relaxed);
            w[1 - first].store(1, Relaxed);
            seen
        })
    };
    // The language allows [1, 1] as well.
    assert_eq!(returned("lb", &[side(0), side(1)]), set([[0, 0], [0, 1], [1, 0]]));
}

#[test]
fn limit_z6_with_seqcst_accesses_is_not_shown() {
    let first = body(|w| {
        w[0].store(1, SeqCst);
        w[1].store(1, Release);
        0
    });
    let second = body(|w| pair(w[1].fetch_add(1, SeqCst), w[1].load(Relaxed)));
    let third = body(|w| {
        w[1].store(3, SeqCst);
        w[0].load(SeqCst)
    });
    // C++20 allows [0, 13, 0]; C++11 did not.
    let seen = returned("z6", &[first, second, third]);
    assert!(seen.contains(&vec![0, 13, 1]) && !seen.contains(&vec![0, 13, 0]));
}
