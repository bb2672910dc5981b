//! Outcomes that belong to no request in flight.
#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;

use super::*;
use crate::rbd::RbdDriver;
use crate::rbd::tests::fake;

/// A queue of four tags, and its drive.
fn queue(pool: &str) -> (RbdQueue, RbdDriver) {
    let (_fake, driver) = fake::drive(pool, |_| ());
    let wake: OwnedFd = std::fs::File::create("/dev/null").unwrap().into();
    (RbdQueue::new(Arc::clone(&driver.shared), Arc::new(wake), 4), driver)
}

fn poll(queue: &mut RbdQueue) -> Vec<(Tag, Status)> {
    let mut batch = CompletionBatch::new();
    queue.poll(&mut batch);
    batch.entries().to_vec()
}

#[test]
fn outcomes_of_free_unknown_or_reused_tags_are_dropped() {
    let (mut queue, _drive) = queue("unknown");
    queue.flights[1] = RbdFlight { completion: 0x1000, len: 512, ..RbdFlight::new() };
    queue.in_flight = 1;
    for (tag, completion) in [(0, 0x1000), (0, 0), (1, 0x2000), (1, 0), (4, 1), (u32::MAX, 1)] {
        queue.inbox.push(QueueOutcome { tag, completion, result: 0 });
    }
    assert_eq!((poll(&mut queue), queue.in_flight), (vec![], 1));
    queue.inbox.push(QueueOutcome { tag: 1, completion: 0x1000, result: 0 });
    queue.inbox.push(QueueOutcome { tag: 1, completion: 0x1000, result: 0 });
    assert_eq!((poll(&mut queue), queue.in_flight), (vec![(Tag(1), Status::Ok)], 0));
}

#[test]
fn excess_outcomes_come_next_and_in_order() {
    let (mut queue, _drive) = queue("batches");
    for _ in 0..CompletionBatch::CAPACITY {
        queue.outcomes.end(Tag(0), Status::IoError);
    }
    queue.flights[2].completion = 5;
    queue.in_flight = 1;
    queue.inbox.push(QueueOutcome { tag: 2, completion: 5, result: 0 });
    assert_eq!(poll(&mut queue).len(), CompletionBatch::CAPACITY);
    assert_eq!(poll(&mut queue), [(Tag(2), Status::Ok)]);
    assert_eq!(poll(&mut queue), []);
}
