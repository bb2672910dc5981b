//! Tests each rule of the budget; then compares all rules with a plain model, and runs them with
//! several threads.

mod model;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_block::GroupId;

use super::super::waiting_line::GroupAccount;
use super::*;
use crate::nbd::tests::{MIB, waiter};

const KIB: usize = 1 << 10;

/// Maps the region of a buffer for a connection of thread 9.
fn map(budget: &MemoryBudget, bytes: usize, part: MemoryPart) -> bool {
    budget.admit(waiter(9, 0, bytes), part, bytes.max(REGION_BYTES))
}

/// Returns true if a connection may have memory before all others that wait.
fn admit(budget: &MemoryBudget, waiter: MemoryWaiter) -> bool {
    budget.admit(waiter, MemoryPart::Shared, 0)
}

/// Fills the shared part with regions for buffers of `bytes` bytes; returns the MiB mapped.
fn fill(budget: &MemoryBudget, bytes: usize) -> usize {
    let regions = (0..).take_while(|_| map(budget, bytes, MemoryPart::Shared)).count();
    regions * bytes.max(REGION_BYTES) / MIB
}

#[test]
fn windows_are_quarter_and_what_classes_leave_sixteenth_each() {
    let budget = MemoryBudget::new(256 * MIB, 1024);
    assert_eq!(budget.window_bytes, 64 * KIB);
    for (bytes, mib) in [(256 * KIB, 192), (2 * MIB, 176), (32 * MIB, 160)] {
        let budget = MemoryBudget::new(256 * MIB, 1024);
        assert_eq!(fill(&budget, bytes), mib);
        assert_eq!(fill(&budget, 2 * MIB), if bytes > 2 * MIB { 16 } else { 0 });
        assert_eq!(fill(&budget, 4 * KIB), if bytes > 256 * KIB { 16 } else { 0 });
        assert!(!budget.is_overfull(), "all of the shared part");
        let window = std::iter::from_fn(|| Some(map(&budget, 4 * KIB, MemoryPart::Window)));
        assert_eq!(window.take_while(|fits| *fits).count(), 32, "64 MiB are left for windows");
        assert!(budget.is_overfull() && budget.mapped_bytes() == 256 * MIB);
    }
}

#[test]
fn what_is_kept_for_smaller_classes_counts_as_theirs_once() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    assert!(map(&budget, 4 * KIB, MemoryPart::Shared) && map(&budget, MIB, MemoryPart::Shared));
    assert_eq!(fill(&budget, 8 * MIB), 40, "as if they had mapped nothing");
    assert!(map(&budget, 4 * KIB, MemoryPart::Shared) && map(&budget, MIB, MemoryPart::Shared));
    assert!(!map(&budget, 4 * KIB, MemoryPart::Shared), "48 MiB are shared");
}

#[test]
fn parts_are_smaller_where_the_largest_request_hardly_fits() {
    for (max, window, largest) in [(8, 0, 0), (32, 0, 32), (40, 4, 32), (64, 16, 32)] {
        let budget = MemoryBudget::new(max * MIB, 1);
        assert_eq!((budget.window_bytes, fill(&budget, 32 * MIB)), (window * MIB, largest));
    }
    assert_eq!(MemoryBudget::new(8 * MIB, 0).window_bytes, 0);
}

#[test]
fn share_is_an_eighth_of_what_is_free_in_the_shared_part() {
    let budget = MemoryBudget::new(256 * MIB, 1024);
    assert_eq!(budget.share_bytes(0), 24 * MIB);
    (0..4).for_each(|_| assert!(map(&budget, 32 * MIB, MemoryPart::Shared)));
    assert_eq!((budget.share_bytes(8 * MIB), budget.free_bytes()), (9 * MIB, 128 * MIB));
}

