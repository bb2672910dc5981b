//! Trace events: one call at every step of an I/O, by the letters of blktrace.
//!
//! Called from submission, plug, dispatch and completion. Two may listen: a sink, set when a disk
//! is made, which is told of every bio; and a recorder, which may come and go (tracer.rs) and gets
//! what the kernel would record: G, I, D and C of requests, P and U of plugs. Off is one
//! predictable branch per event point. Order promised for every bio: Q <= G <= I <= D <= C, with B,
//! if any, just before D.
//! Kernel counterpart: include/trace/events/block.h and blktrace's actions.

use millrace_machine::Machine;

use crate::bio::status::Status;
use crate::bio::{Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount};
use crate::chain::merge::Merged;
use crate::chain::slot::{BioList, Slot};
use crate::disk::runner::Runner;
use crate::disk::{Disk, Stack};
use crate::queue::driver::{Dispatch, DriverQueue, Moment};
use crate::queue::request::Request;
use crate::trace::blktrace::{Act, category};
use crate::trace::entry::{Step, Subject, group_of};
use crate::trace::tracer::TraceStamp;
use crate::trace::{Action, Event, Unplug};

impl<M: Machine> Disk<M> {
    /// Whether anybody listens to what this thread does to the drive.
    #[inline(always)]
    pub(crate) fn is_traced(&self, run: &Runner<M>) -> bool {
        run.trace.is_some() || self.config.trace.is_some()
    }

    /// One event about a bio, now.
    #[inline]
    pub(crate) fn trace_slot(&self, action: Action, bio: &Slot<M>, run: &mut Runner<M>) {
        if self.is_traced(run) {
            let now_ns = M::now();
            if self.config.trace.is_some() {
                self.tell(action, bio, now_ns);
            }
            self.record(action, bio, (now_ns, bio.bio.nr_sectors), run);
        }
    }

    /// Tells the sink what a bio begins with, at the time that it was queued: where it came from,
    /// that it is here, and that there is room for it.
    #[inline]
    pub(crate) fn tell_entry(&self, bio: &Slot<M>) {
        if self.config.trace.is_some() {
            for action in [Action::Queue, Action::Remap, Action::GetRequest, Action::Plug] {
                self.tell(action, bio, bio.q_ns);
            }
        }
    }

    /// For the recorder, where a bio came from and that it is here.
    pub(crate) fn record_entry(&self, bio: &Slot<M>, drives: usize, run: &mut Runner<M>) {
        let Some(writer) = &mut run.trace else { return };
        let of = self.subject(bio, bio.bio.nr_sectors);
        if !is_remapped(bio, drives) {
            return writer.put(bio.q_ns, &of, Step::One(Act::Queue));
        }
        match writer.is_exact() {
            false => writer.put_from(bio.q_ns, &of, Step::RemapQueue, source(bio)),
            true => {
                writer.put_from(bio.q_ns, &of, Step::One(Act::Remap), source(bio));
                writer.put(bio.q_ns, &of, Step::One(Act::Queue));
            }
        }
    }

    /// The same of one that is to be a request of its own, in a plug that was empty or not.
    #[inline]
    pub(crate) fn record_own(
        &self,
        bio: &Slot<M>,
        (drives, first): (usize, bool),
        run: &mut Runner<M>,
    ) {
        let Some(writer) = &mut run.trace else { return };
        if self.config.stack == Stack::Sq {
            // It gets its request later.
            self.record_entry(bio, drives, run);
            if first {
                self.record_plug(bio, run);
            }
            return;
        }
        if writer.is_exact() {
            self.record_entry(bio, drives, run);
            return self.trace_plugged(bio, first, run);
        }
        let of = self.subject(bio, bio.bio.nr_sectors);
        match is_remapped(bio, drives) {
            false => writer.put(bio.q_ns, &of, Step::QueueGet),
            true => writer.put_from(bio.q_ns, &of, Step::RemapQueueGet, source(bio)),
        }
        if first {
            self.record_plug(bio, run);
        }
    }

    /// A bio that is to be a request of its own, in a plug that was empty or not.
    pub(crate) fn trace_plugged(&self, bio: &Slot<M>, first: bool, run: &mut Runner<M>) {
        self.record_get(bio, bio.q_ns + u64::from(bio.waited.g_ns), run);
        if first {
            self.record_plug(bio, run);
        }
    }

