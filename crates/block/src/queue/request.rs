//! `Request`: a driver's unit of work: one contiguous range of a drive and the memory for it.
//!
//! Requests are preallocated, one for each tag of a `TagSet`. A request is filled from a bio chain
//! just before dispatch, read by the driver, and ended when its tag comes back in a
//! `CompletionBatch`. States: `Idle` (owned by the tag set) -> `InFlight` or `Waited` (owned by the
//! driver) -> `Idle`; or -> `Abandoned` (timed out and its bios completed, but the driver may still
//! write its memory) -> `Idle` when the driver completes the request late. Kernel counterpart:
//! `struct request` with `enum mq_rq_state`.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use millrace_machine::{Line, Machine};

use crate::account::{EqualIos, IoOwner, IoTimes};
use crate::bio::limits::{QueueLimits, SegmentRule};
use crate::bio::{Op, OpFlags, SECTOR_SHIFT, Sector, SectorCount, Segment};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::{BioRef, BioSlot};
use crate::queue::sbitmap::TagBits;

/// Number of a request in its tag set. The driver identifies the request by this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u32);

/// The driver's answer to a request that was handed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// The driver has accepted the request and will return its tag in a later `poll`.
    Queued,
    /// The queue is full; the request is retried after a completion of this queue.
    DeviceBusy,
    /// A resource of the host is short; the request is retried a little later.
    HostBusy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RequestState {
    Idle,
    /// The request is in flight; its bios came straight from a plug.
    InFlight,
    /// The request is in flight. Its bios waited in a queue of the block layer before dispatch.
    Waited,
    /// The request has timed out and is recorded as failed. Its bios are completed only when the
    /// driver returns the tag, because the drive may still access memory of the submitter.
    Overdue,
    Abandoned,
}

/// One request to a drive, aligned to a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub struct Request<M: Machine> {
    pub(crate) chain: Option<BioRef<M>>,
    sector: Sector,
    /// Time of dispatch (D) in nanoseconds.
    pub(crate) d_ns: u64,
    nr_sectors: SectorCount,
    tag: Tag,
    /// The tag's bit in the bitmap of its tag set; `TagBits::RESERVED` for a reserved tag.
    pub(crate) bits: TagBits,
    nr_segments: u16,
    pub(crate) hctx: u16,
    op: Op,
    flags: OpFlags,
    pub(crate) state: RequestState,
}