#[test]
fn stuck_memory_is_missing_until_it_comes_back() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    let refusal = |mib: usize, part| budget.refusal(mib * MIB, part).is_some();
    assert!(!refusal(32, MemoryPart::Shared) && refusal(48, MemoryPart::Shared));
    assert!(map(&budget, 32 * MIB, MemoryPart::Shared) && !budget.is_much_stuck());
    assert!(!refusal(32, MemoryPart::Shared), "the other request will give its memory back");
    budget.recount(32 * MIB, 2, STUCK);
    assert!(budget.is_much_stuck() && budget.take_news());
    let refused = [2, 8, 16, 32].map(|mib| refusal(mib, MemoryPart::Shared));
    assert_eq!(refused, [false, false, true, true], "a third of the rest is for others");
    assert!(!refusal(32, MemoryPart::Window) && refusal(33, MemoryPart::Window));
    budget.recount(32 * MIB, STUCK, 2);
    assert!(budget.take_news() && !budget.is_much_stuck() && !refusal(32, MemoryPart::Shared));
    budget.unmap(2, 32 * MIB);
    assert_eq!(budget.mapped_bytes(), 0);
}

#[test]
fn a_quarter_of_stuck_memory_is_much() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    for expected in [false, false, false, false, false, false, false, true] {
        assert!(map(&budget, MIB, MemoryPart::Shared));
        budget.recount(2 * MIB, 1, STUCK);
        assert_eq!(budget.is_much_stuck(), expected);
    }
}

#[test]
fn turns_come_in_order_over_threads_and_skip_leavers() {
    let budget = MemoryBudget::new(64 * MIB, 4);
    assert!(!budget.has_waiters() && !budget.is_wanted() && budget.next(2).is_none());
    let [first, second] = [(0, 1), (1, 1)].map(|(thread, serial)| waiter(thread, serial, 8 * MIB));
    budget.change_line(|line| line.waiters.extend([first, second]));
    assert!(budget.has_waiters() && budget.is_wanted() && budget.take_news());
    assert!(!budget.take_news(), "it was said once");
    assert_eq!((budget.next(2), budget.next(1), budget.next(0)), (Some(first), None, None));
    assert!(!admit(&budget, second) && admit(&budget, first));
    assert!(!admit(&budget, waiter(2, 7, 8 * MIB)), "others were there before");
    budget.change_line(|line| line.leave(0, 1));
    assert!(budget.take_news() && admit(&budget, second));
    budget.change_line(|line| line.leave(1, 1));
    assert!(!budget.has_waiters());
}

#[test]
fn smaller_requests_pass_larger_one_that_still_fits_beside_them() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    budget.change_line(|line| line.waiters.push_back(waiter(0, 1, 32 * MIB)));
    let [little, medium] = [waiter(1, 2, 4 * KIB), waiter(1, 3, MIB)];
    // The 64 MiB contain 16 MiB of windows, and 32 MiB for the largest request.
    for mib in (0..16).step_by(2) {
        assert_eq!(admit(&budget, little), mib <= 10, "{mib} MiB");
        assert_eq!(admit(&budget, medium), mib <= 12, "4 MiB are kept for each class: {mib} MiB");
        assert!(map(&budget, 4 * KIB, MemoryPart::Window));
    }
    assert!(!admit(&budget, waiter(1, 4, 4 * MIB)), "a large one passes nobody");
    (0..8).for_each(|_| budget.unmap(0, REGION_BYTES));
    budget.change_line(|line| line.waiters.push_back(medium));
    assert_eq!((budget.next(0), budget.next(1)), (None, Some(medium)));
    assert!(
        admit(&budget, little) && !admit(&budget, waiter(1, 5, MIB)),
        "connections of a size class are served in order"
    );
    assert!(!admit(&budget, waiter(1, 6, 32 * MIB)));
}

#[test]
fn request_counts_for_its_account_from_admission_to_return() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    let account = Some(GroupAccount { group: GroupId(3), is_read: true });
    let [first, second] =
        [1, 2].map(|serial| MemoryWaiter { account, ..waiter(0, serial, 8 * MIB) });
    assert!(admit(&budget, first) && budget.take_news() && !admit(&budget, second));
    budget.change_line(|line| line.waiters.push_back(second));
    assert!(budget.has_waiters() && !budget.is_wanted(), "memory would not help it");
    assert!(budget.take_news());
    budget.revoke(first, 0);
    assert!(!budget.take_news() && budget.is_wanted() && budget.next(2) == Some(second));
    assert!(admit(&budget, second) && !budget.is_wanted());
}

