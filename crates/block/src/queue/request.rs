//! `Request`: what a driver gets: one contiguous range of a drive and the memory for it.
//!
//! Preallocated, one for each tag of a `TagSet`; filled just before dispatch from a chain of bios,
//! read by the driver, ended once by its tag in a `CompletionBatch`. States: `Idle` (owned by the
//! tag set) -> `InFlight` or `Waited` (owned by the driver) -> `Idle`, or -> `Abandoned` (timed
//! out, its bios answered, memory in quarantine) -> `Idle` when the driver confirms after all.
//! Kernel counterpart: `struct request` with `enum mq_rq_state`.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use millrace_machine::{Line, Machine};

use crate::account::{EqualIos, Whose};
use crate::bio::limits::{QueueLimits, SegmentRule};
use crate::bio::{Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount, Segment};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::{BioRef, Slot};
use crate::queue::sbitmap::Bits;

/// Names an in-flight request of a tag set; the driver uses the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// What became of a request handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// The driver has it and will name its tag in a later `poll`.
    Queued,
    /// The queue is full; try again after a completion of this queue.
    DeviceBusy,
    /// Something in the host is short; try again a little later.
    HostBusy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Idle,
    /// Straight from a plug.
    InFlight,
    /// In flight, with bios that waited in a queue.
    Waited,
    /// Not answered in time, which was noted; its memory belongs to somebody outside.
    Overdue,
    Abandoned,
}

/// One request to a drive; a cache line of its own, as its tag is.
#[derive(Debug)]
#[repr(align(64))]
pub struct Request<M: Machine> {
    pub(crate) chain: Option<BioRef<M>>,
    sector: Sector,
    /// When it was dispatched.
    pub(crate) d_ns: u64,
    nr_sectors: SectorCount,
    tag: Tag,
    /// Its tag in the map that it is taken from; no bit: a reserved one.
    pub(crate) bits: Bits,
    nr_segments: u16,
    pub(crate) hctx: u16,
    op: Op,
    flags: OpFlags,
    pub(crate) state: State,
    /// What the driver said last.
    pub(crate) outcome: Dispatch,
}

impl<M: Machine> Request<M> {
    pub(crate) fn idle(tag: Tag, bits: Bits) -> Self {
        Request {
            chain: None,
            sector: 0,
            d_ns: 0,
            nr_sectors: 0,
            tag,
            bits,
            nr_segments: 0,
            hctx: 0,
            op: Op::Read,
            flags: OpFlags::NONE,
            state: State::Idle,
            outcome: Dispatch::Queued,
        }
    }

    /// Takes over a chain of bios.
    #[inline(always)]
    pub(crate) fn fill(&mut self, head: BioRef<M>, hctx: u16, taken: OpFlags) {
        assert!(self.state == State::Idle, "tag {} names a request in flight", self.tag.0);
        self.sector = head.dev_sector;
        self.nr_sectors = head.chain_sectors;
        self.nr_segments = head.chain_segments;
        self.op = head.bio.op;
        self.flags = OpFlags(head.bio.flags.0 & taken.0);
        self.hctx = hctx;
        self.state = State::InFlight;
        core::mem::forget(self.chain.replace(head));
    }

    /// Takes over a chain of bios that waited in a queue.
    pub(crate) fn fill_waited(&mut self, head: BioRef<M>, hctx: u16, taken: OpFlags) {
        self.fill(head, hctx, taken);
        self.state = State::Waited;
    }

    /// It waits in a queue, from now on if it did not before.
    pub(crate) fn mark_inserted(&mut self, now_ns: u64) {
        self.state = State::Waited;
        if let Some(head) = &mut self.chain {
            head.mark_inserted(now_ns);
        }
    }

