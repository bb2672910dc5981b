//! `Bio`: one I/O as a program or server submits it: operation, sectors and memory.
//!
//! A bio owns or pins its memory until its completion returns it. A program or server makes the
//! bio, `Channel::submit` takes it, and a `Completion` returns it. A bio takes 40 bytes, and a
//! single segment needs no allocation (\[OLS\]: the bio of Linux 2.5, one structure for vectored
//! I/O). Invariant: the segments of a bio with data add up to `nr_sectors` * 512 bytes. Kernel
//! counterpart: `struct bio`.
#![allow(unsafe_code)]

pub(crate) mod arena;
pub(crate) mod buffer;
pub(crate) mod error;
pub(crate) mod group_id;
pub(crate) mod limits;
pub(crate) mod status;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use crate::bio::buffer::Buffer;
use crate::bio::group_id::GroupId;

/// A position on a device in units of 512 bytes, independent of the device's block size.
pub type Sector = u64;
/// A length in units of 512 bytes.
pub type SectorCount = u32;
/// log2 of the sector size in bytes.
pub const SECTOR_SHIFT: u32 = 9;

/// The operation of a bio or request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Reads from the device into memory.
    Read = 0,
    /// Writes from memory to the device.
    Write = 1,
    /// Makes all completed writes durable.
    Flush = 2,
    /// Tells the device that the contents of the range are no longer needed.
    Discard = 3,
    /// Makes the range read as zeroes.
    WriteZeroes = 4,
}

/// Number of operations, to size tables indexed by `Op`.
pub const OPS: usize = 5;

impl Op {
    /// All operations, in the order of their numbers.
    pub const ALL: [Op; OPS] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// Returns the operation's name in one word, as in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["read", "write", "flush", "discard", "write-zeroes"][self as usize]
    }

    /// Returns true if the operation transfers data: a read or a write.
    #[must_use]
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }

    /// Returns true if the operation changes the device: a write, discard or write-zeroes.
    #[must_use]
    pub fn is_write(self) -> bool {
        !matches!(self, Op::Read | Op::Flush)
    }
}

/// Modifiers of an operation; a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OpFlags(pub(crate) u8);

impl OpFlags {
    /// The empty set of flags.
    pub const NONE: OpFlags = OpFlags(0);
    /// Force unit access: the write is durable when it completes.
    pub const FUA: OpFlags = OpFlags(1);
    /// Flush first: completed writes are made durable before this I/O starts.
    pub const PREFLUSH: OpFlags = OpFlags(2);
    /// For write-zeroes: keep the range's space allocated.
    pub const NOUNMAP: OpFlags = OpFlags(4);

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: OpFlags) -> OpFlags {
        OpFlags(self.0 | other.0)
    }

    /// Returns the flags of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: OpFlags) -> OpFlags {
        OpFlags(self.0 & !other.0)
    }

    /// Returns true if this set contains all flags of `other`.
    #[must_use]
    pub const fn has(self, other: OpFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for OpFlags {
    type Output = OpFlags;
    fn bitor(self, other: OpFlags) -> OpFlags {
        self.with(other)
    }
}

/// A contiguous piece of memory of an I/O.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Segment {
    /// Address of the first byte.
    pub start: *mut u8,
    /// Length of the segment in bytes.
    pub len_bytes: u32,
}

/// The owner of a bio's memory. A dropped bio frees its memory unless the owner is `Foreign`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum MemoryOwner {
    /// The bio has no memory, or memory that its submitter owns.
    Foreign,
    /// `data` points to a `Buffer` of exactly the I/O's length.
    Buffer,
    /// `data` points to a boxed slice of segments, each of which is a `Buffer`.
    Buffers,
}

/// Group and tenant that an I/O is accounted to. The alignment allows a comparison of both fields
/// as one 32-bit number.
#[derive(Debug, Clone, Copy, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub(crate) struct AccountKey {
    pub(crate) group: GroupId,
    pub(crate) tenant: u16,
}

impl AccountKey {
    pub(crate) const DEFAULT: AccountKey = AccountKey { group: GroupId::DEFAULT, tenant: 0 };

    #[inline(always)]
    fn as_number(self) -> u32 {
        u32::from(self.tenant) << 16 | u32::from(self.group.0)
    }
}

