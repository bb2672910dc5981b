//! Models of a ring between driver and device for the model checker. If driver or device reads an
//! index, it must also see everything that was written before that index. No kick or interrupt may
//! be lost, even if the index wraps.
//!
//! The model of the device calls the production code of ring.rs, in the same order as io_thread.rs
//! and waiting.rs. The model of the driver is written in this file, after virtio 1.2, section
//! 2.7.13. Driver and device sleep without a deadline, so a lost wake-up leaves the model stuck.

use std::sync::Arc;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedLine, CheckedParker, CheckedWord, Explorer, ensure};
use millrace_machine::{Line, Machine, Order, Parker, Thread, Word};

use super::{RingFeatures, RingParts, RingWords, SplitRing};
use crate::vhost::models::{holds_but_for, spawn};
use crate::virtio::{NO_INTERRUPT, NO_NOTIFY};

const SIZE: u16 = 2;
/// Initial index, chosen so that it wraps with the second request.
const BASE: u16 = u16::MAX;

struct Shared {
    avail_flags: CheckedWord,
    avail_idx: CheckedWord,
    heads: [CheckedWord; SIZE as usize],
    used_event: CheckedWord,
    used_flags: CheckedWord,
    used_idx: CheckedWord,
    avail_event: CheckedWord,
    requests: [CheckedLine<()>; SIZE as usize],
    answers: [CheckedLine<()>; SIZE as usize],
    kick: CheckedParker,
    call: CheckedParker,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let word = |value: u16| CheckedWord::new(value.into());
        let lines = || [(), ()].map(CheckedLine::new);
        Arc::new(Shared {
            avail_flags: word(0),
            avail_idx: word(BASE),
            heads: [word(0), word(0)],
            used_event: word(BASE),
            used_flags: word(0),
            used_idx: word(BASE),
            avail_event: word(BASE),
            requests: lines(),
            answers: lines(),
            kick: CheckedParker::new(),
            call: CheckedParker::new(),
        })
    }
}

const USED_EVENT: usize = 2 + SIZE as usize;
const AVAIL_EVENT: usize = 2 + 4 * SIZE as usize;

impl RingWords for Arc<Shared> {
    type Machine = Checked;

    fn avail(&self, index: usize, order: Order) -> u16 {
        let word = match index {
            0 => &self.avail_flags,
            1 => &self.avail_idx,
            USED_EVENT => &self.used_event,
            _ => &self.heads[index - 2],
        };
        word.load(order) as u16
    }

    fn set_used(&self, index: usize, value: u16, order: Order) {
        let word = match index {
            0 => &self.used_flags,
            1 => &self.used_idx,
            _ => {
                ensure(index == AVAIL_EVENT, "no such word");
                &self.avail_event
            }
        };
        word.store(value.into(), order);
    }

    fn put(&self, place: u16, _head: u32, _len: u32) {
        self.answers[usize::from(place)].write();
    }
}

fn device(shared: Arc<Shared>, features: RingFeatures, mut left: u16) {
    let areas = Arc::clone(&shared);
    let mut ring =
        SplitRing::over(RingParts { areas, size: SIZE, features, taken: BASE, used: BASE });
    ring.suppress_kicks();
    loop {
        ensure(ring.available().is_ok(), "an index that cannot be");
        while let Ok(Some(head)) = ring.take() {
            // Models the device's access to the request and its data.
            shared.requests[usize::from(head)].write();
            ring.put(head, 1);
            left -= 1;
        }
        if ring.unpublished() > 0 {
            let before = ring.published();
            ring.publish();
            if ring.wants_interrupt(before) {
                shared.call.unpark();
            }
        }
        if left == 0 {
            return;
        }
        if !ring.request_kick() {
            shared.kick.park(None);
        }
        ring.suppress_kicks();
    }
}

struct Driver {
    shared: Arc<Shared>,
    event_idx: bool,
    added: u16,
    seen: u16,
}

impl Driver {
    fn add(&mut self) {
        let (shared, old) = (&self.shared, self.added);
        let head = old % SIZE;
        shared.requests[usize::from(head)].write();
        shared.heads[usize::from(old % SIZE)].store(head.into(), Order::Relaxed);
        self.added = old.wrapping_add(1);
        shared.avail_idx.store(self.added.into(), Order::Release);
        Checked::fence(Order::SeqCst);
        let wanted = match self.event_idx {
            // Exactly one head was added, so the device wants a kick if avail_event equals that
            // head's index.
            true => shared.avail_event.load(Order::Relaxed) == u64::from(old),
            false => shared.used_flags.load(Order::Relaxed) & u64::from(NO_NOTIFY) == 0,
        };
        if wanted {
            shared.kick.unpark();
        }
    }

    fn take_answers(&mut self) -> bool {
        let used = self.shared.used_idx.load(Order::Acquire) as u16;
        let came = used != self.seen;
        while self.seen != used {
            self.shared.answers[usize::from(self.seen % SIZE)].read();
            self.shared.requests[usize::from(self.seen % SIZE)].write();
            self.seen = self.seen.wrapping_add(1);
        }
        came
    }

    fn ask_for_interrupts(&self) {
        match self.event_idx {
            true => self.shared.used_event.store(self.seen.into(), Order::Relaxed),
            false => self.shared.avail_flags.store(0, Order::Relaxed),
        }
        Checked::fence(Order::SeqCst);
    }

    fn refuse_interrupts(&self) {
        if !self.event_idx {
            self.shared.avail_flags.store(NO_INTERRUPT.into(), Order::Relaxed);
        }
        Checked::fence(Order::SeqCst);
    }

    fn wait(&mut self) {
        while !self.take_answers() {
            self.ask_for_interrupts();
            if !self.take_answers() {
                self.shared.call.park(None);
                self.refuse_interrupts();
                continue;
            }
            self.refuse_interrupts();
            return;
        }
    }
}

fn two_requests(features: RingFeatures, depth: u16) {
    let (shared, event_idx) = (Shared::new(), features.event_idx);
    let theirs = Arc::clone(&shared);
    let served = spawn(move || device(theirs, features, 2));
    let mut driver = Driver { shared, event_idx, added: BASE, seen: BASE };
    let mut sent = 0;
    while driver.seen != BASE.wrapping_add(2) {
        while sent < 2 && driver.added.wrapping_sub(driver.seen) < depth {
            driver.add();
            sent += 1;
        }
        driver.wait();
    }
    ensure(served.join(), "the device ends");
}

#[test]
fn kicks_and_interrupts_are_not_lost_and_writes_are_seen() {
    let bugs = [
        Plant::AvailRelaxed,
        Plant::PublishRelaxed,
        Plant::KickUnordered,
        Plant::KickLookSkipped,
        Plant::InterruptUnordered,
    ];
    for (event_idx, depth) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let name = format!("ring, event_idx {event_idx}, depth {depth}");
        let bound = if cfg!(debug_assertions) { 2 } else { 3 };
        let explorer = Explorer::new().preemptions(bound);
        let features = RingFeatures { event_idx, indirect: false };
        holds_but_for(&name, explorer, &bugs, || two_requests(features, depth));
    }
}
