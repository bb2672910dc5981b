//! Submission of requests for the `per-volume` mode, in which requests get their tags in the plug.
//!
//! The channel's single plug for all drives (channel/baseline.rs) calls this code. The requests
//! bypass the software queue. They are dispatched before other waiting bios, like requests that the
//! driver returned as busy. Kernel counterpart: `blk_mq_insert_requests` of the 4.x series.

use millrace_machine::{Machine, Stage};

use crate::disk::queue_context::QueueContext;
use crate::queue::HctxState;
use crate::queue::request::RequestRef;
use crate::queue::serve::ServeGuard;
use crate::trace::blktrace::EventCode;

/// Queues requests that already have tags, and runs the queue. If the queue is frozen, takes no
/// request and returns false.
pub(crate) fn submit<M: Machine>(
    context: &mut QueueContext<'_, M>,
    requests: impl Iterator<Item = RequestRef<M>>,
) -> bool {
    let hctx = context.hctx;
    let mut serving = hctx.serve.enter();
    if serving.frozen {
        leave_to_others(context, serving);
        return false;
    }
    let (mut count, now_ns) = (0, M::now());
    for mut rq in requests {
        count += 1;
        rq.touch();
        rq.mark_inserted(now_ns);
        if context.is_traced() {
            context.trace().request(EventCode::Insert, &rq, M::now());
        }
        serving.requeued.push_back(rq);
    }
    M::work(Stage::Insert, count);
    leave_to_others(context, serving);
    true
}

fn leave_to_others<'a, M: Machine>(
    context: &mut QueueContext<'a, M>,
    serving: ServeGuard<'a, M, HctxState<M>>,
) {
    if context.may_serve() {
        return context.serve(serving);
    }
    // The result of `leave` tells if other threads have queued bios meanwhile. The result is not
    // used, because the owner, which is woken below in any case, serves their bios, too.
    context.hctx.leave(serving);
    context.hctx.mark_own();
    context.hctx.ring();
}