    /// Whether the driver has it, or is to have it, and its bios are unanswered.
    #[inline(always)]
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.state, State::InFlight | State::Waited | State::Overdue)
    }

    /// Its operation and times, to compare others with.
    #[inline]
    pub(crate) fn times(&self, c_ns: u64) -> EqualIos {
        let Some(bio) = &self.chain else { return EqualIos::EMPTY };
        // If it is not this thread's own, it is like no other.
        let whose = Whose { payer: bio.bio.payer, stage: bio.stage, own: true };
        EqualIos::like(self.op, whose, (bio.q_ns, self.d_ns, c_ns))
    }

    /// Whether it is in flight with one bio of this channel, no flush, that waited in no queue, and
    /// has these times.
    #[inline(always)]
    pub(crate) fn ends_alike(&self, bio_set: *const BioSet<M>, times: &EqualIos) -> bool {
        let Some(bio) = &self.chain else { return false };
        self.state == State::InFlight
            && self.op != Op::Flush
            && times.is_like(self.op, bio, self.d_ns)
            && bio.chained.is_none()
            && bio.bio_set == bio_set
    }

    /// Takes the chain back out.
    #[inline]
    pub(crate) fn empty(&mut self) -> BioRef<M> {
        self.state = State::Idle;
        self.chain.take().expect("a request in flight has bios")
    }

    /// Its tag, below the depth of its tag set.
    #[inline]
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// What to do.
    #[inline]
    #[must_use]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Modifiers; a driver without FUA never sees it, and none sees PREFLUSH.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> OpFlags {
        self.flags
    }

    /// First sector on the drive.
    #[inline]
    #[must_use]
    pub fn sector(&self) -> Sector {
        self.sector
    }

    /// Length in sectors; 0 for a flush.
    #[inline]
    #[must_use]
    pub fn nr_sectors(&self) -> SectorCount {
        self.nr_sectors
    }

    /// Length of its data in bytes; 0 if the operation carries none.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        if self.op.has_data() { self.nr_sectors << SECTOR_SHIFT } else { 0 }
    }

    /// How many pieces [`Request::segments`] yields, at most.
    #[inline]
    #[must_use]
    pub fn nr_segments(&self) -> u16 {
        self.nr_segments
    }

    /// Its memory in order, as long as the request is in flight. Adjacent pieces are not joined.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> Segments<'_, M> {
        self.segments_by(SegmentRule::NONE)
    }

    /// Its memory in order, for a drive that limits the size of a piece or has a boundary: pieces
    /// are cut so that they keep `max_segment_size` and `seg_boundary_mask`.
    #[must_use]
    pub fn segments_within(&self, limits: &QueueLimits) -> Segments<'_, M> {
        self.segments_by(limits.segment_rule())
    }

    #[inline]
    fn segments_by(&self, rule: SegmentRule) -> Segments<'_, M> {
        let has_data = self.op.has_data();
        Segments { bio: self.chain.as_deref().filter(|_| has_data), done: 0, rule }
    }
}

/// The one handle of a request whose tag is taken and that no driver has.
///
/// It comes from a batch of tags, goes to the driver's queue (`InFlight::lend`), comes back when
/// the driver names the tag (`CompletionBatch::take`), and ends when the tag is given back
/// (`TagSet::give`). Not `Clone`; dropping one would lose a tag, and panics.
pub(crate) struct RequestRef<M: Machine>(NonNull<M::Line<Request<M>>>);

// SAFETY: the handle is the only way to the request, which is Send.
unsafe impl<M: Machine> Send for RequestRef<M> {}

impl<M: Machine> RequestRef<M> {
    /// The handle of the request on a line of a tag set, which outlives it.
    ///
    /// # Safety
    /// The caller owns the request: no other handle of it exists, and no driver has it.
    #[inline(always)]
    pub(crate) unsafe fn of(line: &M::Line<Request<M>>) -> Self {
        RequestRef(NonNull::from(line))
    }

    /// Charges for the request's coming to this CPU.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        // SAFETY: the tag set outlives its handles.
        let _ = unsafe { self.0.as_ref() }.write();
    }
}

impl<M: Machine> Deref for RequestRef<M> {
    type Target = Request<M>;
    #[inline(always)]
    fn deref(&self) -> &Request<M> {
        // SAFETY: the handle is unique, so nobody else touches the request.
        unsafe { &*self.0.as_ref().held() }
    }
}

impl<M: Machine> DerefMut for RequestRef<M> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Request<M> {
        // SAFETY: the handle is unique and borrowed mutably.
        unsafe { &mut *self.0.as_ref().held() }
    }
}

impl<M: Machine> Drop for RequestRef<M> {
    #[inline]
    fn drop(&mut self) {
        dropped_with_its_tag::<M>();
    }
}

/// During a panic the tag stays in use, with the bios: the driver may have the request.
#[cold]
#[inline(never)]
fn dropped_with_its_tag<M: Machine>() {
    assert!(M::is_panicking(), "a request was dropped with its tag");
}

/// The pieces of memory of a request.
#[derive(Debug)]
pub struct Segments<'a, M: Machine> {
    bio: Option<&'a Slot<M>>,
    done: u32,
    rule: SegmentRule,
}

impl<M: Machine> Iterator for Segments<'_, M> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let bio = self.bio?;
        let piece = self.rule.cut(bio.piece(self.done));
        self.done += piece.len_bytes;
        if self.done == bio.bio.nr_sectors << SECTOR_SHIFT {
            self.bio = bio.chained.as_deref();
            self.done = 0;
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;

    #[test]
    fn request_is_one_cache_line() {
        assert_eq!(size_of::<Request<Native>>(), 64);
    }
}
