//! Trace events: one call at every step of an I/O, by the letters of blktrace.
//!
//! Called from submission, plug, dispatch and completion. Two may listen: a sink, set when a disk
//! is made, which is told of every bio; and a recorder, which may come and go (tracer.rs) and gets
//! what the kernel would record: G, I, D and C of requests, P and U of plugs. Off is one
//! predictable branch per event point. Order promised for every bio: Q <= G <= I <= D <= C, with B,
//! if any, just before D.
//! Kernel counterpart: include/trace/events/block.h and blktrace's actions.

use millrace_machine::Machine;

use crate::bio::{Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount};
use crate::blktrace::Act;
use crate::disk::Disk;
use crate::merge::Merged;
use crate::request::Request;
use crate::runner::Runner;
use crate::slot::{BioList, Slot};
use crate::status::Status;
use crate::tracer::{Entry, categories};

/// What happened; the discriminant is blktrace's letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// Queued: accepted by `submit`.
    Queue = b'Q',
    /// Split: part of a bio that was too big.
    Split = b'X',
    /// Remapped to a drive of a volume.
    Remap = b'A',
    /// Admitted: a place in the layer is taken.
    GetRequest = b'G',
    /// Appended to the plug.
    Plug = b'P',
    /// Plug emptied.
    Unplug = b'U',
    /// Merged at the end of another.
    BackMerge = b'M',
    /// Merged in front of another.
    FrontMerge = b'F',
    /// Inserted into a software queue.
    Insert = b'I',
    /// Waits for a tag.
    Sleep = b'S',
    /// Its data go through a copy, as its memory does not suit the driver.
    Bounce = b'B',
    /// Dispatched to the driver.
    Issue = b'D',
    /// Given back by the driver as busy.
    Requeue = b'R',
    /// Complete.
    Complete = b'C',
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// When: the stamp of its batch, or its own (setting).
    pub time_ns: u64,
    /// Which drive of the volume.
    pub drive: u16,
    /// Operation.
    pub op: Op,
    /// Modifiers.
    pub flags: OpFlags,
    /// Where on the drive; on the volume before the remap.
    pub sector: Sector,
    /// How long.
    pub nr_sectors: SectorCount,
    /// The submitter's number for it.
    pub user_data: u64,
    /// Whom it is accounted to.
    pub tenant: u16,
}

/// Takes events; called on the thread where they happen, so it must not block.
pub trait TraceSink: Send + Sync {
    /// One event.
    fn trace(&self, event: &Event);
}

impl Action {
    /// The kernel's code for it.
    #[inline(always)]
    fn act(self) -> Act {
        match self {
            Action::Queue => Act::Queue,
            Action::Split => Act::Split,
            Action::Remap => Act::Remap,
            Action::GetRequest => Act::GetRequest,
            Action::Plug => Act::Plug,
            Action::Unplug => Act::Unplug,
            Action::BackMerge => Act::BackMerge,
            Action::FrontMerge => Act::FrontMerge,
            Action::Insert => Act::Insert,
            Action::Sleep => Act::Sleep,
            Action::Bounce => Act::Bounce,
            Action::Issue => Act::Issue,
            Action::Requeue => Act::Requeue,
            Action::Complete => Act::Complete,
        }
    }
}

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

    /// What a bio begins with, at the time that it was queued: where it came from, that it is here,
    /// and that there is room for it.
    #[inline]
    pub(crate) fn trace_entry(&self, bio: &Slot<M>, drives: usize, run: &mut Runner<M>) {
        if self.config.trace.is_some() {
            for action in [Action::Queue, Action::Remap, Action::GetRequest, Action::Plug] {
                self.tell(action, bio, bio.q_ns);
            }
        }
        self.record_entry(bio, drives, run);
    }

    /// For the recorder, where a bio came from and that it is here.
    #[inline]
    pub(crate) fn record_entry(&self, bio: &Slot<M>, drives: usize, run: &mut Runner<M>) {
        if drives > 1 && bio.op() != Op::Flush {
            self.record(Action::Remap, bio, (bio.q_ns, bio.bio.nr_sectors), run);
        }
        self.record(Action::Queue, bio, (bio.q_ns, bio.bio.nr_sectors), run);
    }

    /// A bio that is to be a request of its own, in a plug that was empty or not.
    #[inline]
    pub(crate) fn trace_plugged(&self, bio: &Slot<M>, first: bool, run: &mut Runner<M>) {
        self.record(Action::GetRequest, bio, (bio.q_ns, bio.bio.nr_sectors), run);
        if first && run.trace.is_some() {
            let mut entry = self.entry(Action::Plug, bio, (bio.q_ns, 0));
            (entry.sector, entry.action) = (0, Act::Plug.with(0));
            run.put(entry);
        }
    }

    /// The event of a merge: about the last bio of the chain, or the first.
    #[inline]
    pub(crate) fn trace_merged(&self, kind: Merged, chain: &Slot<M>, run: &mut Runner<M>) {
        if !self.is_traced(run) {
            return;
        }
        let mut merged = chain;
        while let (Merged::Back, Some(next)) = (kind, merged.chained.as_deref()) {
            merged = next;
        }
        match kind {
            Merged::Back => self.trace_slot(Action::BackMerge, merged, run),
            Merged::Front => self.trace_slot(Action::FrontMerge, merged, run),
        }
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
        if let (Some(first), true) = (list.first(), run.trace.is_some()) {
            let mut entry = self.entry(Action::Unplug, first, (M::now(), 0));
            (entry.sector, entry.action) = (list.len().into(), Act::Unplug.with(0));
            run.put(entry);
        }
    }

    /// That a list is inserted into a queue.
    #[inline]
    pub(crate) fn trace_insert(&self, list: &BioList<M>, run: &mut Runner<M>) {
        self.tell_list(Action::Insert, list);
        if run.trace.is_some() {
            let now_ns = M::now();
            list.for_each(|head| {
                self.record(Action::Insert, head, (now_ns, head.chain_sectors), run);
            });
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
        let (Some(head), true) = (rq.chain.as_deref(), run.trace.is_some()) else { return };
        let mut entry = self.entry(action, head, (time_ns, rq.nr_sectors()));
        entry.sector = rq.sector();
        entry.error = -status.errno();
        run.put(entry);
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
        if run.trace.is_some() {
            run.put(self.entry(action, bio, (time_ns, sectors)));
        }
    }

    #[inline(always)]
    pub(crate) fn entry(
        &self,
        action: Action,
        bio: &Slot<M>,
        (time_ns, sectors): (u64, u32),
    ) -> Entry {
        Entry {
            time_ns,
            sector: bio.dev_sector,
            from: bio.bio.sector + u64::from(bio.offset >> SECTOR_SHIFT),
            bytes: sectors.saturating_mul(1 << SECTOR_SHIFT),
            action: action.act().with(categories(bio.bio.op, bio.bio.flags)),
            tenant: bio.bio.tenant.into(),
            device: self.config.device,
            ..Entry::default()
        }
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