impl PartialEq for AccountKey {
    #[inline(always)]
    fn eq(&self, other: &AccountKey) -> bool {
        self.as_number() == other.as_number()
    }
}

/// One I/O from its submission to its completion: operation, sectors, memory and tenant.
#[derive(Debug)]
pub struct Bio {
    user_data: u64,
    pub(crate) sector: Sector,
    /// Address of the first byte if there is one segment, or of a slice of `Segment` if there are
    /// several; dangling if there is none.
    data: *mut u8,
    pub(crate) nr_sectors: SectorCount,
    nr_segments: u32,
    pub(crate) account_key: AccountKey,
    pub(crate) op: Op,
    pub(crate) flags: OpFlags,
    owner: MemoryOwner,
}

const _: () = assert!(size_of::<Bio>() <= 48);

// SAFETY: a bio owns its memory, or its maker upholds the contract of `foreign`.
unsafe impl Send for Bio {}
// SAFETY: shared access reads the fields, never the memory that `data` points to.
unsafe impl Sync for Bio {}

impl Bio {
    fn new(op: Op, sector: Sector, nr_sectors: SectorCount) -> Bio {
        Bio {
            user_data: 0,
            sector,
            data: NonNull::dangling().as_ptr(),
            nr_sectors,
            nr_segments: 0,
            account_key: AccountKey::DEFAULT,
            op,
            flags: OpFlags::NONE,
            owner: MemoryOwner::Foreign,
        }
    }

    fn owned(op: Op, sector: Sector, buffer: Buffer) -> Bio {
        let (start, len_bytes) = buffer.into_raw();
        let mut bio = Bio::new(op, sector, (len_bytes >> SECTOR_SHIFT) as SectorCount);
        bio.data = start.as_ptr();
        bio.nr_segments = 1;
        bio.owner = MemoryOwner::Buffer;
        bio
    }

    fn owned_vectored(op: Op, sector: Sector, mut buffers: Vec<Buffer>) -> Bio {
        if buffers.len() == 1 {
            // A single segment is stored in the bio itself, without a list.
            return Bio::owned(op, sector, buffers.remove(0));
        }
        let segment = |buffer: Buffer| {
            let (start, len_bytes) = buffer.into_raw();
            Segment { start: start.as_ptr(), len_bytes: len_bytes as u32 }
        };
        let segments: Box<[Segment]> = buffers.into_iter().map(segment).collect();
        let bytes: u64 = segments.iter().map(|s| u64::from(s.len_bytes)).sum();
        let mut bio = Bio::new(op, sector, 0);
        bio.nr_segments = segments.len() as u32;
        bio.owner = MemoryOwner::Buffers;
        bio.data = Box::into_raw(segments).cast();
        bio.nr_sectors = SectorCount::try_from(bytes >> SECTOR_SHIFT).expect("below 2 TiB");
        bio
    }

    /// Creates a read of `buffer.len()` bytes at `sector` into `buffer`.
    #[must_use]
    pub fn read(sector: Sector, buffer: Buffer) -> Bio {
        Bio::owned(Op::Read, sector, buffer)
    }

    /// Creates a write of `buffer` at `sector`.
    #[must_use]
    pub fn write(sector: Sector, buffer: Buffer) -> Bio {
        Bio::owned(Op::Write, sector, buffer)
    }

    /// Creates a vectored read: one I/O that fills several buffers. Source: \[OLS\], `readv`.
    ///
    /// # Panics
    /// Panics if the buffers have 2 TiB or more in all.
    #[must_use]
    pub fn readv(sector: Sector, buffers: Vec<Buffer>) -> Bio {
        Bio::owned_vectored(Op::Read, sector, buffers)
    }

    /// Creates a write of several buffers as one I/O.
    ///
    /// # Panics
    /// Panics if the buffers have 2 TiB or more in all.
    #[must_use]
    pub fn writev(sector: Sector, buffers: Vec<Buffer>) -> Bio {
        Bio::owned_vectored(Op::Write, sector, buffers)
    }

    /// Creates a flush, which makes all completed writes of the volume durable.
    #[must_use]
    pub fn flush() -> Bio {
        Bio::new(Op::Flush, 0, 0)
    }

