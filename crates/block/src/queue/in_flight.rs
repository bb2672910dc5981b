//! `InFlight`: the requests that a driver has from one hardware queue, with their dispatch times.
//!
//! The hardware queue's serve lock protects the table. `lend` records a request when the driver
//! accepts it, and `take_back` accepts only tags of recorded requests: an assertion stops a driver
//! that completes any other tag. Kernel counterpart: `MQ_RQ_IN_FLIGHT` and `rq->io_start_time_ns`.
#![allow(unsafe_code)]

use alloc::boxed::Box;

use millrace_machine::{Machine, RunningClock};

use crate::queue::driver::CompletionBatch;
use crate::queue::request::{Request, RequestRef, Tag};
use crate::queue::tag::TagSet;

pub(crate) struct InFlight {
    /// Dispatch time of each tag in nanoseconds; 0 if the tag is not in flight in this queue.
    issued_ns: Box<[u64]>,
    count: u32,
    /// Clock that stands still while the process is paused; made at the first timeout check.
    clock: Option<RunningClock>,
}

/// Returns `now_ns` with its lowest bit set, so that a dispatch time is never 0.
#[inline(always)]
fn stamp(now_ns: u64) -> u64 {
    now_ns | 1
}

impl InFlight {
    pub(crate) fn new(depth: usize) -> Self {
        let issued_ns = alloc::vec![0; depth].into_boxed_slice();
        InFlight { issued_ns, count: 0, clock: None }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Records that the driver has accepted a request, and forgets the request's handle.
    #[inline(always)]
    pub(crate) fn lend<M: Machine>(&mut self, rq: RequestRef<M>, now_ns: u64) {
        self.issued_ns[rq.tag().0 as usize] = stamp(now_ns);
        self.count += 1;
        core::mem::forget(rq);
    }

    /// Checks the tags that a driver has completed and marks them as no longer in flight, so that
    /// the requests can be taken out of the batch.
    ///
    /// # Panics
    /// If a tag is not in flight in this queue. The message names `drive`.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, batch: &mut CompletionBatch, drive: &str) {
        // A local reference lets the compiler keep the array's address in a register.
        let issued_ns = &mut *self.issued_ns;
        for (tag, _) in batch.entries() {
            let issued = &mut issued_ns[tag.0 as usize];
            assert!(
                *issued != 0,
                "drive {drive}: the driver completed tag {}, which is not in flight",
                tag.0
            );
            *issued = 0;
        }
        self.count -= batch.entries().len() as u32;
        batch.set_checked();
    }

    pub(crate) fn lent<'a, M: Machine>(
        &'a mut self,
        tags: &'a TagSet<M>,
        tag: Tag,
    ) -> Option<&'a mut Request<M>> {
        if self.issued_ns[tag.0 as usize] == 0 {
            return None;
        }
        // SAFETY: the only handle was lent to the driver, which only reads the request.
        Some(unsafe { tags.lent(tag) })
    }

    /// Checks if the process paused, as in a suspension, and excludes the pause from the requests'
    /// timeouts. Returns true after a pause. Called every `period_ns` while requests are in flight.
    pub(crate) fn look(&mut self, now_ns: u64, period_ns: u64) -> bool {
        // A check may be one period late, because a thread skips it while another thread serves the
        // queue. Only a longer delay counts as a pause of the process.
        let due_ns = 2 * period_ns;
        let issued_ns = &self.issued_ns;
        let clock = self.clock.get_or_insert_with(|| {
            // The clock is created at the first check. It starts at the oldest dispatch, to notice
            // a pause between that dispatch and the first check.
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

    pub(crate) fn next_overdue(&self, from: u32, now_ns: u64, timeout_ns: u64) -> Option<Tag> {
        let is_overdue = |issued: u64| issued != 0 && now_ns.saturating_sub(issued) >= timeout_ns;
        let rest = self.issued_ns.get(from as usize..)?;
        let place = rest.iter().position(|issued| is_overdue(*issued))?;
        Some(Tag(from + place as u32))
    }

    pub(crate) fn restart(&mut self, tag: Tag, now_ns: u64) {
        self.issued_ns[tag.0 as usize] = stamp(now_ns);
    }

    /// Sets the number of requests in flight, for tests that have no requests.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, count: u32) {
        self.count = count;
    }
}
