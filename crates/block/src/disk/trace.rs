//! Trace events: one call at each step of an I/O, with the letters of blktrace.
//!
//! Called from submission, plug, dispatch and completion. There are two receivers. A sink, set when
//! the disk is made, gets every event of every bio. A recording, which can start and stop at any
//! time (tracer.rs), gets the kernel's events: G, I, D and C for requests, P and U for plugs. While
//! tracing is off, each event costs one predictable branch. Guaranteed order for each bio: Q <= G
//! <= I <= D <= C, with B (bounced), if any, just before D. Kernel counterpart:
//! include/trace/events/block.h and blktrace's actions.

use millrace_machine::Machine;

use crate::bio::status::Status;
use crate::bio::{Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount};
use crate::chain::merge::MergeKind;
use crate::chain::slot::{BioList, BioSlot};
use crate::disk::Disk;
use crate::disk::submit_context::SubmitContext;
use crate::queue::driver::{DriverQueue, Moment};
use crate::queue::in_flight::InFlight;
use crate::queue::request::{Dispatch, Request, bios_of};
use crate::queue::tag::TagSet;
use crate::trace::blktrace::{EventCode, category};
use crate::trace::entry::{TraceStep, TraceSubject, group_of};
use crate::trace::note::{TraceMessage, TraceNote};
use crate::trace::tracer::TraceStamp;
use crate::trace::{TraceEvent, UnplugReason};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlugPlace {
    First,
    Later,
}

/// Emits trace events for one thread's work on one drive.
pub(crate) struct DriveTracing<'a, M: Machine> {
    pub(crate) disk: &'a Disk<M>,
    pub(crate) run: &'a mut SubmitContext<M>,
}

impl<M: Machine> Disk<M> {
    #[inline(always)]
    pub(crate) fn trace<'a>(&'a self, run: &'a mut SubmitContext<M>) -> DriveTracing<'a, M> {
        DriveTracing { disk: self, run }
    }
}

