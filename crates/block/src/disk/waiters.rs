//! Queues that wait for tags: who joins, who is next, and whose turn it is.
//!
//! Steps of a `Visit` between dispatch.rs, which finds no tag, and complete.rs, which gives some
//! back. Waiters queue up at the tag set, first come first served; a thread that gave tags back
//! runs the first of them, perhaps of another disk, and passes the wake on while tags are left.
//! What the thread does for others is counted as theirs. Kernel counterpart:
//! `blk_mq_mark_tag_wait`, `sbitmap_queue_wake_up`.

use alloc::sync::{Arc, Weak};
use core::any::Any;

use millrace_machine::Machine;

use crate::account::disk_counter::DiskCounter;
use crate::chain::bio_set::BioSet;
use crate::chain::slot::Slot;
use crate::disk::Disk;
use crate::disk::visit::Visit;
use crate::queue::tag::{TagBatch, TagUser, Waiter};
use crate::trace::Action;

impl<'a, M: Machine> Visit<'a, M> {
    /// Tags for what is in hand; without any, joins those who wait and looks once more.
    #[inline(always)]
    pub(crate) fn take_tags(&mut self, chain: &Slot<M>, want: u32) -> Option<TagBatch> {
        let tags = &self.hctx.tags;
        if !self.run.woken.is_empty() && self.owes_others() {
            // This thread owes a waiter its turn: queues up behind it.
            self.join_waiters(chain);
            return None;
        }
        match tags.take(&mut self.run.hint, want) {
            Some(batch) => Some(batch),
            None => self.wait_for_tags(chain, want),
        }
    }

    /// Whether somebody else than this queue got a tag that it waited for. What this queue gave
    /// back to itself is its own: were it to wait for that, others who pass the wake on could keep
    /// it here for ever, by their flags.
    #[cold]
    fn owes_others(&self) -> bool {
        let own = |(disk, hctx): &(Arc<Disk<M>>, u16)| {
            core::ptr::eq(&**disk, self.disk) && *hctx == self.hctx.number
        };
        !self.run.woken.iter().all(own)
    }

    /// The queue waits for a tag, if it did not already: from now on, and for this chain first.
    #[cold]
    fn join_waiters(&mut self, chain: &Slot<M>) {
        let hctx = self.hctx;
        if hctx.start_waiting() {
            self.stats.add(DiskCounter::TagWaits, 1);
            self.trace().slot(Action::Sleep, chain);
            let drive = Weak::clone(&self.disk.this);
            hctx.tags.wait(Waiter { drive, hctx: hctx.number });
        }
    }

    #[cold]
    fn wait_for_tags(&mut self, chain: &Slot<M>, want: u32) -> Option<TagBatch> {
        let hctx = self.hctx;
        self.join_waiters(chain);
        hctx.tags.take(&mut self.run.hint, want)
    }

    /// Runs queues that got the tags they waited for, perhaps of other disks, and passes the wake
    /// on while tags are left. Queues woken on the way come next, and not inside: waiters by the
    /// thousand, each woken by the one before, must not pile up on the stack.
    #[cold]
    pub(crate) fn run_woken(&mut self) {
        let Some(mut turn) = self.run.turn.take() else { return };
        while !self.run.woken.is_empty() {
            // Set apart, so that whoever's turn it is does not queue up behind itself.
            core::mem::swap(&mut self.run.woken, &mut turn);
            while let Some((disk, hctx)) = turn.pop() {
                let stats = self.run.stats_of(&disk, hctx);
                Visit::new(&disk, hctx, self.run, &stats).run_waiter();
            }
        }
        self.run.turn = Some(turn);
    }

    /// It is the turn of this queue, which waited for a tag.
    fn run_waiter(&mut self) {
        let hctx = self.hctx;
        hctx.mark_own();
        if !self.may_serve() {
            hctx.ring();
        } else if let Some(serving) = hctx.serve.enter_or_flag() {
            // Whoever waits for these will look for their completion; it may sleep, and knows of
            // none.
            let bell = serving.first_waiting().map(BioSet::bell_of);
            self.serve(serving);
            bell.into_iter().for_each(|bell| bell.ring());
        }
        if hctx.tags.has_free() {
            self.wake_waiter();
        }
    }

    /// After tags were given back: the first queue that waits for some is to be run.
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
                disk.queues.hctxs()[usize::from(waiter.hctx)].stop_waiting();
                let woken = &mut self.run.woken;
                // A queue that waits again while its own completions end is woken with each round,
                // and run once.
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
        let hctx = &self.queues.hctxs()[usize::from(hctx)];
        hctx.stop_waiting();
        hctx.mark_own();
        hctx.ring();
    }
}