    /// For the recorder, that a bio got its request.
    pub(crate) fn record_get(&self, bio: &Slot<M>, now_ns: u64, run: &mut Runner<M>) {
        self.record(Action::GetRequest, bio, (now_ns, bio.bio.nr_sectors), run);
    }

    fn record_plug(&self, bio: &Slot<M>, run: &mut Runner<M>) {
        if let Some(writer) = &mut run.trace {
            writer.put(bio.q_ns, &self.plug_subject(bio, 0), Step::One(Act::Plug));
        }
    }

    /// The event of a merge: about the last bio of the chain, or the first.
    #[inline]
    pub(crate) fn trace_merged(&self, kind: Merged, chain: &Slot<M>, run: &mut Runner<M>) {
        if !self.is_traced(run) {
            return;
        }
        match kind {
            Merged::Back => self.trace_slot(Action::BackMerge, last_of(chain), run),
            Merged::Front => self.trace_slot(Action::FrontMerge, chain, run),
        }
    }

    /// A bio that came into the plug and became a part of its last chain.
    pub(crate) fn trace_plug_merged(
        &self,
        kind: Merged,
        chain: &Slot<M>,
        drives: usize,
        run: &mut Runner<M>,
    ) {
        let merged = if kind == Merged::Back { last_of(chain) } else { chain };
        self.record_entry(merged, drives, run);
        self.trace_merged(kind, chain, run);
    }

    /// For the recorder, that a bio became a part of what it is chained to.
    pub(crate) fn record_merge(&self, bio: &Slot<M>, run: &mut Runner<M>) {
        self.record(Action::BackMerge, bio, (bio.q_ns, bio.bio.nr_sectors), run);
    }

    /// An event about a request.
    #[cold]
    pub(crate) fn trace_request(
        &self,
        action: Action,
        rq: &Request<M>,
        time_ns: u64,
        run: &mut Runner<M>,
    ) {
        if self.config.trace.is_some() {
            let mut next = rq.chain.as_deref();
            while let Some(bio) = next {
                self.tell(action, bio, time_ns);
                next = bio.chained.as_deref();
            }
        }
        self.record_request(action, rq, (time_ns, Status::Ok), run);
    }

    /// That a list goes from the plug to where it is served.
    #[inline]
    pub(crate) fn trace_unplug(&self, list: &BioList<M>, run: &mut Runner<M>) {
        self.tell_list(Action::Unplug, list);
        if let Some(first) = list.first() {
            self.record_unplug(first, list.len(), run);
        }
    }

    /// For the recorder, that so many requests go there, of which one is this bio's.
    pub(crate) fn record_unplug(&self, bio: &Slot<M>, count: u32, run: &mut Runner<M>) {
        let step = match run.told.unplug {
            Unplug::Explicit => Step::One(Act::Unplug),
            Unplug::ToWait => Step::One(Act::UnplugTimer),
        };
        if let Some(writer) = &mut run.trace {
            writer.put(M::now(), &self.plug_subject(bio, count), step);
        }
    }

    /// That a list is about to be inserted into a queue: tells the sink, and notes the time.
    #[inline(always)]
    pub(crate) fn begin_insert(&self, list: &BioList<M>, run: &mut Runner<M>) {
        if self.is_traced(run) {
            self.note_insert(list, run);
        }
    }

    #[inline(never)]
    fn note_insert(&self, list: &BioList<M>, run: &mut Runner<M>) {
        self.tell_list(Action::Insert, list);
        run.told.inserted_ns = M::now();
    }

    /// For the recorder, that it was.
    #[inline(always)]
    pub(crate) fn record_inserts(&self, list: &BioList<M>, run: &mut Runner<M>) {
        if run.trace.is_some() {
            self.record_list(list, run);
        }
    }

    /// The same if events are stamped so: with stamps of a batch, I is recorded together with D
    /// where that follows at once.
    pub(crate) fn record_inserts_if(
        &self,
        stamp: TraceStamp,
        list: &BioList<M>,
        run: &mut Runner<M>,
    ) {
        if run.trace.as_ref().is_some_and(|writer| writer.stamp() == stamp) {
            self.record_list(list, run);
        }
    }

