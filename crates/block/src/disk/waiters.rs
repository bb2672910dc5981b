//! Queues that wait for tags: who joins, who is next, and whose turn it is.
//!
//! Part of `Disk`, between dispatch.rs, which finds no tag, and complete.rs, which gives some back.
//! Waiters queue up at the tag set, first come first served; who gave tags back runs the first of
//! them, perhaps of another disk, and passes the wake on while tags are left. What it does for
//! others is counted as theirs. Kernel counterpart: `blk_mq_mark_tag_wait`,
//! `sbitmap_queue_wake_up`.

use alloc::sync::{Arc, Weak};
use core::any::Any;

use millrace_machine::plant::{Plant, planted};
use millrace_machine::{Counter, Machine};

use crate::account::DiskStats;
use crate::account::ledger::Entry;
use crate::chain::home::Home;
use crate::chain::slot::Slot;
use crate::disk::Disk;
use crate::disk::runner::{OtherStats, Runner};
use crate::queue::HardwareQueue;
use crate::queue::tag::{TagBatch, TagUser, Waiter};
use crate::trace::Action;

impl<M: Machine> Disk<M> {
    /// Tags for what is in hand; without any, joins those who wait and looks once more.
    #[inline(always)]
    pub(crate) fn take_tags(
        &self,
        index: u16,
        chain: &Slot<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
        want: u32,
    ) -> Option<TagBatch> {
        let tags = &self.hctxs[usize::from(index)].tags;
        if !run.woken.is_empty() && self.owes_others(index, run) {
            // This thread owes a waiter its turn: queues up behind it.
            self.join_waiters(index, chain, run, stats);
            return None;
        }
        match tags.take(&mut run.hint, want) {
            Some(batch) => Some(batch),
            None => self.wait_for_tags(index, chain, run, stats, want),
        }
    }

    /// Whether somebody else than this queue got a tag that it waited for. What this queue gave
    /// back to itself is its own: were it to wait for that, others who pass the wake on could keep
    /// it here for ever, by their flags.
    #[cold]
    fn owes_others(&self, index: u16, run: &Runner<M>) -> bool {
        run.woken.iter().any(|(disk, hctx)| !core::ptr::eq(&**disk, self) || *hctx != index)
    }

    /// The queue waits for a tag, if it did not already: from now on, and for this chain first.
    #[cold]
    fn join_waiters(&self, index: u16, chain: &Slot<M>, run: &mut Runner<M>, stats: &DiskStats<M>) {
        let hctx = &self.hctxs[usize::from(index)];
        if hctx.start_waiting() {
            stats.tag_waits.add(1);
            self.trace_slot(Action::Sleep, chain, run);
            let drive = Weak::clone(&self.this);
            hctx.tags.wait(Waiter { drive, hctx: index });
        }
    }

    #[cold]
    fn wait_for_tags(
        &self,
        index: u16,
        chain: &Slot<M>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
        want: u32,
    ) -> Option<TagBatch> {
        let hctx = &self.hctxs[usize::from(index)];
        self.join_waiters(index, chain, run, stats);
        if planted(Plant::SecondTakeSkipped) {
            return None;
        }
        hctx.tags.take(&mut run.hint, want)
    }

    /// Runs queues that got the tags they waited for, perhaps of other disks, and passes the wake
    /// on while tags are left. Queues woken on the way come next, and not inside: waiters by the
    /// thousand, each woken by the one before, must not pile up on the stack.
    #[cold]
    pub(crate) fn run_woken(&self, run: &mut Runner<M>) {
        let Some(mut turn) = run.turn.take() else { return };
        while !run.woken.is_empty() {
            // Set apart, so that whoever's turn it is does not queue up behind itself.
            core::mem::swap(&mut run.woken, &mut turn);
            while let Some((disk, hctx)) = turn.pop() {
                disk.run_waiter(hctx, run);
            }
        }
        run.turn = Some(turn);
    }

    /// This thread's account of a queue that is not its own: of this disk, or of one that has tags
    /// in common with its own.
    #[cold]
    pub(crate) fn stats_of(&self, hctx: u16, run: &mut Runner<M>) -> Arc<DiskStats<M>> {
        let is_it = |other: &&OtherStats<M>| {
            core::ptr::eq(other.disk.as_ptr(), self) && other.stats.key() == hctx
        };
        if let Some(other) = run.accounts.others.iter().find(is_it) {
            return Arc::clone(&other.stats);
        }
        run.accounts.others.retain(|other| other.disk.strong_count() > 0);
        let stats = self.new_stats(hctx);
        let disk = Weak::clone(&self.this);
        run.accounts.others.push(OtherStats { disk, stats: Arc::clone(&stats) });
        stats
    }

    /// It is the turn of a queue that waited for a tag.
    fn run_waiter(&self, hctx: u16, run: &mut Runner<M>) {
        let queue = &self.hctxs[usize::from(hctx)];
        queue.mark_pending(self.a_ctx_of(hctx));
        if !self.may_serve(queue, run) {
            queue.ring();
        } else if let Some(serving) = queue.serve.enter_or_flag() {
            // Who waits for these will look for their completion; it may sleep, and knows of none.
            let bell = serving.staged.first().map(Home::bell_of);
            let stats = self.stats_of(hctx, run);
            self.serve(hctx, serving, run, &stats);
            bell.into_iter().for_each(|bell| bell.ring());
        }
        if queue.tags.has_free() {
            self.wake_waiter(queue, run);
        }
    }

    /// After tags were given back: the first queue that waits for some is to be run.
    #[inline(always)]
    pub(crate) fn wake_waiter(&self, hctx: &HardwareQueue<M>, run: &mut Runner<M>) {
        if hctx.tags.has_waiters() {
            self.wake_first_waiter(hctx, run);
        }
    }

    #[cold]
    fn wake_first_waiter(&self, hctx: &HardwareQueue<M>, run: &mut Runner<M>) {
        while let Some(waiter) = hctx.tags.wake_one() {
            let Some(drive) = waiter.drive.upgrade() else { continue };
            let drive: Arc<dyn Any + Send + Sync> = drive;
            if let Ok(disk) = drive.downcast::<Disk<M>>() {
                disk.hctxs[usize::from(waiter.hctx)].stop_waiting();
                run.woken.push((disk, waiter.hctx));
                return;
            }
        }
    }
}

impl<M: Machine> TagUser for Disk<M> {
    fn look_for_tag(&self, index: u16) {
        let hctx = &self.hctxs[usize::from(index)];
        hctx.stop_waiting();
        hctx.mark_pending(self.a_ctx_of(index));
        hctx.ring();
    }
}