    /// Creates a flush of all drives that hold sectors of the range. If `nr_sectors` is 0, the
    /// flush goes to all drives of the volume.
    #[must_use]
    pub fn flush_range(sector: Sector, nr_sectors: SectorCount) -> Bio {
        Bio::new(Op::Flush, sector, nr_sectors)
    }

    /// Creates a discard, which tells the drive that the range's contents are no longer needed.
    #[must_use]
    pub fn discard(sector: Sector, nr_sectors: SectorCount) -> Bio {
        Bio::new(Op::Discard, sector, nr_sectors)
    }

    /// Creates a write-zeroes, after which the range reads as zeroes.
    #[must_use]
    pub fn write_zeroes(sector: Sector, nr_sectors: SectorCount) -> Bio {
        Bio::new(Op::WriteZeroes, sector, nr_sectors)
    }

    /// Creates a read or write over memory that the caller owns.
    ///
    /// # Safety
    /// From `submit` until the completion is polled, the `len_bytes` bytes at `start` stay
    /// allocated. During a read, no other code accesses these bytes, unless it tolerates that they
    /// change, as a guest does. During a write, no code changes these bytes, unless the caller
    /// accepts that either the old or the new data is written. Drives that never touch payload may
    /// be given read-only memory. `len_bytes` is a multiple of 512.
    #[must_use]
    pub unsafe fn foreign(op: Op, sector: Sector, start: *mut u8, len_bytes: u32) -> Bio {
        debug_assert!(op.has_data() && len_bytes.is_multiple_of(512));
        let mut bio = Bio::new(op, sector, len_bytes >> SECTOR_SHIFT);
        bio.data = start;
        bio.nr_segments = 1;
        bio
    }

    /// Creates a read or write over a list of segments; the caller owns the list and the memory.
    ///
    /// # Safety
    /// The rules of [`Bio::foreign`] apply to the list and to each segment. The lengths of the
    /// segments add up to a multiple of 512 below 2 TiB.
    #[must_use]
    pub unsafe fn foreign_vectored(op: Op, sector: Sector, segments: *const [Segment]) -> Bio {
        // SAFETY: the caller vouches for the list.
        let list = unsafe { &*segments };
        let bytes: u64 = list.iter().map(|s| u64::from(s.len_bytes)).sum();
        let mut bio = Bio::new(op, sector, (bytes >> SECTOR_SHIFT) as SectorCount);
        bio.nr_segments = list.len() as u32;
        bio.data = match list {
            [only] => only.start,
            _ => list.as_ptr().cast_mut().cast(),
        };
        bio
    }

    /// Sets the caller's number for this I/O, which its completion returns.
    #[inline]
    #[must_use]
    pub fn with_user_data(mut self, user_data: u64) -> Bio {
        self.user_data = user_data;
        self
    }

    /// Adds `flags` to the flags already set.
    #[must_use]
    pub fn with_flags(mut self, flags: OpFlags) -> Bio {
        self.flags = self.flags.with(flags);
        self
    }

    /// Sets the tenant that the I/O is accounted to, 0 to 65,535.
    #[must_use]
    pub fn with_tenant(mut self, tenant: u16) -> Bio {
        self.account_key.tenant = tenant;
        self
    }

    /// Sets the group whose share and limits apply to the I/O. The default group replaces a group
    /// that was never opened.
    #[must_use]
    pub fn with_group(mut self, group: GroupId) -> Bio {
        self.account_key.group = group;
        self
    }

    /// Changes the caller's number for this I/O in an existing bio. [`Bio::with_user_data`] sets
    /// the number of a new bio.
    #[inline]
    pub fn set_user_data(&mut self, user_data: u64) {
        self.user_data = user_data;
    }

    /// Sets another start sector, so that the same memory can be submitted again.
    #[inline]
    pub fn set_sector(&mut self, sector: Sector) {
        self.sector = sector;
    }

    /// Sets the operation to a read or a write over the same memory.
    ///
    /// # Panics
    /// If the old or the new operation transfers no data.
    #[inline]
    pub fn set_op(&mut self, op: Op) {
        assert!(self.op.has_data() && op.has_data(), "only reads and writes carry data");
        self.op = op;
    }

    /// Replaces all flags of the bio; [`Bio::with_flags`] adds flags instead.
    #[inline]
    pub fn set_flags(&mut self, flags: OpFlags) {
        self.flags = flags;
    }

