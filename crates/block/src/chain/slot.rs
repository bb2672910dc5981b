//! Slots: the descriptors that hold bios from submission to completion, and handles to them.
//!
//! A channel's `BioSet` owns a fixed number of slots. A `BioRef` is the only handle of a slot in
//! use; it moves by value through plug, software queue, request and completion list. So a slot has
//! one owner at any time, and its contents need no lock. If a channel goes away while I/O is in
//! flight, its set is leaked, so handles stay valid. Invariant: a handle is never dropped, only
//! released into a free list. Dropping one would lose an I/O, so it panics; during a panic the slot
//! stays in use and its set is leaked. A slot takes 128 bytes, two cache lines (\[OLS\]: light
//! descriptors). Kernel counterpart: `struct bio` from a bio set.
#![allow(unsafe_code)]

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::{NonNull, null_mut};

use millrace_machine::{Line, Machine};

use crate::bio::status::Status;
use crate::bio::{Bio, Op, SECTOR_SHIFT, Sector, SectorCount, Segment};
use crate::chain::bio_set::BioSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BioStage {
    Whole,
    /// The bio was made by split.rs: a part of a split bio, or a flush that a submitted bio needs.
    Child,
    Preflush,
    Data,
    /// The bio was split, and its final flush, which replaces FUA, is in flight.
    Postflush,
}

/// Memory layout of one part of a striped bio. A part has the chunks of one drive. In the bio's
/// memory, there are gaps between these chunks. The gaps hold the chunks of the other drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct BioStride {
    /// log2 of the chunk size in sectors.
    pub(crate) chunk_shift: u16,
    /// Number of drives in the stripe. In the bio's memory, each chunk of the part is followed by
    /// `width - 1` chunks of other drives. 1 if the part's memory has no gaps.
    pub(crate) width: u16,
}

impl BioStride {
    pub(crate) const NONE: BioStride = BioStride { chunk_shift: 0, width: 1 };
}

/// Waiting times of a bio before dispatch, in nanoseconds since its submission (Q). `g_ns` is the
/// time at which the bio got a request (G). `i_ns` is the time of insertion into a queue (I).
/// Longer times than 4.29 s are stored as `u32::MAX`. Both fields are 0 for a bio that went
/// straight from the plug to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitTimes {
    pub(crate) g_ns: u32,
    /// Nanoseconds from submission (Q) to insertion into a queue (I); 0 if the bio was in no queue.
    pub(crate) i_ns: u32,
}

impl WaitTimes {
    pub(crate) const NOT: WaitTimes = WaitTimes { g_ns: 0, i_ns: 0 };
}

fn since(q_ns: u64, now_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(q_ns)).unwrap_or(u32::MAX)
}

/// A slot of a `BioSet`: a bio and the block layer's state for it.
///
/// The fields from `chain_segments` to `status` lie in one aligned 64-bit word. So a single store
/// can set them all when a bio goes to a drive without a split.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct BioSlot<M: Machine> {
    pub(crate) next: Option<BioRef<M>>,
    /// Next bio of the same request, in sector order.
    pub(crate) chained: Option<BioRef<M>>,
    /// Slot of the last bio in the chain (bios merged into one request). Valid in the slot of the
    /// chain's first bio.
    pub(crate) tail: *mut BioSlot<M>,
    /// For a part of a split bio: the split bio's handle, as a number from `BioRef::as_bits`. Only
    /// the channel's thread uses this field.
    pub(crate) parent: u64,
    pub(crate) bio_set: *const BioSet<M>,
    pub(crate) dev_sector: Sector,
    pub(crate) q_ns: u64,
    pub(crate) waited: WaitTimes,
    /// A bio is put in at submission and taken out at completion. The slot never drops a bio.
    pub(crate) bio: ManuallyDrop<Bio>,
    pub(crate) chain_sectors: SectorCount,
    /// The meaning depends on the bio:
    /// - Part of a split bio: byte offset of its data in the split bio's memory.
    /// - Split bio: number of drives for which all parts are made.
    /// - Split bio with `SplitRule::Chunks`: number of sectors that are in parts.
    pub(crate) offset: u32,
    pub(crate) chain_segments: u16,
    pub(crate) stride: BioStride,
    pub(crate) stage: BioStage,
    /// Status with which the bio ends; `Ok` while no error has occurred.
    pub(crate) status: Status,
    /// For a split bio: number of its parts that have not completed.
    pub(crate) remaining: u32,
    pub(crate) member: u16,
    /// For a split bio: true if no more parts of its present stage (preflush, data or final flush)
    /// will be made, because all exist or one has failed.
    pub(crate) all_made: bool,
    /// For a part of a split bio: true if the submitter owns the memory of the split bio.
    pub(crate) of_foreign: bool,
}