impl<M: Machine> DriveTracing<'_, M> {
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.run.trace.is_some() || self.disk.config.trace.is_some()
    }

    #[inline]
    pub(crate) fn slot(&mut self, action: EventCode, bio: &BioSlot<M>) {
        if self.is_on() {
            let now_ns = M::now();
            if self.disk.config.trace.is_some() {
                self.tell(action, bio, now_ns);
            }
            self.record(action, bio, (now_ns, bio.bio.nr_sectors));
        }
    }

    /// Sends a bio's first events to the sink, all with the time of submission: Q, A, G and P.
    #[inline]
    pub(crate) fn tell_entry(&self, bio: &BioSlot<M>) {
        if self.disk.config.trace.is_some() {
            for action in
                [EventCode::Queue, EventCode::Remap, EventCode::GetRequest, EventCode::Plug]
            {
                self.tell(action, bio, bio.q_ns);
            }
        }
    }

    pub(crate) fn record_entry(&mut self, bio: &BioSlot<M>, drives: usize) {
        let Some(writer) = &mut self.run.trace else { return };
        let of = subject(self.disk, bio, bio.bio.nr_sectors);
        if !is_remapped(bio, drives) {
            return writer.put(entry_ns(bio), &of, TraceStep::One(EventCode::Queue));
        }
        match writer.is_exact() {
            false => writer.put_from(entry_ns(bio), &of, TraceStep::RemapQueue, source(bio)),
            true => {
                writer.put_from(entry_ns(bio), &of, TraceStep::One(EventCode::Remap), source(bio));
                writer.put(entry_ns(bio), &of, TraceStep::One(EventCode::Queue));
            }
        }
    }

    /// Records the first events of a bio that starts a request. If the plug was empty (`place` is
    /// `First`), also records a plug event. `drives` is how many drives the volume has.
    #[inline]
    pub(crate) fn record_own(&mut self, bio: &BioSlot<M>, (drives, place): (usize, PlugPlace)) {
        let Some(writer) = &mut self.run.trace else { return };
        let baseline = self.disk.baseline.as_ref();
        let gets_late = baseline.is_some_and(|baseline| baseline.stack.gets_request_late());
        if gets_late || writer.is_exact() {
            self.record_entry(bio, drives);
            if !gets_late {
                self.record_get(bio, entry_ns(bio));
            }
        } else {
            let of = subject(self.disk, bio, bio.bio.nr_sectors);
            match is_remapped(bio, drives) {
                false => writer.put(entry_ns(bio), &of, TraceStep::QueueGet),
                true => writer.put_from(entry_ns(bio), &of, TraceStep::RemapQueueGet, source(bio)),
            }
        }
        self.record_plug(bio, place);
    }

    /// Records that a bio starts a request, and a plug event if the bio is the first in its plug.
    pub(crate) fn plugged(&mut self, bio: &BioSlot<M>, place: PlugPlace) {
        self.record_get(bio, entry_ns(bio));
        self.record_plug(bio, place);
    }

    pub(crate) fn record_get(&mut self, bio: &BioSlot<M>, now_ns: u64) {
        self.record(EventCode::GetRequest, bio, (now_ns, bio.bio.nr_sectors));
    }

    fn record_plug(&mut self, bio: &BioSlot<M>, place: PlugPlace) {
        let Some(writer) = &mut self.run.trace else { return };
        if place == PlugPlace::First {
            let of = plug_subject(self.disk, bio, 0);
            writer.put(entry_ns(bio), &of, TraceStep::One(EventCode::Plug));
        }
    }

    /// Emits the event of a merge. The merged bio is the last of the chain after a back merge, and
    /// the first after a front merge.
    #[inline]
    pub(crate) fn merged(&mut self, kind: MergeKind, chain: &BioSlot<M>) {
        if self.is_on() {
            match kind {
                MergeKind::Back => self.slot(EventCode::BackMerge, last_of(chain)),
                MergeKind::Front => self.slot(EventCode::FrontMerge, chain),
            }
        }
    }

    pub(crate) fn plug_merged(&mut self, kind: MergeKind, chain: &BioSlot<M>, drives: usize) {
        let merged = if kind == MergeKind::Back { last_of(chain) } else { chain };
        self.record_entry(merged, drives);
        self.merged(kind, chain);
    }

    /// Emits the event of a flush that was merged with the flush `other`. A recording also stores
    /// the submission time of `other`.
    #[cold]
    pub(crate) fn flush_joined(&mut self, flush: &BioSlot<M>, other: &BioSlot<M>) {
        if !self.is_on() {
            return;
        }
        let now_ns = M::now();
        self.tell(EventCode::BackMerge, flush, now_ns);
        let of = subject(self.disk, flush, flush.bio.nr_sectors);
        if let Some(writer) = &mut self.run.trace {
            writer.put_from(now_ns, &of, TraceStep::One(EventCode::BackMerge), other.q_ns);
        }
    }

    pub(crate) fn record_merge(&mut self, bio: &BioSlot<M>) {
        self.record(EventCode::BackMerge, bio, (entry_ns(bio), bio.bio.nr_sectors));
    }

    /// Emits an event about a request. The sink gets one event for each bio of the request.
    #[cold]
    pub(crate) fn request(&mut self, action: EventCode, rq: &Request<M>, time_ns: u64) {
        if self.disk.config.trace.is_some() {
            rq.bios().for_each(|bio| self.tell(action, bio, time_ns));
        }
        self.record_request(action, rq, (time_ns, Status::Ok));
    }

    #[inline]
    pub(crate) fn unplug(&mut self, list: &BioList<M>) {
        self.tell_list(EventCode::Unplug, list);
        if let Some(first) = list.first() {
            self.record_unplug(first, list.len());
        }
    }

    pub(crate) fn record_unplug(&mut self, bio: &BioSlot<M>, count: u32) {
        let step = match self.run.trace_context.unplug {
            UnplugReason::Explicit => TraceStep::One(EventCode::Unplug),
            UnplugReason::ToWait => TraceStep::One(EventCode::UnplugTimer),
        };
        if let Some(writer) = &mut self.run.trace {
            writer.put(M::now(), &plug_subject(self.disk, bio, count), step);
        }
    }

    /// Sends an insert event (I) to the trace sink for each bio of a batch that is about to enter a
    /// queue. Notes the present time as the insertion time for a trace recording.
    #[inline(always)]
    pub(crate) fn begin_insert(&mut self, list: &BioList<M>) {
        if self.is_on() {
            self.note_insert(list);
        }
    }

    #[inline(never)]
    fn note_insert(&mut self, list: &BioList<M>) {
        self.tell_list(EventCode::Insert, list);
        self.run.trace_context.inserted_ns = M::now();
    }

    #[inline(always)]
    pub(crate) fn record_inserts(&mut self, list: &BioList<M>) {
        if self.run.trace.is_some() {
            self.record_list(list);
        }
    }

    /// Records the insertion (I) of each bio chain in `list`. Does nothing if the recording's kind
    /// of time stamps is not `stamp`.
    pub(crate) fn record_inserts_if(&mut self, stamp: TraceStamp, list: &BioList<M>) {
        if self.run.trace.as_ref().is_some_and(|writer| writer.stamp() == stamp) {
            self.record_list(list);
        }
    }

    #[inline(never)]
    fn record_list(&mut self, list: &BioList<M>) {
        let inserted_ns = self.run.trace_context.inserted_ns;
        list.for_each(|head| {
            self.record(EventCode::Insert, head, (inserted_ns, head.chain_sectors));
        });
    }

    /// Records the dispatch (D) of a request if the driver accepted it. With `TraceStamp::Batch`,
    /// also records the insertion (I), because one word of the trace ring can hold both events. The
    /// insertion is recorded even if the driver refused the request.
    #[inline(always)]
    pub(crate) fn record_issue(&mut self, rq: &Request<M>, outcome: Dispatch) {
        let (Some(writer), Some(head)) = (&mut self.run.trace, rq.chain.as_deref()) else { return };
        let of = subject(self.disk, head, rq.nr_sectors());
        let (exact, sent, d_ns) = (writer.is_exact(), outcome == Dispatch::Queued, rq.d_ns);
        let before_ns = d_ns.wrapping_sub(self.run.trace_context.inserted_ns);
        if sent && !exact && before_ns <= u16::MAX.into() {
            return writer.put(d_ns, &of, TraceStep::InsertIssue(before_ns as u16));
        }
        if !exact {
            writer.put(self.run.trace_context.inserted_ns, &of, TraceStep::One(EventCode::Insert));
        }
        if sent {
            writer.put(d_ns, &of, TraceStep::One(EventCode::Issue));
        }
    }

    /// Emits the driver's information about a request: whether its data was bounced, and trace data
    /// of the driver's own.
    #[cold]
    pub(crate) fn driver(
        &mut self,
        queue: &dyn DriverQueue<M>,
        rq: &Request<M>,
        (moment, time_ns): (Moment, u64),
    ) {
        if moment == Moment::Issue && queue.is_bounced(rq.tag()) {
            self.request(EventCode::Bounce, rq, time_ns);
        }
        let (Some(writer), Some(head)) = (&mut self.run.trace, rq.chain.as_deref()) else { return };
        let data = queue.trace_data(rq.tag(), moment);
        if !data.is_empty() {
            let of = subject(self.disk, head, rq.nr_sectors());
            writer.put_data(time_ns, &of, &data);
        }
    }

    #[cold]
    pub(crate) fn note(&mut self, remark: TraceMessage, time_ns: u64) {
        if let Some(writer) = &mut self.run.trace {
            let of = TraceSubject {
                group: group_of(self.disk.config.device, 0, 0),
                sector: 0,
                bytes: 0,
            };
            writer.put_note(M::now(), &of, TraceNote { remark, time_ns });
        }
    }

    /// Records the driver's own trace data about requests that the driver has just completed. The
    /// caller holds the hardware queue's serve lock.
    #[cold]
    pub(crate) fn reaped(
        &mut self,
        queue: &dyn DriverQueue<M>,
        tags: &TagSet<M>,
        in_flight: &mut InFlight,
    ) {
        if !queue.has_trace_data() {
            return;
        }
        let now_ns = M::now();
        for entry in 0..self.run.batch.entries().len() {
            let (tag, _) = self.run.batch.entries()[entry];
            if let Some(rq) = in_flight.lent(tags, tag) {
                self.driver(queue, rq, (Moment::Complete, now_ns));
            }
        }
    }

    #[inline]
    pub(crate) fn record_request(
        &mut self,
        action: EventCode,
        rq: &Request<M>,
        (time_ns, status): (u64, Status),
    ) {
        let (Some(writer), Some(head)) = (&mut self.run.trace, rq.chain.as_deref()) else { return };
        let of = subject(self.disk, head, rq.nr_sectors());
        let step = match action {
            EventCode::Complete => TraceStep::Complete(-status.errno() as i16),
            action => TraceStep::One(action),
        };
        writer.put(time_ns, &of, step);
    }

    /// Records completions of the next requests of the batch, up to the first one that failed or
    /// for which `wanted` returns false.
    pub(crate) fn record_successes(
        &mut self,
        tags: &TagSet<M>,
        c_ns: u64,
        mut wanted: impl FnMut(&Request<M>) -> bool,
    ) {
        let Some(writer) = &mut self.run.trace else { return };
        let disk = self.disk;
        for (rq, status) in self.run.batch.looks(tags) {
            if !status.is_ok() || !wanted(rq) {
                break;
            }
            if let Some(bio) = rq.chain.as_deref() {
                writer.put(c_ns, &subject(disk, bio, bio.bio.nr_sectors), TraceStep::Complete(0));
            }
        }
    }

    #[inline(always)]
    fn record(
        &mut self,
        action: EventCode,
        bio: &BioSlot<M>,
        (time_ns, sectors): (u64, SectorCount),
    ) {
        if let Some(writer) = &mut self.run.trace {
            writer.put(time_ns, &subject(self.disk, bio, sectors), TraceStep::One(action));
        }
    }

    #[cold]
    pub(crate) fn tell(&self, action: EventCode, bio: &BioSlot<M>, time_ns: u64) {
        let event = TraceEvent {
            action,
            time_ns,
            drive: bio.member,
            op: bio.bio.op,
            flags: bio.bio.flags,
            sector: bio.dev_sector,
            nr_sectors: bio.bio.nr_sectors,
            user_data: bio.bio.user_data(),
            tenant: bio.bio.account_key.tenant,
        };
        if let Some(sink) = &self.disk.config.trace {
            sink.trace(&event);
        }
    }

    #[inline]
    fn tell_list(&self, action: EventCode, list: &BioList<M>) {
        if self.disk.config.trace.is_some() {
            let now_ns = M::now();
            list.iter().flat_map(bios_of).for_each(|bio| self.tell(action, bio, now_ns));
        }
    }
}