impl<M: Machine> Request<M> {
    pub(crate) fn idle(tag: Tag, bits: TagBits) -> Self {
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
            state: RequestState::Idle,
        }
    }

    /// Fills the request from the bio chain `head` (the bios that become this request). Of the
    /// flags of `head`, only those in `taken` reach the driver.
    #[inline(always)]
    pub(crate) fn fill(&mut self, head: BioRef<M>, hctx: u16, taken: OpFlags) {
        assert!(
            self.state == RequestState::Idle,
            "tag {} was reused while its request was still in flight",
            self.tag.0
        );
        self.sector = head.dev_sector;
        self.nr_sectors = head.chain_sectors;
        self.nr_segments = head.chain_segments;
        self.op = head.bio.op;
        self.flags = OpFlags(head.bio.flags.0 & taken.0);
        self.hctx = hctx;
        self.state = RequestState::InFlight;
        core::mem::forget(self.chain.replace(head));
    }

    pub(crate) fn fill_waited(&mut self, head: BioRef<M>, hctx: u16, taken: OpFlags) {
        self.fill(head, hctx, taken);
        self.state = RequestState::Waited;
    }

    /// Marks the request as waiting in a queue since `now_ns`; a repeated call keeps the first
    /// time.
    pub(crate) fn mark_inserted(&mut self, now_ns: u64) {
        self.state = RequestState::Waited;
        if let Some(head) = &mut self.chain {
            head.mark_inserted(now_ns);
        }
    }

    /// Returns true if the driver has the request, or is about to get it, and the request's bios
    /// are not completed yet.
    #[inline(always)]
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.state, RequestState::InFlight | RequestState::Waited | RequestState::Overdue)
    }

    /// Returns an empty counter for I/Os with the same operation, owner and times as this request.
    /// `c_ns` is their completion time.
    #[inline]
    pub(crate) fn times(&self, c_ns: u64) -> EqualIos {
        let Some(bio) = &self.chain else { return EqualIos::EMPTY };
        // `own` (submitted by this thread) is true, because `ends_alike`, which selects the I/Os to
        // count, accepts only bios of this thread's channel.
        let whose = IoOwner { account_key: bio.bio.account_key, stage: bio.stage, own: true };
        let times = IoTimes { q_ns: bio.q_ns, waits: None, d_ns: self.d_ns, c_ns };
        EqualIos::like(self.op, whose, times)
    }

    /// Returns true if the request may be counted together with the I/Os in `times`. All of this
    /// must be true:
    /// - Operation, tenant, group, stage, submission time and dispatch time are the same.
    /// - The request is in flight, and has a single bio, which waited in no queue.
    /// - The bio came from the channel of `bio_set`.
    ///
    /// A flush never qualifies.
    #[inline(always)]
    pub(crate) fn ends_alike(&self, bio_set: *const BioSet<M>, times: &EqualIos) -> bool {
        let Some(bio) = &self.chain else { return false };
        self.state == RequestState::InFlight
            && times.is_like(self.op, bio, self.d_ns)
            && bio.chained.is_none()
            && bio.bio_set == bio_set
    }

    pub(crate) fn bios(&self) -> impl Iterator<Item = &BioSlot<M>> {
        self.chain.as_deref().into_iter().flat_map(bios_of)
    }

    #[inline]
    pub(crate) fn empty(&mut self) -> BioRef<M> {
        self.state = RequestState::Idle;
        self.chain.take().expect("a request in flight has bios")
    }

    /// Returns the tag, which is less than the `depth` given to
    /// [`Driver::open_queue`](crate::Driver::open_queue).
    #[inline]
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Returns the operation.
    #[inline]
    #[must_use]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the flags. PREFLUSH is never set; FUA only if the driver supports it.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> OpFlags {
        self.flags
    }

    /// Returns the request's first sector, counted from the drive's start.
    #[inline]
    #[must_use]
    pub fn sector(&self) -> Sector {
        self.sector
    }

    /// Returns the request's length in sectors; 0 for a flush.
    #[inline]
    #[must_use]
    pub fn nr_sectors(&self) -> SectorCount {
        self.nr_sectors
    }

    /// Returns the length of the request's data in bytes; 0 if the operation carries none.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        if self.op.has_data() { self.nr_sectors << SECTOR_SHIFT } else { 0 }
    }

    /// Returns the largest number of pieces that [`Request::segments`] yields.
    #[inline]
    #[must_use]
    pub fn nr_segments(&self) -> u16 {
        self.nr_segments
    }

    /// Returns the memory of the request piece by piece; valid while the request is in flight.
    /// Adjacent pieces are not joined.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> Segments<'_, M> {
        self.segments_by(SegmentRule::NONE)
    }

    /// Returns the memory in pieces that respect `max_segment_size` and `seg_boundary_mask`.
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

/// Returns the bios of the bio chain that begins with `head`.
pub(crate) fn bios_of<M: Machine>(head: &BioSlot<M>) -> impl Iterator<Item = &BioSlot<M>> {
    core::iter::successors(Some(head), |bio| bio.chained.as_deref())
}

/// Single handle of a request whose tag is taken; no handle exists while a driver has the request.
///
/// A handle comes from a batch of tags, goes to the driver's queue (`InFlight::lend`), comes back
/// when the driver returns the tag (`CompletionBatch::take`), and ends when the tag is freed
/// (`TagSet::give`). The handle is not `Clone`. Dropping a handle would lose a tag, and panics.
pub(crate) struct RequestRef<M: Machine>(NonNull<M::Line<Request<M>>>);

// SAFETY: the handle is the only way to the request, which is Send.
unsafe impl<M: Machine> Send for RequestRef<M> {}

impl<M: Machine> RequestRef<M> {
    /// Creates the handle of the request in `line`. The line must outlive the handle.
    ///
    /// # Safety
    /// The caller owns the request: no other handle of it exists, and no driver has it.
    #[inline(always)]
    pub(crate) unsafe fn of(line: &M::Line<Request<M>>) -> Self {
        RequestRef(NonNull::from(line))
    }

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

/// Panics, because a handle was dropped. Does nothing if a panic is already under way: the tag and
/// the bios stay in use, because the driver may have the request.
#[cold]
#[inline(never)]
fn dropped_with_its_tag<M: Machine>() {
    assert!(M::is_panicking(), "a request was dropped without freeing its tag");
}

/// Iterator over the memory of a request, piece by piece.
#[derive(Debug)]
pub struct Segments<'a, M: Machine> {
    bio: Option<&'a BioSlot<M>>,
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
