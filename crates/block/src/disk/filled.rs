//! Requests that got their tags while they were plugged: the way in of the `per-volume` mode.
//!
//! Part of `Disk`; called by the channel's one list for all drives (channel/volume_plug.rs). Such
//! requests go where those go that the driver gave back as busy: first, and past the software
//! queue. Kernel counterpart: `blk_mq_insert_requests` of the 4.x series.
#![allow(unsafe_code)]

use millrace_machine::{Machine, Stage};

use crate::account::DiskStats;
use crate::disk::Disk;
use crate::disk::runner::Runner;
use crate::queue::Serve;
use crate::queue::request::Tag;
use crate::queue::serve::Serving;
use crate::trace::Action;

impl<M: Machine> Disk<M> {
    /// Takes filled requests and runs the queue; false, and nothing taken, if it is frozen.
    pub(crate) fn submit_filled(
        &self,
        index: u16,
        tags: impl Iterator<Item = Tag>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) -> bool {
        let hctx = &self.hctxs[usize::from(index)];
        let mut serving = hctx.serve.enter();
        if serving.frozen {
            self.leave_to_others(index, serving, run, stats);
            return false;
        }
        let (mut count, now_ns) = (0, M::now());
        for tag in tags {
            count += 1;
            // SAFETY: filled by the caller, and in nobody else's hands.
            let rq = unsafe { hctx.tags.request(tag) };
            rq.mark_inserted(now_ns);
            if self.is_traced(run) {
                self.trace_request(Action::Insert, rq, M::now(), run);
            }
            serving.requeued.push_back(tag);
        }
        M::work(Stage::Insert, count);
        self.leave_to_others(index, serving, run, stats);
        true
    }

    /// Serves a queue that was entered, or leaves it to its owner.
    fn leave_to_others<'a>(
        &'a self,
        index: u16,
        serving: Serving<'a, M, Serve<M>>,
        run: &mut Runner<M>,
        stats: &DiskStats<M>,
    ) {
        let hctx = &self.hctxs[usize::from(index)];
        if self.may_serve(hctx, run) {
            return self.serve(index, serving, run, stats);
        }
        // A flag that somebody left meanwhile stands for work that is marked: the owner sees it.
        let mut inside = Some(serving);
        while let Some(serving) = inside.take() {
            inside = serving.leave();
        }
        hctx.mark_pending(self.a_ctx_of(index));
        hctx.ring();
    }
}
