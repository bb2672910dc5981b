//! `BaselineStack`: interface of alternative block-layer designs, such as a single request queue.
//!
//! A disk with such a design holds it as a trait object. The disk calls it only when the disk is
//! made, when a channel is opened, and at most twice in a batch. Called by `Disk`, `QueueContext`
//! and `VolumeMember`; implemented in the other files of this folder.

use millrace_machine::Machine;

use crate::chain::slot::BioList;
use crate::disk::baseline::lanes::QueueLanes;
use crate::disk::complete;
use crate::disk::queue_context::QueueContext;
use crate::disk::{DiskConfig, SubmitPath};
use crate::queue::{HardwareQueue, HctxState};

pub(crate) const NO_SCHEDULER: &str =
    "a scheduler requires stack = mq; set stack = mq, or scheduler = none";

/// A design of the block layer that a disk follows instead of multi-queue. By default, a design
/// dispatches and completes requests as multi-queue does.
pub(crate) trait BaselineStack<M: Machine>: Send + Sync {
    /// Takes a plug's bio chains and runs the queue. Chains that the disk refuses stay in `list`.
    fn submit(&self, context: &mut QueueContext<'_, M>, ctx: u16, list: &mut BioList<M>);

    fn dispatch(
        &self,
        context: &mut QueueContext<'_, M>,
        serve: &mut HctxState<M>,
        now_ns: u64,
    ) -> u32 {
        context.dispatch_staged(serve, now_ns)
    }

    /// Ends all requests of the completion batch. Returns true if the queue has new work (a flush).
    fn complete(&self, context: &mut QueueContext<'_, M>) -> bool {
        complete::end_batch(context)
    }

    fn refuses_scheduler(&self) -> &'static str {
        NO_SCHEDULER
    }

    fn submit_path(&self, _config: &DiskConfig<M>, _first: &HardwareQueue<M>) -> SubmitPath {
        SubmitPath::Queues
    }

    fn lanes(&self) -> Option<&QueueLanes> {
        None
    }

    fn merges_in_plug(&self) -> bool {
        false
    }

    /// Returns true if the design has two levels of queues, as multi-queue has. Simulations then
    /// charge the costs of multi-queue for insertion and dispatch.
    fn has_two_levels(&self) -> bool {
        false
    }

    /// Returns true if a bio leaves the plug (trace event U) before it gets its request (G).
    fn gets_request_late(&self) -> bool {
        false
    }

    fn freeze(&self) {}

    fn unfreeze(&self) {}

    fn is_empty(&self) -> bool {
        true
    }

    /// Empties queues that only this design has. Returns their bio chains (bios merged into one
    /// future request), and frees the chains' tags in the tag set of `hctx`.
    fn take_waiting(&self, _hctx: &HardwareQueue<M>) -> BioList<M> {
        BioList::new()
    }

    /// Subtracts one from the design's count of requests in flight, if it keeps one. Called when a
    /// hardware queue is closed, for each request in `HctxState::requeued` except flushes, such as
    /// one that the driver had refused. Such a request was counted before the driver refused it.
    fn forget_issued(&self) {}

    fn leak(&self) {}
}