    /// Returns the memory of a bio made by `read` or `write`, or `None` for other bios.
    pub fn memory(&mut self) -> Option<&mut [u8]> {
        let len = self.len_bytes();
        // SAFETY: made by `owned` from a buffer of exactly this length, borrowed with the bio.
        (self.owner == MemoryOwner::Buffer)
            .then(|| unsafe { core::slice::from_raw_parts_mut(self.data, len) })
    }

    /// Returns the number set by [`Bio::with_user_data`].
    #[inline]
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Returns the group whose share and limits apply to the I/O.
    #[inline]
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.account_key.group
    }

    /// Returns the operation.
    #[inline]
    #[must_use]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the first sector, in units of 512 bytes.
    #[inline]
    #[must_use]
    pub fn sector(&self) -> Sector {
        self.sector
    }

    /// Returns the length in units of 512 bytes.
    #[inline]
    #[must_use]
    pub fn nr_sectors(&self) -> SectorCount {
        self.nr_sectors
    }

    /// Returns the number of memory segments.
    #[inline]
    #[must_use]
    pub fn nr_segments(&self) -> u32 {
        self.nr_segments
    }

    /// Returns true if the bio has memory, or an operation that needs none.
    #[inline]
    pub(crate) fn has_memory(&self) -> bool {
        self.nr_segments != 0 || !self.op.has_data()
    }

    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.owner == MemoryOwner::Foreign
    }

    pub(crate) fn hollow(&self) -> Bio {
        let mut hollow = self.part(self.op, self.nr_sectors);
        hollow.flags = self.flags;
        (hollow.data, hollow.nr_segments) = (NonNull::dangling().as_ptr(), 0);
        hollow
    }

    /// Creates a bio for a part of this one, over the same memory, which this bio still owns.
    pub(crate) fn part(&self, op: Op, nr_sectors: SectorCount) -> Bio {
        let mut part = Bio::new(op, self.sector, nr_sectors);
        part.data = self.data;
        part.nr_segments = self.nr_segments;
        part.user_data = self.user_data;
        part.account_key = self.account_key;
        part
    }

    /// Takes the buffer out of a bio made by `read` or `write`; `None` for other bios.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        let bio = ManuallyDrop::new(self);
        match bio.owner {
            // SAFETY: made by `owned` from a buffer of exactly this length; not dropped here.
            MemoryOwner::Buffer => NonNull::new(bio.data)
                .map(|start| unsafe { Buffer::from_raw(start, bio.len_bytes()) }),
            _ => {
                drop(ManuallyDrop::into_inner(bio));
                None
            }
        }
    }

    /// Takes the buffers out of a bio made by `readv`, `writev`, `read` or `write`. Returns an
    /// empty vector for other bios.
    #[must_use]
    pub fn into_buffers(self) -> Vec<Buffer> {
        let mut bio = ManuallyDrop::new(self);
        match bio.owner {
            MemoryOwner::Buffers => bio.take_buffers(),
            _ => ManuallyDrop::into_inner(bio).into_buffer().into_iter().collect(),
        }
    }

    /// Returns the bytes of memory that the I/O transfers; 0 for an operation without data.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        if self.op.has_data() { (self.nr_sectors as usize) << SECTOR_SHIFT } else { 0 }
    }

    /// Returns a contiguous piece of the I/O's memory, which begins `offset` bytes into that
    /// memory. The piece has at most `len_bytes` bytes, and ends no later than its segment. The
    /// caller must not ask for memory beyond the end of the I/O: the length of a single segment is
    /// not stored, so this call cannot check the range.
    #[inline]
    pub(crate) fn piece(&self, offset: u64, len_bytes: u32) -> Segment {
        if self.nr_segments == 1 {
            return Segment { start: self.data.wrapping_add(offset as usize), len_bytes };
        }
        self.piece_of_list(offset, len_bytes)
    }

    fn piece_of_list(&self, mut offset: u64, len_bytes: u32) -> Segment {
        let list = self.data.cast::<Segment>();
        for index in 0..self.nr_segments as usize {
            // SAFETY: the list has `nr_segments` entries and lives as long as the bio.
            let segment = unsafe { *list.add(index) };
            if offset < u64::from(segment.len_bytes) {
                return Segment {
                    start: segment.start.wrapping_add(offset as usize),
                    len_bytes: len_bytes.min(segment.len_bytes - offset as u32),
                };
            }
            offset -= u64::from(segment.len_bytes);
        }
        panic!("a bio's segments are shorter than the bio");
    }

    fn take_buffers(&mut self) -> Vec<Buffer> {
        let list = core::ptr::slice_from_raw_parts_mut(
            self.data.cast::<Segment>(),
            self.nr_segments as usize,
        );
        self.owner = MemoryOwner::Foreign;
        // SAFETY: the list was boxed in `owned_vectored`; the owner was cleared above.
        let list = unsafe { Box::from_raw(list) };
        let buffer = |segment: &Segment| {
            let start = NonNull::new(segment.start).expect("buffers are never null");
            // SAFETY: each segment is a buffer given up in `owned_vectored`.
            unsafe { Buffer::from_raw(start, segment.len_bytes as usize) }
        };
        list.iter().map(buffer).collect()
    }
}