    #[inline(never)]
    fn record_list(&self, list: &BioList<M>, run: &mut Runner<M>) {
        let inserted_ns = run.told.inserted_ns;
        list.for_each(|head| {
            self.record(Action::Insert, head, (inserted_ns, head.chain_sectors), run);
        });
    }

    /// For the recorder, that a request, whose I is not recorded yet with stamps of a batch, was
    /// offered to the driver.
    #[inline(always)]
    pub(crate) fn record_issue(
        &self,
        rq: &Request<M>,
        d_ns: u64,
        sent: Dispatch,
        run: &mut Runner<M>,
    ) {
        let (Some(writer), Some(head)) = (&mut run.trace, rq.chain.as_deref()) else { return };
        let of = self.subject(head, rq.nr_sectors());
        let (exact, sent) = (writer.is_exact(), sent == Dispatch::Queued);
        let before_ns = d_ns.wrapping_sub(run.told.inserted_ns);
        if sent && !exact && before_ns <= u16::MAX.into() {
            return writer.put(d_ns, &of, Step::InsertIssue(before_ns as u16));
        }
        if !exact {
            writer.put(run.told.inserted_ns, &of, Step::One(Act::Insert));
        }
        if sent {
            writer.put(d_ns, &of, Step::One(Act::Issue));
        }
    }

    /// What a driver has to say of a request, to whoever listens: that it was bounced, and its
    /// data.
    #[cold]
    pub(crate) fn trace_driver(
        &self,
        queue: &dyn DriverQueue<M>,
        rq: &Request<M>,
        (moment, time_ns): (Moment, u64),
        run: &mut Runner<M>,
    ) {
        if moment == Moment::Issue && queue.is_bounced(rq.tag()) {
            self.trace_request(Action::Bounce, rq, time_ns, run);
        }
        let (Some(writer), Some(head)) = (&mut run.trace, rq.chain.as_deref()) else { return };
        let data = queue.trace_data(rq.tag(), moment);
        if !data.is_empty() {
            let of = self.subject(head, rq.nr_sectors());
            writer.put_data(time_ns, &of, &data);
        }
    }

    /// For the recorder, an event about a whole request.
    #[inline]
    pub(crate) fn record_request(
        &self,
        action: Action,
        rq: &Request<M>,
        (time_ns, status): (u64, Status),
        run: &mut Runner<M>,
    ) {
        let (Some(writer), Some(head)) = (&mut run.trace, rq.chain.as_deref()) else { return };
        let of = self.subject(head, rq.nr_sectors());
        let step = match action {
            Action::Complete => Step::Complete(-status.errno() as i16),
            action => Step::One(action.act()),
        };
        writer.put(time_ns, &of, step);
    }

    /// For the recorder, that a request of one bio has succeeded.
    #[inline(always)]
    pub(crate) fn record_success(&self, rq: &Request<M>, c_ns: u64, run: &mut Runner<M>) {
        let (Some(writer), Some(bio)) = (&mut run.trace, rq.chain.as_deref()) else { return };
        writer.put(c_ns, &self.subject(bio, bio.bio.nr_sectors), Step::Complete(0));
    }

    /// For the recorder, an event about a bio or a chain.
    #[inline(always)]
    fn record(
        &self,
        action: Action,
        bio: &Slot<M>,
        (time_ns, sectors): (u64, SectorCount),
        run: &mut Runner<M>,
    ) {
        if let Some(writer) = &mut run.trace {
            writer.put(time_ns, &self.subject(bio, sectors), Step::One(action.act()));
        }
    }

    /// What events of a bio are about.
    #[inline(always)]
    fn subject(&self, bio: &Slot<M>, sectors: SectorCount) -> Subject {
        let categories = categories(bio.bio.op, bio.bio.flags);
        Subject {
            group: group_of(self.config.device, bio.bio.tenant, categories),
            sector: bio.dev_sector,
            bytes: sectors.saturating_mul(1 << SECTOR_SHIFT),
        }
    }

