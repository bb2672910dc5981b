//! A channel's use of the single list of all drives, for a volume in `per-volume` mode.
//!
//! The parts of `Submission` and `VolumeMember` that put bios into that list and take requests out
//! of it. Called by submission.rs and unplug.rs if `BioChecks::baseline` is set. The list is made
//! when a channel first needs it. Kernel counterpart: that of volume_plug.rs.

use alloc::boxed::Box;

use millrace_machine::{Machine, Stage};

use crate::account::disk_counter::DiskCounter;
use crate::bio::Op;
use crate::chain::slot::BioRef;
use crate::channel::baseline::volume_plug::{PlugTarget, VolumePlug};
use crate::channel::member::{BatchServer, VolumeMember};
use crate::channel::submission::Submission;
use crate::disk::baseline::filled;
use crate::disk::submit_context::SubmitContext;
use crate::disk::trace::PlugPlace;
use crate::queue::request::RequestRef;
use crate::volume::serving::Serving;

/// Creates the channel's list if the volume is served in `per-volume` mode and the channel has no
/// list yet.
pub(crate) fn make_plug<M: Machine>(sub: &mut Submission<M>) {
    if sub.checks.baseline && sub.volume_plug.is_none() {
        sub.volume_plug = Some(Box::new(VolumePlug::new(&sub.volume)));
    }
}

impl<M: Machine> Submission<M> {
    /// Unplugs the list, if there is one. With nothing plugged, follows a change of the volume's
    /// mode.
    pub(crate) fn flush_baseline(&mut self, serving: Serving) {
        if self.checks.baseline {
            self.batch.plugged += self.flush_requests();
        }
        let follows = serving == Serving::PerVolume;
        if self.batch.plugged == 0 && self.checks.baseline != follows {
            self.checks.baseline = follows;
            self.checks.settle();
            make_plug(self);
        }
    }

    /// Adds a bio that goes to one drive to the list, as a request of its own or merged.
    pub(crate) fn plug_request(&mut self, slot: BioRef<M>) {
        if self.checks.traced {
            let drives = self.members.len();
            let disk = &self.members[usize::from(slot.member)].disk;
            disk.trace(&mut self.run).tell_entry(&slot);
            disk.trace(&mut self.run).record_entry(&slot, drives);
        }
        if slot.op() != Op::Flush {
            // Flushes are not counted here; `send_flush` counts them.
            self.members[usize::from(slot.member)].outstanding += 1;
        }
        self.batch.plugged = self.with_volume_plug(|plug, to| plug.plug(slot, to));
        self.run.publish();
    }

    /// Unplugs the list, and retries refused and blocked bios. Returns the number left.
    fn flush_requests(&mut self) -> u32 {
        self.with_volume_plug(VolumePlug::flush)
    }

    /// Calls `act` with the list. Returns the number plugged afterwards.
    fn with_volume_plug(
        &mut self,
        act: impl FnOnce(&mut VolumePlug<M>, &mut PlugTarget<'_, M>),
    ) -> u32 {
        let Some(plug) = &mut self.volume_plug else {
            unreachable!("made when the channel began to follow this mode");
        };
        let (members, run) = (&mut self.members, &mut self.run);
        act(plug, &mut PlugTarget { members, run, traced: self.checks.traced });
        plug.plugged(&self.members)
    }

    /// Takes plugged requests apart, for a `BioSet` that is leaked.
    pub(crate) fn leak_requests(&mut self) {
        if let Some(plug) = &mut self.volume_plug {
            plug.leak(&self.members);
        }
    }
}

impl<M: Machine> VolumeMember<M> {
    /// Takes a request of the drive for the plug.
    pub(crate) fn take_request(&self, run: &mut SubmitContext<M>) -> Option<RequestRef<M>> {
        self.hctx().tags.take_one(&mut run.hint)
    }

    /// Counts a bio that became a request, or was merged with one in the plug.
    pub(crate) fn count_plugged(&mut self) {
        M::work(Stage::Submit, 1);
        self.stats.add(DiskCounter::Queued, 1);
    }

    /// Makes the channel poll its own queue, because the thread that holds the tags may be gone or
    /// busy.
    pub(crate) fn expect_tag(&mut self) {
        self.served_here = true;
    }

    /// Fills a request with a chain, without handing it over.
    pub(crate) fn fill(&self, mut rq: RequestRef<M>, chain: BioRef<M>) -> RequestRef<M> {
        rq.touch();
        rq.fill_waited(chain, self.route.hctx, self.disk.flags_taken);
        rq
    }

    /// Takes the chain out of a filled request, and frees the tag.
    pub(crate) fn unfill(&self, rq: RequestRef<M>) -> BioRef<M> {
        self.hctx().tags.take_apart(rq)
    }

    /// Wakes the waiters for tags after tags were freed.
    pub(crate) fn wake_waiters(&self) {
        self.hctx().tags.wake_all();
    }

    /// Records that `count` filled requests, of which `rq` is the first, are about to be handed
    /// over.
    pub(crate) fn record_unplug(&self, rq: &RequestRef<M>, count: u32, run: &mut SubmitContext<M>) {
        rq.touch();
        if let Some(head) = rq.chain.as_deref() {
            self.disk.trace(run).record_unplug(head, count);
        }
    }

    /// Hands filled requests of one drive over together. Returns false and takes none if the drive
    /// is frozen.
    pub(crate) fn send_requests(
        &mut self,
        requests: impl Iterator<Item = RequestRef<M>>,
        run: &mut SubmitContext<M>,
    ) -> bool {
        self.served_here = true;
        filled::submit(&mut self.context(run), requests)
    }

    /// Sends a flush by itself.
    pub(crate) fn send_flush(&mut self, slot: BioRef<M>, run: &mut SubmitContext<M>) {
        M::work(Stage::Submit, 1);
        self.expect_flush();
        if self.disk.trace(run).is_on() {
            self.disk.trace(run).plugged(&slot, PlugPlace::First);
        }
        self.plug.push(slot);
        self.flush_served(BatchServer::Submitter, run);
    }
}
