//! `raw`: bios go straight to the driver's queue, and submitters wait while that queue is busy.
//!
//! The design measures the cost of the block layer without its queues (Bjorling et al., SYSTOR
//! 2013). Bios are not merged or sorted. No thread serves another thread's I/O, except for the
//! owner of an `OwnerOnly` queue, to which other threads leave their bios. In the simulator,
//! insertion and dispatch cost nothing, unlike in the multi-queue design. Called by `QueueContext`.
//! Kernel counterpart: a driver with `submit_bio` of its own.

use millrace_machine::Machine;

use crate::chain::slot::BioList;
use crate::disk::baseline::stack::BaselineStack;
use crate::disk::queue_context::QueueContext;
use crate::disk::{DiskConfig, SubmitPath, dispatch, queues};
use crate::queue::HardwareQueue;

pub(crate) struct RawStack;

impl<M: Machine> BaselineStack<M> for RawStack {
    fn submit_path(&self, config: &DiskConfig<M>, first: &HardwareQueue<M>) -> SubmitPath {
        queues::bypass(config, first)
    }

    fn submit(&self, context: &mut QueueContext<'_, M>, ctx: u16, list: &mut BioList<M>) {
        context.trace().begin_insert(list);
        match context.may_serve() {
            true => {
                let serving = context.hctx.serve.enter();
                dispatch::submit_inside(context, ctx, serving, list);
            }
            false => dispatch::leave_to_others(context, ctx, list),
        }
    }
}