    /// What events of a plug are about: no sectors, and no operation.
    fn plug_subject(&self, bio: &Slot<M>, count: u32) -> Subject {
        let group = group_of(self.config.device, bio.bio.tenant, 0);
        Subject { group, sector: count.into(), bytes: 0 }
    }

    /// Tells the sink of one event of a bio.
    #[cold]
    pub(crate) fn tell(&self, action: Action, bio: &Slot<M>, time_ns: u64) {
        let event = Event {
            action,
            time_ns,
            drive: bio.member,
            op: bio.bio.op,
            flags: bio.bio.flags,
            sector: bio.dev_sector,
            nr_sectors: bio.bio.nr_sectors,
            user_data: bio.bio.user_data(),
            tenant: bio.bio.tenant,
        };
        if let Some(sink) = &self.config.trace {
            sink.trace(&event);
        }
    }

    /// Tells it of each bio of each chain of a list.
    #[inline]
    fn tell_list(&self, action: Action, list: &BioList<M>) {
        if self.config.trace.is_some() {
            let now_ns = M::now();
            list.for_each(|head| {
                let mut next = Some(head);
                while let Some(bio) = next {
                    self.tell(action, bio, now_ns);
                    next = bio.chained.as_deref();
                }
            });
        }
    }
}

/// Whether a bio came from a place on a volume of several drives.
#[inline(always)]
fn is_remapped<M: Machine>(bio: &Slot<M>, drives: usize) -> bool {
    drives > 1 && bio.op() != Op::Flush
}

/// That place.
#[inline(always)]
fn source<M: Machine>(bio: &Slot<M>) -> Sector {
    bio.bio.sector + u64::from(bio.offset >> SECTOR_SHIFT)
}

/// The last bio of a chain.
fn last_of<M: Machine>(chain: &Slot<M>) -> &Slot<M> {
    let mut last = chain;
    while let Some(next) = last.chained.as_deref() {
        last = next;
    }
    last
}

/// The categories of an operation.
#[inline(always)]
fn categories(op: Op, flags: OpFlags) -> u16 {
    let of_op = match op {
        Op::Read => category::READ,
        Op::Write | Op::WriteZeroes => category::WRITE,
        Op::Discard => category::WRITE | category::DISCARD,
        Op::Flush => category::FLUSH,
    };
    if flags == OpFlags::NONE { of_op } else { with_flags(op, of_op, flags) }
}

/// Nobody but who asks for durability says whether somebody waits for a write: only such are S.
#[cold]
fn with_flags(op: Op, of_op: u16, flags: OpFlags) -> u16 {
    let fua = if flags.has(OpFlags::FUA) { category::FUA } else { 0 };
    let preflush = if flags.has(OpFlags::PREFLUSH) { category::FLUSH } else { 0 };
    let sync = if op.is_write() && fua | preflush != 0 { category::SYNC } else { 0 };
    of_op | fua | preflush | sync
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_of_operations_and_flags_are_the_kernels() {
        use category::{DISCARD, FLUSH, FUA, READ, SYNC, WRITE};
        let both = OpFlags::FUA.with(OpFlags::PREFLUSH);
        for (op, flags, expected) in [
            (Op::Read, OpFlags::NONE, READ),
            (Op::Write, OpFlags::NONE, WRITE),
            (Op::WriteZeroes, OpFlags::NONE, WRITE),
            (Op::Discard, OpFlags::NONE, WRITE | DISCARD),
            (Op::Flush, OpFlags::NONE, FLUSH),
            (Op::Flush, OpFlags::PREFLUSH, FLUSH),
            (Op::Write, OpFlags::FUA, WRITE | FUA | SYNC),
            (Op::Write, OpFlags::PREFLUSH, WRITE | FLUSH | SYNC),
            (Op::Write, both, WRITE | FLUSH | FUA | SYNC),
            (Op::WriteZeroes, OpFlags::NOUNMAP, WRITE),
            (Op::WriteZeroes, OpFlags::NOUNMAP.with(OpFlags::FUA), WRITE | FUA | SYNC),
            (Op::Read, OpFlags::FUA, READ | FUA),
        ] {
            assert_eq!(categories(op, flags), expected, "{op:?} {flags:?}");
        }
    }
}
