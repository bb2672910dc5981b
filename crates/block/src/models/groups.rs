//! Models of the lock-free state of groups: token buckets, and the version of the group table.
//!
//! A token bucket assigns dispatch times to I/Os. The version shows a thread that its copy of the
//! group table is outdated. The table itself is under a lock.
#![cfg(test)]

extern crate std;

use alloc::vec::Vec;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use alloc::sync::Arc;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, ensure};
use millrace_machine::Thread;

use super::{bounded, holds_but_for, spawn};
use crate::bio::Op;
use crate::group::Groups;
use crate::group::config::{GroupConfig, GroupLimits};
use crate::group::gate::TokenBuckets;
use crate::group::view::GroupView;

/// Returns limits of 1,000 I/Os a second with a burst of 1 ms: one I/O.
fn limits() -> GroupLimits {
    GroupLimits { iops: Some(1_000), burst: Duration::from_millis(1), ..GroupLimits::default() }
}

fn pass_a_gate(times_ns: &'static [u64]) {
    let buckets = Arc::new(TokenBuckets::<Checked>::new(&limits(), 0));
    let due = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = times_ns
        .iter()
        .map(|now_ns| {
            let (buckets, due) = (Arc::clone(&buckets), Arc::clone(&due));
            spawn(move || {
                for _ in 0..2 {
                    let io = (2, Op::Read, 8);
                    let due_ns = buckets.at(io).reserve(*now_ns);
                    due.lock().unwrap_or_else(PoisonError::into_inner).push(due_ns);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| ensure(thread.join(), "a thread panicked"));
    let mut due = due.lock().unwrap_or_else(PoisonError::into_inner).clone();
    due.sort_unstable();
    let apart = due.windows(2).all(|pair| pair[1] - pair[0] >= 1_000_000);
    ensure(apart, "two I/Os were scheduled less than 1 ms apart");
    let last_ns = times_ns.iter().max().copied().unwrap_or(0);
    let late = due.iter().all(|due_ns| *due_ns < last_ns + 1_000_000 * due.len() as u64);
    ensure(late, "an I/O was scheduled too late");
}

#[test]
fn no_two_ios_get_one_time_at_a_gate() {
    let bugs = [Plant::GateLost];
    holds_but_for("gate, 2 threads", bounded(3), &bugs, || pass_a_gate(&[5_000_000, 5_000_000]));
    holds_but_for("gate, unlike clocks", bounded(3), &bugs, || {
        pass_a_gate(&[5_000_000, 5_500_000]);
    });
}

/// Checks that a thread notices a change of the group table. One thread sets a limit of the default
/// group. Another thread uses its own copy of the table, without the table's lock, and must find
/// the copy outdated.
fn look_while_it_changes() {
    let groups = Groups::<Checked>::new();
    let mut view = GroupView::new();
    view.renew(&groups);
    let changing = Arc::clone(&groups);
    let thread = spawn(move || {
        let config = GroupConfig { limits: limits(), ..GroupConfig::new("") };
        ensure(changing.set(crate::GroupId::DEFAULT, config).is_ok(), "refused");
    });
    let was_old = view.is_old(&groups);
    if was_old {
        view.renew(&groups);
        ensure(view.has_limits, "the thread saw the table's new version number, but the old table");
    }
    ensure(thread.join(), "the thread panicked");
    ensure(
        was_old || view.is_old(&groups),
        "the thread did not notice that the table of groups changed",
    );
}

#[test]
fn a_copy_of_the_table_is_old_once_it_has_changed() {
    holds_but_for("table of groups", bounded(3), &[], look_while_it_changes);
}