// SAFETY: only the holder of a bio slot's single handle (`BioRef`) uses the slot and `tail`.
// Only the channel's own thread uses `parent`. Threads may share the set behind `bio_set`, which
// outlives every handle.
unsafe impl<M: Machine> Send for BioSlot<M> {}

impl<M: Machine> BioSlot<M> {
    pub(crate) fn empty(bio_set: *const BioSet<M>) -> Self {
        BioSlot {
            next: None,
            chained: None,
            tail: null_mut(),
            parent: 0,
            bio_set,
            dev_sector: 0,
            q_ns: 0,
            waited: WaitTimes::NOT,
            bio: ManuallyDrop::new(Bio::flush()),
            chain_sectors: 0,
            offset: 0,
            chain_segments: 0,
            stride: BioStride::NONE,
            stage: BioStage::Whole,
            status: Status::Ok,
            remaining: 0,
            member: 0,
            all_made: false,
            of_foreign: false,
        }
    }

    /// Returns true if the submitter owns the memory. Such a bio does not complete when it times
    /// out, but only when the drive reports that it no longer uses the memory.
    pub(crate) fn is_foreign(&self) -> bool {
        if self.stage == BioStage::Child { self.of_foreign } else { self.bio.is_foreign() }
    }

    #[inline]
    pub(crate) fn chain_end(&self) -> Sector {
        self.dev_sector + u64::from(self.chain_sectors)
    }

    /// Returns the number of contiguous pieces of memory that hold the first `sectors` sectors of
    /// this bio, or of this part of a split bio. Returns `u32::MAX`, more than any request may
    /// have, if the bio has several segments.
    #[inline]
    pub(crate) fn memory_pieces(&self, sectors: SectorCount) -> u32 {
        if self.bio.nr_segments() != 1 {
            return u32::MAX;
        }
        if self.stride.width == 1 {
            return 1;
        }
        let within = self.dev_sector as u32 & ((1 << self.stride.chunk_shift) - 1);
        ((within + sectors - 1) >> self.stride.chunk_shift) + 1
    }

    /// Returns the contiguous memory that begins `done` bytes into this bio, or into this part of a
    /// split bio. The caller checks that the bio has data and that `done` is below its length.
    #[inline]
    pub(crate) fn piece(&self, done: u32) -> Segment {
        let len = (self.bio.nr_sectors << SECTOR_SHIFT) - done;
        if self.stride.width == 1 {
            return self.bio.piece(u64::from(self.offset) + u64::from(done), len);
        }
        self.strided_piece(done, len)
    }

    /// Returns contiguous memory of a part of a striped bio, from byte `done` of the part on.
    /// Example: 4 drives, chunks of 8 sectors, and a part that begins at sector 6 of its drive. The
    /// part's first 2 sectors lie at byte `offset` of the bio's memory. The next 8 sectors of the
    /// part lie 2 + 3 * 8 sectors after `offset`. Between the two pieces are the chunks of the 3
    /// other drives.
    fn strided_piece(&self, done: u32, len: u32) -> Segment {
        let chunk_bytes = 1u64 << (u32::from(self.stride.chunk_shift) + SECTOR_SHIFT);
        let in_chunk = (self.dev_sector << SECTOR_SHIFT) & (chunk_bytes - 1);
        let place = in_chunk + u64::from(done);
        let whole_chunks = place & !(chunk_bytes - 1);
        let skipped = whole_chunks * u64::from(self.stride.width - 1);
        let left = chunk_bytes - (place - whole_chunks);
        let memory = u64::from(self.offset) + u64::from(done) + skipped;
        self.bio.piece(memory, len.min(left as u32))
    }

