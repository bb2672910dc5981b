//! Requests that got their tags while they were plugged: the way in of the `per-volume` mode.
//!
//! Called by the channel's one list for all drives (channel/baseline/volume_plug.rs). Such
//! requests go where those go that the driver gave back as busy: first, and past the software
//! queue. Kernel counterpart: `blk_mq_insert_requests` of the 4.x series.

use millrace_machine::{Machine, Stage};

use crate::disk::visit::Visit;
use crate::queue::Serve;
use crate::queue::request::RequestRef;
use crate::queue::serve::ServeGuard;
use crate::trace::Action;

/// Takes filled requests and runs the queue; false, and nothing taken, if it is frozen.
pub(crate) fn submit<M: Machine>(
    visit: &mut Visit<'_, M>,
    requests: impl Iterator<Item = RequestRef<M>>,
) -> bool {
    let hctx = visit.hctx;
    let mut serving = hctx.serve.enter();
    if serving.frozen {
        leave_to_others(visit, serving);
        return false;
    }
    let (mut count, now_ns) = (0, M::now());
    for mut rq in requests {
        count += 1;
        rq.touch();
        rq.mark_inserted(now_ns);
        if visit.is_traced() {
            visit.trace().request(Action::Insert, &rq, M::now());
        }
        serving.requeued.push_back(rq);
    }
    M::work(Stage::Insert, count);
    leave_to_others(visit, serving);
    true
}

/// Serves a queue that was entered, or leaves it to its owner.
fn leave_to_others<'a, M: Machine>(visit: &mut Visit<'a, M>, serving: ServeGuard<'a, M, Serve<M>>) {
    if visit.may_serve() {
        return visit.serve(serving);
    }
    // A flag that somebody left meanwhile stands for work that is marked: the owner sees it.
    visit.hctx.leave(serving);
    visit.hctx.mark_own();
    visit.hctx.ring();
}
