//! `InFlight`: the requests that a driver has from one hardware queue, and since when.
//!
//! Part of what the serve lock protects. A request is lent to the driver by its handle, and only a
//! request that was lent can come back: a driver that names any other tag is stopped by an
//! assertion. Kernel counterpart: `MQ_RQ_IN_FLIGHT` and `rq->io_start_time_ns`.
#![allow(unsafe_code)]

use alloc::boxed::Box;

use millrace_machine::{Machine, RunningClock};

use crate::queue::driver::CompletionBatch;
use crate::queue::request::{Request, RequestRef, Tag};
use crate::queue::tag::TagSet;

/// Requests that the driver has from one queue.
pub(crate) struct InFlight {
    /// When each tag was handed over; 0: not in flight here.
    issued_ns: Box<[u64]>,
    count: u32,
    /// From the first look on.
    clock: Option<RunningClock>,
}

/// When a tag was handed over, as `issued_ns` keeps it: never 0, and off by a nanosecond at most.
#[inline(always)]
fn stamp(now_ns: u64) -> u64 {
    now_ns | 1
}

impl InFlight {
    /// Nothing, of a queue with so many tags.
    pub(crate) fn new(depth: usize) -> Self {
        let issued_ns = alloc::vec![0; depth].into_boxed_slice();
        InFlight { issued_ns, count: 0, clock: None }
    }

    /// How many there are.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The driver has taken a request; it comes back by its tag.
    #[inline(always)]
    pub(crate) fn lend<M: Machine>(&mut self, rq: RequestRef<M>, now_ns: u64) {
        self.issued_ns[rq.tag().0 as usize] = stamp(now_ns);
        self.count += 1;
        core::mem::forget(rq);
    }

    /// Takes back what a driver has named, so that the requests can be taken out of the batch.
    ///
    /// # Panics
    /// If a tag is not in flight here; `drive` is for the message.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, batch: &mut CompletionBatch, drive: &str) {
        for (tag, _) in batch.entries() {
            let issued = &mut self.issued_ns[tag.0 as usize];
            assert!(*issued != 0, "{drive}: driver completed idle tag {}", tag.0);
            *issued = 0;
        }
        self.count -= batch.entries().len() as u32;
        batch.set_checked();
    }

    /// A request that the driver has, for the clock's and the recorder's looks.
    pub(crate) fn lent<'a, M: Machine>(
        &'a mut self,
        tags: &'a TagSet<M>,
        tag: Tag,
    ) -> Option<&'a mut Request<M>> {
        if self.issued_ns[tag.0 as usize] == 0 {
            return None;
        }
        // SAFETY: lent by its only handle, so only the driver has it, which does no more than read
        // it; and borrowed from here as long as this reference lives.
        Some(unsafe { tags.lent(tag) })
    }

    /// Looks at the time; looks come every `period_ns` while requests are in flight. A pause, in
    /// which nobody looked, counts against no request; true if there was one.
    pub(crate) fn look(&mut self, now_ns: u64, period_ns: u64) -> bool {
        // A look may be missed while somebody else serves the queue.
        let due_ns = 2 * period_ns;
        let issued_ns = &self.issued_ns;
        let clock = self.clock.get_or_insert_with(|| {
            // The first look is due from the first request on: a pause may have come before it.
            let first = issued_ns.iter().copied().filter(|issued| *issued != 0).min();
            let mut clock = RunningClock::new();
            clock.look(first.unwrap_or(now_ns), due_ns);
            clock
        });
        let pause_ns = clock.look(now_ns, due_ns);
        if pause_ns > 0 {
            for issued in self.issued_ns.iter_mut().filter(|issued| **issued != 0) {
                *issued = stamp(issued.saturating_add(pause_ns).min(now_ns));
            }
        }
        pause_ns > 0
    }

    /// The first tag from `from` on that was handed over at `now_ns` less `timeout_ns` or before.
    pub(crate) fn next_overdue(&self, from: u32, now_ns: u64, timeout_ns: u64) -> Option<Tag> {
        let is_overdue = |issued: u64| issued != 0 && now_ns.saturating_sub(issued) >= timeout_ns;
        let rest = self.issued_ns.get(from as usize..)?;
        let place = rest.iter().position(|issued| is_overdue(*issued))?;
        Some(Tag(from + place as u32))
    }

    /// Starts the time of a request anew.
    pub(crate) fn restart(&mut self, tag: Tag, now_ns: u64) {
        self.issued_ns[tag.0 as usize] = stamp(now_ns);
    }

    /// Counts requests that no driver has.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, count: u32) {
        self.count = count;
    }
}