    /// Sets the time at which the bio gets its request (G), or last began to wait for one.
    pub(crate) fn mark_admitted(&mut self, now_ns: u64) {
        self.waited.g_ns = since(self.q_ns, now_ns).max(1);
    }

    /// Records that the bio is inserted into a queue at `now_ns` (trace event I). Later calls have
    /// no effect.
    #[inline]
    pub(crate) fn mark_inserted(&mut self, now_ns: u64) {
        if self.waited.i_ns == 0 {
            self.waited.i_ns = since(self.q_ns, now_ns).max(1);
        }
    }

    /// Returns the time of insertion into a queue (I). A time of more than 4.29 s after submission
    /// was not stored; the present time is returned instead.
    pub(crate) fn inserted_ns(&self) -> u64 {
        match self.waited.i_ns {
            u32::MAX => M::now(),
            i_ns => self.q_ns + u64::from(i_ns),
        }
    }

    /// Returns the bio's times of request (G) and insertion (I), if it waited in a queue.
    #[inline]
    pub(crate) fn waits(&self) -> Option<(u64, u64)> {
        let WaitTimes { g_ns, i_ns } = self.waited;
        (i_ns != 0).then(|| (self.q_ns + u64::from(g_ns), self.q_ns + u64::from(i_ns)))
    }

    /// Takes the bio out of the slot of a completed I/O, just before the slot is freed.
    #[inline]
    pub(crate) fn take_bio(&mut self) -> Bio {
        // SAFETY: every submission writes a bio, and every completion takes it once.
        unsafe { ManuallyDrop::take(&mut self.bio) }
    }

    pub(crate) fn op(&self) -> Op {
        self.bio.op
    }
}

/// Handle of a bio slot, which describes a bio in flight. Each slot has only one handle: `BioRef`
/// is not `Clone`, and dropping one is a bug that panics.
pub(crate) struct BioRef<M: Machine>(NonNull<M::Line<BioSlot<M>>>);

// SAFETY: the handle is the only way to the slot, which is Send.
unsafe impl<M: Machine> Send for BioRef<M> {}

impl<M: Machine> core::fmt::Debug for BioRef<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "BioRef({:p})", self.0)
    }
}

impl<M: Machine> BioRef<M> {
    /// Creates the slot's only handle. The slot's `BioSet` lives at least as long as the handle.
    pub(crate) fn first(line: &M::Line<BioSlot<M>>) -> Self {
        BioRef(NonNull::from(line))
    }

