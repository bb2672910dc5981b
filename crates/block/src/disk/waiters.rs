//! Queues that wait for tags: how they join the waiters, and how they are woken.
//!
//! dispatch.rs calls this code when it finds no tag, complete.rs when it frees tags. Waiting queues
//! are listed at the tag set in order of arrival. A thread that frees tags runs the first waiting
//! queue, perhaps of another disk, and then the next ones while tags are left. Work that the thread
//! does for another queue is counted in that queue's statistics. Kernel counterpart:
//! `blk_mq_mark_tag_wait`, `sbitmap_queue_wake_up`.

use alloc::sync::{Arc, Weak};
use core::any::Any;

use millrace_machine::Machine;

use crate::account::disk_counter::DiskCounter;
use crate::chain::bio_set::BioSet;
use crate::chain::slot::BioSlot;
use crate::disk::Disk;
use crate::disk::queue_context::QueueContext;
use crate::queue::tag::{TagBatch, TagUser, WaitingQueue};
use crate::trace::blktrace::EventCode;

impl<'a, M: Machine> QueueContext<'a, M> {
    /// Takes up to `want` tags. If no tag is free, adds the queue to the waiters of the tag set and
    /// tries once more. `want` is 0 if the driver has as many requests as it accepts.
    #[inline(always)]
    pub(crate) fn take_tags(&mut self, chain: &BioSlot<M>, want: u32) -> Option<TagBatch> {
        let tags = &self.hctx.tags;
        if want == 0 {
            self.stats.add(DiskCounter::TagWaits, 1);
            return None;
        }
        if !self.run.woken.is_empty() && self.owes_others() {
            // The free tag is for another queue, which was woken for it and has not run yet. So
            // this queue does not take the tag.
            self.join_waiters(chain);
            return None;
        }
        match tags.take(&mut self.run.hint, want) {
            Some(batch) => Some(batch),
            None => self.wait_for_tags(chain, want),
        }
    }

    /// Returns true if this thread has woken another hardware queue for a free tag, and has not run
    /// that queue yet. In that case, `self.hctx` must leave the tag to the other queue.
    #[cold]
    fn owes_others(&self) -> bool {
        let own = |(disk, hctx): &(Arc<Disk<M>>, u16)| {
            core::ptr::eq(&**disk, self.disk) && *hctx == self.hctx.number
        };
        !self.run.woken.iter().all(own)
    }

    /// Adds the queue to the list of queues that wait for a tag, unless it is in the list already.
    /// `chain`, the bio chain that needs the tag, is named in the trace event.
    #[cold]
    fn join_waiters(&mut self, chain: &BioSlot<M>) {
        let hctx = self.hctx;
        if hctx.start_waiting() {
            self.stats.add(DiskCounter::TagWaits, 1);
            self.trace().slot(EventCode::Sleep, chain);
            let drive = Weak::clone(&self.disk.this);
            hctx.tags.wait(WaitingQueue { drive, hctx: hctx.number });
        }
    }

    #[cold]
    fn wait_for_tags(&mut self, chain: &BioSlot<M>, want: u32) -> Option<TagBatch> {
        let hctx = self.hctx;
        self.join_waiters(chain);
        hctx.tags.take(&mut self.run.hint, want)
    }

    /// Runs the queues in `woken`, perhaps of other disks. While tags are left, wakes further
    /// waiting queues. These run later in the loop, not recursively, because thousands of waiting
    /// queues would overflow the stack.
    #[cold]
    pub(crate) fn run_woken(&mut self) {
        let Some(mut turn) = self.run.turn.take() else { return };
        while !self.run.woken.is_empty() {
            // `woken` is emptied before its queues run. Otherwise none of them would take a tag: a
            // queue takes no tag while `woken` holds another queue (`owes_others`).
            core::mem::swap(&mut self.run.woken, &mut turn);
            while let Some((disk, hctx)) = turn.pop() {
                let stats = self.run.stats_of(&disk, hctx);
                QueueContext::new(&disk, hctx, self.run, &stats).run_waiter();
            }
        }
        self.run.turn = Some(turn);
    }

    fn run_waiter(&mut self) {
        let hctx = self.hctx;
        hctx.mark_own();
        if !self.may_serve() {
            hctx.ring();
        } else if let Some(serving) = hctx.serve.enter_or_flag() {
            // The submitter of the first waiting bio chain may be asleep. Its doorbell is rung
            // below, so that the submitter wakes and polls for the chain's completion.
            let bell = serving.first_waiting().map(BioSet::bell_of);
            self.serve(serving);
            bell.into_iter().for_each(|bell| bell.ring());
        }
        if hctx.tags.has_free() {
            self.wake_waiter();
        }
    }

    #[inline(always)]
    pub(crate) fn wake_waiter(&mut self) {
        if self.hctx.tags.has_waiters() {
            self.wake_first_waiter();
        }
    }

    #[cold]
    fn wake_first_waiter(&mut self) {
        while let Some(waiter) = self.hctx.tags.wake_one() {
            let Some(drive) = waiter.drive.upgrade() else { continue };
            let drive: Arc<dyn Any + Send + Sync> = drive;
            if let Ok(disk) = drive.downcast::<Disk<M>>() {
                disk.queues.hctx(waiter.hctx).stop_waiting();
                let woken = &mut self.run.woken;
                // Completions may wake, again and again, the queue that this thread itself serves.
                // One run of that queue suffices, so it is not added to `woken` again.
                let is_last = |(last, hctx): &(Arc<Disk<M>>, u16)| {
                    Arc::ptr_eq(last, &disk) && *hctx == waiter.hctx
                };
                if !woken.last().is_some_and(is_last) {
                    woken.push((disk, waiter.hctx));
                }
                return;
            }
        }
    }
}

impl<M: Machine> TagUser for Disk<M> {
    fn look_for_tag(&self, hctx: u16) {
        let hctx = self.queues.hctx(hctx);
        hctx.stop_waiting();
        hctx.mark_own();
        hctx.ring();
    }
}
