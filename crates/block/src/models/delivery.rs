//! Model of completion delivery: threads hand completed bios to the channel's sleeping thread.
//!
//! Production code: `BioSet::deliver_to`, `take_delivered`, `has_delivered`, and the `Doorbell`.
//! Checked: each bio arrives with the data written to it, and the sleeper wakes.
#![cfg(test)]

use alloc::sync::Arc;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedParker, Explorer, ensure};
use millrace_machine::{Doorbell, Parker, Thread};

use super::{bounded, holds_but_for, spawn};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::BioList;

fn deliver(lists: &[usize]) {
    let total: usize = lists.iter().sum();
    let bell = Arc::new(Doorbell::<Checked>::new(CheckedParker::new()));
    let bio_set = Arc::new(BioSet::new(total, bell));
    let mut first = 0;
    let mut threads = alloc::vec::Vec::new();
    for len in lists {
        let mut list = bio_set.handles(first..first + len);
        first += len;
        let theirs = Arc::clone(&bio_set);
        threads.push(spawn(move || {
            let mut done = BioList::new();
            while let Some(mut bio) = list.pop_front() {
                bio.touch();
                bio.dev_sector = 7;
                done.push_back(bio);
            }
            BioSet::deliver_to(&raw const **theirs, done);
        }));
    }
    let mut got = BioList::new();
    while got.len() < total as u32 {
        got.append(&mut bio_set.take_delivered());
        if got.len() < total as u32 {
            bio_set.bell.sleep_unless(None, || bio_set.has_delivered());
        }
    }
    got.for_each(|bio| ensure(bio.dev_sector == 7, "the bio came back with old data"));
    got.unlink();
    threads.into_iter().for_each(|thread| ensure(thread.join(), "a thread failed"));
}

#[test]
fn delivered_bios_arrive_whole_and_wake_the_sleeper() {
    let bugs = [
        Plant::DeliverRelaxed,
        Plant::TakeDeliveredRelaxed,
        Plant::ArmUnordered,
        Plant::RingUnordered,
        Plant::LastLookSkipped,
    ];
    holds_but_for("delivery, 1 thread", Explorer::new().exhaustive(), &bugs, || deliver(&[2]));
    holds_but_for("delivery, 2 threads", bounded(3), &bugs, || {
        deliver(&[1, 1]);
    });
}