#[test]
fn region_is_counted_only_if_it_is_somebodys_turn_and_fits() {
    let budget = MemoryBudget::new(64 * MIB, 1024);
    let large = waiter(0, 1, 32 * MIB);
    assert!(budget.admit(large, MemoryPart::Shared, 32 * MIB));
    budget.revoke(large, 32 * MIB);
    assert_eq!(budget.mapped_bytes(), 0);
    budget.change_line(|line| line.waiters.push_back(large));
    assert!(!map(&budget, 8 * MIB, MemoryPart::Shared) && budget.mapped_bytes() == 0);
    assert!(map(&budget, 8 * MIB, MemoryPart::Window), "windows wait for nobody");
    // Smaller requests leave room for the waiting request, whichever thread they belong to.
    assert_eq!(fill(&budget, MIB), 12);
    assert_eq!(budget.mapped_bytes(), 20 * MIB);
    budget.unmap(2, 8 * MIB);
    assert!(budget.admit(large, MemoryPart::Shared, 32 * MIB));
}

/// Sends requests of many sizes one after the other over a connection; returns how many were done.
/// Several threads run this at once.
fn worker(budget: &MemoryBudget, thread: usize, rings: &AtomicU64, deadline: Instant) -> usize {
    let sizes = [300 * KIB, 4 * KIB, 32 * MIB, MIB, 8 * MIB, 64 * KIB];
    let ring = |budget: &MemoryBudget| {
        if budget.is_wanted() && budget.take_news() {
            rings.fetch_add(1, Ordering::SeqCst);
        }
    };
    let mut done = 0;
    for request in 0..4000 {
        let bytes = sizes[(request * 7 + thread * 5 + request / 11) % sizes.len()];
        let account = (request % 3 == 0)
            .then_some(GroupAccount { group: GroupId(request as u16 % 2), is_read: false });
        let waiter = MemoryWaiter { account, ..waiter(thread, 1, bytes) };
        let mut waits = false;
        loop {
            let seen = rings.load(Ordering::SeqCst);
            if budget.admit(waiter, MemoryPart::Shared, bytes.max(REGION_BYTES)) {
                break;
            }
            if !std::mem::replace(&mut waits, true) {
                budget.change_line(|line| line.waiters.push_back(waiter));
            }
            ring(budget);
            while rings.load(Ordering::SeqCst) == seen {
                if Instant::now() > deadline {
                    return done;
                }
                std::thread::yield_now();
            }
        }
        if waits {
            budget.change_line(|line| line.leave(thread, 1));
        }
        ring(budget);
        assert!(budget.mapped_bytes() <= 48 * MIB, "the windows are nobody else's");
        if request % 5 == 0 {
            std::thread::yield_now();
        }
        budget.unmap(size_class(bytes), bytes.max(REGION_BYTES));
        budget.announce();
        if let Some(account) = account {
            budget.change_line(|line| line.credit(account, bytes));
        }
        ring(budget);
        done += 1;
    }
    done
}

#[test]
fn threads_that_ring_each_other_forget_nobody() {
    let (budget, rings) = (MemoryBudget::new(64 * MIB, 1024), AtomicU64::new(0));
    let deadline = Instant::now() + Duration::from_secs(60);
    let done: Vec<usize> = std::thread::scope(|scope| {
        let (budget, rings) = (&*budget, &rings);
        let start = |thread| scope.spawn(move || worker(budget, thread, rings, deadline));
        let threads: Vec<_> = (0..3).map(start).collect();
        threads.into_iter().map(|one| one.join().expect("a thread saw a broken rule")).collect()
    });
    assert_eq!(done, [4000; 3], "{budget:?}");
    assert!(budget.mapped_bytes() == 0 && !budget.has_waiters());
}
