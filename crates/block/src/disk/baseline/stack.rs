//! `BaselineStack`: the seam between the steps of an I/O and a design that is measured against.
//!
//! A disk that follows such a design holds it as a trait object, and asks it where designs differ:
//! when the disk is made, when a channel is opened, and at most twice in a batch. Called by `Disk`,
//! `Visit` and `Member`; implemented by the files beside.

use millrace_machine::Machine;

use crate::chain::slot::BioList;
use crate::disk::baseline::lanes::Lanes;
use crate::disk::complete;
use crate::disk::visit::Visit;
use crate::disk::{DiskConfig, SubmitPath};
use crate::queue::{HardwareQueue, Serve};

/// Why a drive that does not follow `mq` takes no scheduler, and what to do.
pub(crate) const NO_SCHEDULER: &str =
    "only the stack mq takes a scheduler; set stack to mq, or scheduler to none";

/// A design that a disk follows instead of the multi-queue one. Steps that a design does not define
/// are those of the multi-queue design.
pub(crate) trait BaselineStack<M: Machine>: Send + Sync {
    /// Takes a batch of chains from a plug into the layer and runs the queue; what is refused stays
    /// in the list.
    fn submit(&self, visit: &mut Visit<'_, M>, ctx: u16, list: &mut BioList<M>);

    /// Hands what waits to the driver; how many requests that were.
    fn dispatch(&self, visit: &mut Visit<'_, M>, serve: &mut Serve<M>, now_ns: u64) -> u32 {
        visit.dispatch_staged(serve, now_ns)
    }

    /// Ends all requests of the visitor's completion batch; true if that put new work into the
    /// queue.
    fn complete(&self, visit: &mut Visit<'_, M>) -> bool {
        complete::end_batch(visit)
    }

    /// Why the drive takes no scheduler, and what to do.
    fn refuses_scheduler(&self) -> &'static str {
        NO_SCHEDULER
    }

    /// The way of batches to the driver of a disk whose first hardware queue is this one.
    fn submit_path(&self, _config: &DiskConfig<M>, _first: &HardwareQueue<M>) -> SubmitPath {
        SubmitPath::Queues
    }

    /// The lanes that the disk's hardware queues are, if they are.
    fn lanes(&self) -> Option<&Lanes> {
        None
    }

    /// True if a submitter's plug merges.
    fn merges_in_plug(&self) -> bool {
        false
    }

    /// True if insertion and dispatch of a batch cost what they cost in the multi-queue design.
    fn has_two_levels(&self) -> bool {
        false
    }

    /// True if a bio gets its request behind the plug: G follows U.
    fn gets_request_late(&self) -> bool {
        false
    }

    /// Takes nothing new from now on.
    fn freeze(&self) {}

    /// Takes bios again.
    fn unfreeze(&self) {}

    /// True if nothing waits in queues of the design's own.
    fn is_empty(&self) -> bool {
        true
    }

    /// Takes out what waits in queues of the design's own, and gives its tags back to `hctx`.
    fn take_waiting(&self, _hctx: &HardwareQueue<M>) -> BioList<M> {
        BioList::new()
    }

    /// A request that waited to be offered to the driver again is taken apart instead.
    fn forget_issued(&self) {}

    /// Forgets what waits: it belongs to sets that were leaked.
    fn leak(&self) {}
}