    /// Charges the simulated cost of moving the slot's cache line to this CPU.
    #[inline]
    pub(crate) fn touch(&self) {
        // SAFETY: the line outlives its handle.
        let _ = unsafe { self.0.as_ref() }.write();
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut BioSlot<M> {
        // SAFETY: the line outlives its handle.
        unsafe { self.0.as_ref() }.held()
    }

    pub(crate) fn as_bits(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Sets `next` without dropping the old value, because dropping a handle panics.
    pub(crate) fn link(&mut self, next: Option<Self>) {
        core::mem::forget(core::mem::replace(&mut self.next, next));
    }

    /// Turns a number from [`BioRef::as_bits`] back into the handle; `None` for 0.
    ///
    /// # Safety
    /// `bits` comes from a handle that was forgotten, and is converted back only once.
    pub(crate) unsafe fn from_bits(bits: u64) -> Option<Self> {
        NonNull::new(bits as *mut M::Line<BioSlot<M>>).map(BioRef)
    }
}

impl<M: Machine> Deref for BioRef<M> {
    type Target = BioSlot<M>;
    #[inline]
    fn deref(&self) -> &BioSlot<M> {
        // SAFETY: the handle is unique, so nobody else touches the slot.
        unsafe { &*self.0.as_ref().held() }
    }
}

impl<M: Machine> DerefMut for BioRef<M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut BioSlot<M> {
        // SAFETY: the handle is unique and borrowed mutably.
        unsafe { &mut *self.0.as_ref().held() }
    }
}

impl<M: Machine> Drop for BioRef<M> {
    #[inline]
    fn drop(&mut self) {
        dropped_unanswered::<M>();
    }
}

#[cold]
#[inline(never)]
fn dropped_unanswered<M: Machine>() {
    assert!(M::is_panicking(), "a bio was dropped before it completed");
}

/// A list of bios, linked by `BioSlot::next`; first in, first out unless `push_front` is used.
#[derive(Debug)]
pub(crate) struct BioList<M: Machine> {
    head: Option<BioRef<M>>,
    tail: *mut BioSlot<M>,
    len: u32,
}

// SAFETY: owns its slots' handles; `tail` points into one of them.
unsafe impl<M: Machine> Send for BioList<M> {}

impl<M: Machine> BioList<M> {
    pub(crate) const fn new() -> Self {
        BioList { head: None, tail: null_mut(), len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, bio: BioRef<M>) {
        self.link_back(bio);
        self.len += 1;
    }

    /// Appends a bio without increasing `len`; see [`BioList::count_linked`].
    #[inline]
    pub(crate) fn link_back(&mut self, bio: BioRef<M>) {
        debug_assert!(bio.next.is_none());
        let last = bio.as_ptr();
        self.attach(bio, last);
    }

    /// Appends bios that are linked to each other, from `first` to `last`.
    #[inline(always)]
    fn attach(&mut self, first: BioRef<M>, last: *mut BioSlot<M>) {
        let end = match self.head {
            None => &mut self.head,
            // SAFETY: the list is not empty, so `tail` is its last slot, owned by this list.
            Some(_) => unsafe { &mut (*self.tail).next },
        };
        // `end` held `None`, so forgetting its old value leaks no bio.
        core::mem::forget(end.replace(first));
        self.tail = last;
    }

    #[inline]
    pub(crate) fn count_linked(&mut self, slots: u32) {
        self.len += slots;
    }

    #[inline]
    pub(crate) fn push_front(&mut self, mut bio: BioRef<M>) {
        match self.head.take() {
            None => self.tail = bio.as_ptr(),
            old => bio.link(old),
        }
        core::mem::forget(self.head.replace(bio));
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<BioRef<M>> {
        let mut bio = self.head.take()?;
        core::mem::forget(core::mem::replace(&mut self.head, bio.next.take()));
        self.len -= 1;
        Some(bio)
    }

    #[inline]
    pub(crate) fn append(&mut self, other: &mut BioList<M>) {
        let Some(first) = other.head.take() else { return };
        self.attach(first, other.tail);
        self.len += other.len;
        other.len = 0;
    }

    pub(crate) fn first(&self) -> Option<&BioSlot<M>> {
        self.head.as_deref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &BioSlot<M>> {
        core::iter::successors(self.first(), |slot| slot.next.as_deref())
    }

    #[inline]
    pub(crate) fn take(&mut self) -> BioList<M> {
        core::mem::replace(self, BioList::new())
    }

    pub(crate) fn mark_inserted(&mut self, now_ns: u64) {
        let mut at = self.head.as_mut();
        while let Some(bio) = at {
            bio.mark_inserted(now_ns);
            at = bio.next.as_mut();
        }
    }

    #[cold]
    pub(crate) fn unmark_inserted(&mut self) {
        let mut at = self.head.as_mut();
        while let Some(bio) = at {
            bio.waited.i_ns = 0;
            at = bio.next.as_mut();
        }
    }

    pub(crate) fn for_each(&self, f: impl FnMut(&BioSlot<M>)) {
        self.iter().for_each(f);
    }

    /// Empties the list without dropping its handles. Their `BioSet` is about to be freed.
    pub(crate) fn unlink(&mut self) {
        while let Some(bio) = self.pop_front() {
            core::mem::forget(bio);
        }
    }

    /// Forgets all bios without dropping their handles. Their `BioSet` is leaked as well.
    pub(crate) fn leak(&mut self) {
        core::mem::forget(self.take());
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::bio::buffer::Buffer;
    use crate::chain::bio_set::tests::bio_set;
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;
    use millrace_machine::Native;
    use proptest::prelude::*;

    #[test]
    fn slot_is_two_cache_lines() {
        assert!(size_of::<BioSlot<Native>>() <= 128, "{}", size_of::<BioSlot<Native>>());
    }

    #[test]
    fn strided_piece_jumps_over_the_other_drives_chunks() {
        let mut slot = BioSlot::<Native>::empty(core::ptr::null());
        let base = 0x10_0000 as *mut u8;
        // SAFETY: the memory is never touched.
        slot.bio = ManuallyDrop::new(unsafe { Bio::foreign(Op::Read, 0, base, 18 << 9) });
        slot.stride = BioStride { chunk_shift: 3, width: 4 };
        (slot.dev_sector, slot.offset) = (6, 512);
        let at = |done| {
            let piece = slot.piece(done);
            (piece.start as usize - base as usize, piece.len_bytes)
        };
        assert_eq!(at(0), (512, 1024));
        assert_eq!(at(1024), (512 + 1024 + 3 * 4096, 4096));
        assert_eq!(at(5120), (512 + 5120 + 2 * 3 * 4096, 4096));
    }

    /// Returns the position in memory of each sector of a part: a whole chunk of the drive, then a
    /// gap for the chunks of the other drives.
    fn places(first: u64, nr: u32, offset: u64, stride: BioStride) -> Vec<u64> {
        let chunk = 1u64 << stride.chunk_shift;
        let others = chunk * u64::from(stride.width - 1);
        let jumps = |at: u64| at / chunk - first / chunk;
        (0..u64::from(nr)).map(|n| offset + n + jumps(first + n) * others).collect()
    }

    proptest! {
        #[test]
        fn pieces_of_a_part_are_as_long_as_the_stripe_allows(
            first in 0u64..100,
            nr in 1u32..80,
            offset in 0u64..50,
            chunk_shift in 0u16..6,
            width in 1u16..6,
            within in 0u32..512,
        ) {
            let stride = BioStride { chunk_shift, width };
            let mut slot = BioSlot::<Native>::empty(core::ptr::null());
            let base = 0x10_0000 as *mut u8;
            // SAFETY: the memory is never touched.
            slot.bio = ManuallyDrop::new(unsafe { Bio::foreign(Op::Read, 0, base, nr << 9) });
            slot.stride = stride;
            (slot.dev_sector, slot.offset) = (first, (offset << 9) as u32);
            let places = places(first, nr, offset, stride);
            let (mut at, mut pieces) = (0, 0);
            while at < nr {
                let run = places[at as usize..].windows(2).take_while(|two| two[0] + 1 == two[1]);
                let run = run.count() as u32 + 1;
                // A piece may also start in the middle of a sector.
                let starts = [(at << 9, run << 9), ((at << 9) + within, (run << 9) - within)];
                for (done, len) in starts {
                    let piece = slot.piece(done);
                    let start = (places[at as usize] << 9) + u64::from(done - (at << 9));
                    prop_assert_eq!(piece.start as u64 - base as u64, start);
                    prop_assert_eq!(piece.len_bytes, len);
                }
                pieces += 1;
                for sectors in at + 1..=at + run {
                    prop_assert_eq!(slot.memory_pieces(sectors), pieces);
                }
                at += run;
            }
            prop_assert_eq!(slot.chain_end(), first);
            slot.chain_sectors = nr;
            prop_assert_eq!(slot.chain_end(), first + u64::from(nr));
        }

        #[test]
        fn a_list_of_slots_is_like_any_queue(
            steps in proptest::collection::vec((0u8..6, any::<bool>()), 1..100),
        ) {
            let bio_set = bio_set(100);
            let mut free = bio_set.handles(0..100);
            let mut lists = [(); 2].map(|()| (BioList::<Native>::new(), VecDeque::new()));
            for (number, (step, which)) in (0..).zip(steps) {
                let [one, two] = &mut lists;
                let (to, other) = if which { (one, two) } else { (two, one) };
                match step {
                    0 | 1 => {
                        let mut slot = free.pop_front().expect("one for each step");
                        slot.dev_sector = number;
                        if step == 0 {
                            to.0.push_back(slot);
                            to.1.push_back(number);
                        } else {
                            to.0.push_front(slot);
                            to.1.push_front(number);
                        }
                    }
                    2 | 3 => {
                        let slot = to.0.pop_front();
                        let number = slot.as_ref().map(|slot| slot.dev_sector);
                        prop_assert_eq!(number, to.1.pop_front());
                        slot.into_iter().for_each(|slot| free.push_front(slot));
                    }
                    4 => {
                        to.0.append(&mut other.0);
                        to.1.append(&mut other.1);
                    }
                    _ => {
                        let mut all = to.0.take();
                        prop_assert_eq!((to.0.is_empty(), to.0.len()), (true, 0));
                        to.0.append(&mut all);
                    }
                }
                let mut held = 0;
                for (list, model) in &lists {
                    let mut seen = VecDeque::new();
                    list.for_each(|slot| seen.push_back(slot.dev_sector));
                    prop_assert_eq!(&seen, model);
                    let first = list.first().map(|slot| slot.dev_sector);
                    prop_assert_eq!(first.as_ref(), model.front());
                    prop_assert_eq!(list.len() as usize, model.len());
                    prop_assert_eq!(list.is_empty(), model.is_empty());
                    held += list.len();
                }
                prop_assert_eq!(free.len() + held, 100);
            }
            for (list, _) in &mut lists {
                free.append(list);
            }
            prop_assert_eq!(free.len(), 100);
            free.unlink();
            prop_assert!(free.is_empty());
        }
    }

    #[test]
    fn memory_in_several_segments_is_more_pieces_than_a_request_has() {
        let mut slot = BioSlot::<Native>::empty(core::ptr::null());
        let buffers = alloc::vec![Buffer::new(512), Buffer::new(512)];
        slot.bio = ManuallyDrop::new(Bio::readv(0, buffers));
        assert_eq!(slot.memory_pieces(2), u32::MAX);
        drop(slot.take_bio());
    }

    #[test]
    fn bio_waits_from_first_insertion_to_last_try() {
        let mut slot = BioSlot::<Native>::empty(core::ptr::null());
        slot.q_ns = 1_000;
        slot.mark_admitted(1_200);
        assert_eq!(slot.waits(), None, "the bio waited in no queue");
        slot.mark_inserted(1_500);
        slot.mark_inserted(1_700);
        assert_eq!(slot.waits(), Some((1_200, 1_500)));
        slot.mark_admitted(1_400);
        assert_eq!(slot.waits(), Some((1_400, 1_500)));
        // The wait is kept however short or long it was.
        slot.waited = WaitTimes::NOT;
        slot.mark_inserted(1_000);
        assert_eq!(slot.waits(), Some((1_000, 1_001)));
        slot.waited = WaitTimes::NOT;
        slot.mark_inserted(1 << 40);
        assert_eq!(slot.waits(), Some((1_000, 1_000 + u64::from(u32::MAX))));
    }

    #[test]
    fn marks_of_a_list_are_those_of_each_slot_and_can_be_taken_back() {
        let bio_set = bio_set(3);
        let mut list = bio_set.handles(0..3);
        let marks = |list: &BioList<Native>| {
            let mut marks = Vec::new();
            list.for_each(|slot| marks.push(slot.waits()));
            marks
        };
        list.mark_inserted(7);
        list.mark_inserted(9);
        assert_eq!(marks(&list), [Some((0, 7)); 3]);
        list.unmark_inserted();
        assert_eq!(marks(&list), [None; 3]);
        list.unlink();
    }

    #[test]
    #[should_panic(expected = "a bio was dropped before it completed")]
    fn a_handle_that_is_dropped_is_a_lost_io_and_stops_the_program() {
        let bio_set = bio_set(1);
        drop(bio_set.handles(0..1).pop_front());
    }

    #[test]
    fn a_list_that_is_leaked_lets_its_handles_go() {
        let bio_set = bio_set(2);
        let mut list = bio_set.handles(0..2);
        list.leak();
        assert_eq!((list.is_empty(), list.len()), (true, 0));
        core::mem::forget(bio_set);
    }
}