impl Drop for Bio {
    #[inline]
    fn drop(&mut self) {
        match self.owner {
            MemoryOwner::Foreign => {}
            MemoryOwner::Buffer => {
                let start = NonNull::new(self.data).expect("buffers are never null");
                // SAFETY: made by `owned` from a buffer of exactly this length.
                drop(unsafe { Buffer::from_raw(start, self.len_bytes()) });
            }
            MemoryOwner::Buffers => drop(self.take_buffers()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn buffer_comes_back_with_its_contents() {
        let mut buffer = Buffer::new(1024);
        buffer[7] = 9;
        let back = Bio::write(3, buffer).into_buffer().expect("an owned bio");
        assert_eq!((back.len(), back[7]), (1024, 9));
    }

    #[test]
    fn memory_of_an_owned_buffer_can_be_filled_and_no_other() {
        let mut bio = Bio::read(3, Buffer::new(1024));
        bio.memory().expect("an owned buffer")[1023] = 9;
        assert_eq!(bio.into_buffer().expect("an owned bio")[1023], 9);
        assert!(Bio::flush().memory().is_none());
        assert!(Bio::readv(0, vec![Buffer::new(512), Buffer::new(512)]).memory().is_none());
    }

    #[test]
    fn vectored_bio_gives_all_buffers_back() {
        let bio = Bio::readv(0, vec![Buffer::new(512), Buffer::new(4096)]);
        assert_eq!((bio.nr_sectors(), bio.nr_segments()), (9, 2));
        let lens: Vec<usize> = bio.into_buffers().iter().map(|b| b.len()).collect();
        assert_eq!(lens, [512, 4096]);
    }

    #[test]
    fn pieces_of_a_list_end_at_segment_boundaries() {
        let bio = Bio::readv(0, vec![Buffer::new(512), Buffer::new(1024)]);
        let starts: Vec<u64> = (0..2).map(|at| bio.piece(at * 512, 1).start as u64).collect();
        for (offset, len, piece, start) in [
            (0, 1536, 512, starts[0]),
            (100, 1436, 412, starts[0] + 100),
            (511, 1025, 1, starts[0] + 511),
            (512, 1024, 1024, starts[1]),
            (600, 936, 936, starts[1] + 88),
            (600, 100, 100, starts[1] + 88),
        ] {
            let found = bio.piece(offset, len);
            assert_eq!((found.len_bytes, found.start as u64), (piece, start), "{offset} {len}");
        }
    }

    #[test]
    fn operations_have_names_and_know_data_and_changes() {
        let table = [
            (Op::Read, "read", true, false),
            (Op::Write, "write", true, true),
            (Op::Flush, "flush", false, false),
            (Op::Discard, "discard", false, true),
            (Op::WriteZeroes, "write-zeroes", false, true),
        ];
        for (at, (op, name, has_data, is_write)) in table.into_iter().enumerate() {
            assert_eq!((Op::ALL[at], op as usize, op.name()), (op, at, name));
            assert_eq!((op.has_data(), op.is_write()), (has_data, is_write), "{name}");
        }
    }

    #[test]
    fn flags_are_a_set() {
        let all = [OpFlags::FUA, OpFlags::PREFLUSH, OpFlags::NOUNMAP];
        let set = |bits: usize| {
            let chosen = (0..3).filter(|at| bits & 1 << at != 0).map(|at| all[at]);
            chosen.fold(OpFlags::NONE, OpFlags::with)
        };
        for a in 0..8 {
            for b in 0..8 {
                assert_eq!(set(a).with(set(b)), set(a | b));
                assert_eq!(set(a).without(set(b)), set(a & !b));
                assert_eq!(set(a).has(set(b)), a & b == b);
            }
        }
    }

    #[test]
    fn a_bio_says_what_it_was_made_and_told_to_be() {
        let seen = |bio: &Bio| (bio.op(), bio.sector(), bio.nr_sectors(), bio.nr_segments());
        let two = || vec![Buffer::new(512), Buffer::new(1024)];
        assert_eq!(seen(&Bio::read(3, Buffer::new(1024))), (Op::Read, 3, 2, 1));
        assert_eq!(seen(&Bio::write(4, Buffer::new(512))), (Op::Write, 4, 1, 1));
        assert_eq!(seen(&Bio::readv(5, two())), (Op::Read, 5, 3, 2));
        assert_eq!(seen(&Bio::writev(6, two())), (Op::Write, 6, 3, 2));
        assert_eq!(seen(&Bio::writev(6, vec![Buffer::new(512)])), (Op::Write, 6, 1, 1));
        assert_eq!(seen(&Bio::flush()), (Op::Flush, 0, 0, 0));
        assert_eq!(seen(&Bio::discard(7, 8)), (Op::Discard, 7, 8, 0));
        assert_eq!(seen(&Bio::write_zeroes(9, 10)), (Op::WriteZeroes, 9, 10, 0));
        let mut bio = Bio::read(3, Buffer::new(1024)).with_user_data(7).with_tenant(8);
        assert_eq!((bio.user_data(), bio.account_key.tenant, bio.len_bytes()), (7, 8, 1024));
        assert_eq!(Bio::discard(0, 8).len_bytes(), 0);
        bio.set_op(Op::Write);
        bio.set_sector(11);
        bio.set_user_data(12);
        assert_eq!((seen(&bio), bio.user_data()), ((Op::Write, 11, 2, 1), 12));
        assert!(bio.has_memory() && Bio::flush().has_memory() && Bio::discard(0, 8).has_memory());
        assert!(!Bio::readv(0, Vec::new()).has_memory());
    }

    #[test]
    fn parts_and_hollow_bios_keep_what_names_them_and_own_nothing() {
        let bio = Bio::write(3, Buffer::new(1024))
            .with_user_data(7)
            .with_tenant(8)
            .with_flags(OpFlags::FUA);
        let part = bio.part(Op::Flush, 1);
        assert_eq!((part.op(), part.sector(), part.nr_sectors()), (Op::Flush, 3, 1));
        assert_eq!((part.user_data(), part.account_key.tenant, part.flags), (7, 8, OpFlags::NONE));
        assert!(part.is_foreign() && !bio.is_foreign());
        assert_eq!((part.data, part.nr_segments()), (bio.data, 1));
        let hollow = bio.hollow();
        assert_eq!((hollow.op(), hollow.sector(), hollow.nr_sectors()), (Op::Write, 3, 2));
        assert_eq!(
            (hollow.user_data(), hollow.account_key.tenant, hollow.flags),
            (7, 8, OpFlags::FUA)
        );
        assert!(!hollow.has_memory() && hollow.is_foreign());
        assert!(hollow.into_buffer().is_none());
    }

    #[test]
    fn foreign_memory_in_one_piece_is_no_list() {
        let mut memory = [0u8; 1024];
        let start = memory.as_mut_ptr();
        let segment = |at: usize| Segment { start: start.wrapping_add(at), len_bytes: 512 };
        let lists = [vec![Segment { start, len_bytes: 1024 }], vec![segment(512), segment(0)]];
        for (list, places) in lists.iter().zip([[0, 512], [512, 0]]) {
            // SAFETY: memory and lists outlive the bio.
            let bio = unsafe { Bio::foreign_vectored(Op::Read, 0, &raw const list[..]) };
            assert_eq!((bio.nr_sectors(), bio.nr_segments() as usize), (2, list.len()));
            for (done, place) in [(0, places[0]), (512, places[1])] {
                assert_eq!(bio.piece(done, 512).start, start.wrapping_add(place));
            }
        }
    }
}