/// Returns the time of a bio's Q event: its submission, or the end of its wait for group limits. As
/// in the kernel, Q comes after that wait; events would otherwise be out of order.
#[inline(always)]
fn entry_ns<M: Machine>(bio: &BioSlot<M>) -> u64 {
    bio.q_ns + u64::from(bio.waited.g_ns)
}

/// Returns the fields that describe a bio in its events. A flush has no sectors, so its submission
/// time takes the place of the sector and distinguishes it from other flushes.
#[inline(always)]
fn subject<M: Machine>(disk: &Disk<M>, bio: &BioSlot<M>, sectors: SectorCount) -> TraceSubject {
    let categories = categories(bio.bio.op, bio.bio.flags);
    TraceSubject {
        group: group_of(disk.config.device, bio.bio.account_key.tenant, categories),
        sector: if bio.bio.op == Op::Flush { bio.q_ns } else { bio.dev_sector },
        bytes: sectors.saturating_mul(1 << SECTOR_SHIFT),
    }
}

/// Returns the fields of a plug event, with the number of requests in the place of the sector.
fn plug_subject<M: Machine>(disk: &Disk<M>, bio: &BioSlot<M>, count: u32) -> TraceSubject {
    let group = group_of(disk.config.device, bio.bio.account_key.tenant, 0);
    TraceSubject { group, sector: count.into(), bytes: 0 }
}

#[inline(always)]
fn is_remapped<M: Machine>(bio: &BioSlot<M>, drives: usize) -> bool {
    drives > 1 && bio.op() != Op::Flush
}

#[inline(always)]
fn source<M: Machine>(bio: &BioSlot<M>) -> Sector {
    bio.bio.sector + u64::from(bio.offset >> SECTOR_SHIFT)
}

fn last_of<M: Machine>(chain: &BioSlot<M>) -> &BioSlot<M> {
    bios_of(chain).last().unwrap_or(chain)
}

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

/// Adds the trace categories of a bio's flags. A write gets the category SYNC only if it has FUA or
/// PREFLUSH, because nothing else shows that the submitter waits for it.
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
