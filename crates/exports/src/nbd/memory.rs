//! Payload memory: each I/O thread's pool, and the shared area of zeroes.
//!
//! A [`Pool`] belongs to one I/O thread and hands out buffers of its two arenas; what all pools
//! have mapped is counted by one [`Budget`]. A region without a buffer in use goes back to the
//! system when it was not needed for a while, or when somebody waits for memory.
//! Called by the request path; calls the arenas and the reactor's table of registered buffers.
//!
//! Invariants: a buffer is in one pair of hands (it is not `Clone`), and its region stays mapped
//! until it came back by [`Pool::give`]; fresh memory is zeroed by the kernel; nothing reads a
//! buffer's bytes but a drive, a socket send of what a drive has just filled, and nobody else.
#![allow(unsafe_code)]

pub(crate) mod budget;
pub(crate) mod group_parts;

use std::io;
use std::sync::Arc;

use millrace_block::{Bio, Op, Sector};
use millrace_machine::payload::{
    ArenaBuffer, BufferArena, ORDERS, REGION_BYTES, Region, order_bytes, order_of, region_bytes,
};
use millrace_reactor::Handle;

use self::budget::{Budget, LITTLE_BYTES};
use self::group_parts::Part;

/// Bytes of the area of zeroes: as long as all blocks that the longest read may touch.
const ZERO_AREA_BYTES: usize = order_bytes(ORDERS as u8 - 1);

/// Has the allocator give back to the system what nobody uses: it keeps what many connections had
/// for the next ones, for ever.
pub(crate) fn trim_heap() {
    // SAFETY: gives back memory that the allocator counts as free; takes its own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Zeroes that nobody writes to, shared by every reply that says zeroes.
#[derive(Debug)]
pub(crate) struct Zeroes(Region);

impl Zeroes {
    pub(crate) fn new() -> io::Result<Arc<Zeroes>> {
        Ok(Arc::new(Zeroes(Region::map_sparse(ZERO_AREA_BYTES)?)))
    }

    /// The address, for sends only.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    /// A bio over these zeroes for a volume whose drives never touch payload.
    pub(crate) fn bio(&self, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(len_bytes as usize <= ZERO_AREA_BYTES);
        // SAFETY: the mapping outlives every channel of the server; the caller's drives never touch
        // payload, so that nobody writes there.
        unsafe { Bio::foreign(op, sector, self.start(), len_bytes) }
    }
}

/// A buffer of a pool.
#[derive(Debug)]
pub(crate) struct PoolBuffer {
    memory: ArenaBuffer,
    /// The part of a group with limits that it counts in.
    part: Option<Part>,
    /// It counts in the account of requests that overtook others.
    overtakes: bool,
    /// Its request was answered while a stuck drive may still touch the memory.
    is_stuck: bool,
}

impl PoolBuffer {
    /// The buffer's first byte; valid until the buffer is given back.
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start().as_ptr()
    }

    /// The buffer's size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Copies bytes in at an offset.
    pub(crate) fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// All of it. Only for buffers that no drive and no socket operation has.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the region is mapped as long as the buffer exists, and the exclusive borrow of
        // the only handle means that nobody else here touches it.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len()) }
    }

    /// A bio over the first bytes of it. The buffer must be kept until the bio has completed.
    #[inline]
    pub(crate) fn bio(&self, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        self.bio_at(0, op, sector, len_bytes)
    }

    /// A bio over bytes of it from an offset on.
    #[inline]
    pub(crate) fn bio_at(&self, offset: usize, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(offset + len_bytes as usize <= self.len());
        // SAFETY: the ticket of the request keeps the buffer until its completion was polled, and a
        // thread that ends with tickets left leaks its pool; the offset lies inside.
        unsafe { Bio::foreign(op, sector, self.start().add(offset), len_bytes) }
    }
}

/// A pool's note of a region.
#[derive(Debug)]
struct RegionNote {
    registered: Option<u16>,
    /// Buffers that stuck drives keep.
    stuck: u16,
}

/// The buffers of one I/O thread.
pub(crate) struct Pool {
    budget: Arc<Budget>,
    handle: Handle,
    /// Little buffers, and longer ones.
    arenas: [BufferArena<RegionNote>; 2],
    /// How many bytes of regions without a buffer in use are kept, and the fewest since the pool
    /// was last asked to give back what it does not need.
    idle_bytes_max: usize,
    idle_bytes_least: usize,
    /// For each order how many buffers are in use that no stuck drive keeps.
    lent: [u32; ORDERS],
    thread: usize,
    /// Something was given back to the budget.
    returned: bool,
    /// Connections that wait for parts of groups have reason to try again.
    part_freed: bool,
}

impl Pool {
    /// The pool of I/O thread `thread`, which keeps at most `idle_bytes_max` unused.
    pub(crate) fn new(
        budget: Arc<Budget>,
        handle: Handle,
        idle_bytes_max: usize,
        thread: usize,
    ) -> Pool {
        Pool {
            budget,
            handle,
            arenas: Default::default(),
            idle_bytes_max,
            idle_bytes_least: 0,
            lent: [0; ORDERS],
            thread,
            returned: false,
            part_freed: false,
        }
    }

    /// Buffers handed out.
    pub(crate) fn in_use(&self) -> usize {
        self.arenas.iter().map(BufferArena::in_use).sum()
    }

    /// The account of all pools.
    #[inline]
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The number of the I/O thread.
    pub(crate) fn thread(&self) -> usize {
        self.thread
    }

    /// Bytes of regions without a buffer in use.
    #[inline]
    pub(crate) fn idle_bytes(&self) -> usize {
        self.arenas[0].idle_bytes() + self.arenas[1].idle_bytes()
    }

    /// Whether a buffer of this size could ever be had.
    pub(crate) fn can_ever(&self, len_bytes: usize) -> bool {
        let most_bytes = self.budget.limit(usize::MAX);
        order_of(len_bytes).is_some_and(|order| region_bytes(order) <= most_bytes)
    }

    /// Returns true if waiting for a buffer of this size can end while stuck drives keep what they
    /// have: there is room to map a region once all others are given back, or a buffer as long is
    /// in use and will come back. At most `limit` bytes may be mapped.
    pub(crate) fn can_wait(&self, len_bytes: usize, limit: usize) -> bool {
        let stuck_bytes = self.budget.stuck_bytes();
        let Some(order) = order_of(len_bytes) else { return false };
        let limit = limit.min(self.budget.max_bytes());
        let (arena, region) = (arena_of(order_bytes(order)), region_bytes(order));
        // Longer buffers of the same regions leave room, too.
        let serves =
            |other: u8| arena_of(order_bytes(other)) == arena && region_bytes(other) == region;
        let mut lent = (0_u8..).zip(self.lent).skip(usize::from(order));
        stuck_bytes == 0
            || stuck_bytes + region <= limit
            || lent.any(|(other, lent)| lent > 0 && serves(other))
    }

    /// A buffer of at least `len_bytes`; none if there is no free one and all pools have, or would
    /// have, more than `limit` bytes mapped.
    #[inline]
    pub(crate) fn take(&mut self, len_bytes: usize, limit: usize) -> Option<PoolBuffer> {
        let order = order_of(len_bytes)?;
        let arena = arena_of(order_bytes(order));
        let memory = match self.arenas[arena].take(order) {
            Some(memory) => memory,
            None => {
                self.map(order, limit)?;
                self.arenas[arena].take(order)?
            }
        };
        self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes());
        self.lent[usize::from(order)] += 1;
        Some(PoolBuffer { memory, part: None, overtakes: false, is_stuck: false })
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, mut buffer: PoolBuffer) {
        self.leave_part(&mut buffer);
        self.end_overtaking(&mut buffer);
        let (arena, region) = (arena_of(buffer.len()), buffer.memory.region());
        let order = usize::from(buffer.memory.order());
        self.lent[order] -= u32::from(!buffer.is_stuck);
        if buffer.is_stuck {
            let (note, bytes) = self.arenas[arena].note_mut(region).expect("it is in use");
            note.stuck -= 1;
            if note.stuck == 0 {
                self.budget.end_stuck(bytes);
            }
        }
        if self.arenas[arena].give(buffer.memory) && self.idle_bytes() > self.idle_bytes_max {
            self.unmap(arena, region);
        }
    }

    /// The buffer's request overtook others that wait.
    pub(crate) fn begin_overtaking(&mut self, buffer: &mut PoolBuffer) {
        buffer.overtakes = true;
        self.budget.begin_overtaking(buffer.len());
    }

    /// The buffer counts among those of overtakers no longer, if it did.
    #[inline]
    pub(crate) fn end_overtaking(&mut self, buffer: &mut PoolBuffer) {
        if std::mem::take(&mut buffer.overtakes) {
            self.budget.end_overtaking(buffer.len());
            // Others on the list may overtake now.
            self.returned = true;
        }
    }

    /// The buffer's request is answered, but a drive that does not answer keeps the memory.
    pub(crate) fn begin_stuck(&mut self, buffer: &mut PoolBuffer) {
        self.leave_part(buffer);
        self.end_overtaking(buffer);
        if !std::mem::replace(&mut buffer.is_stuck, true) {
            self.lent[usize::from(buffer.memory.order())] -= 1;
            let arena = &mut self.arenas[arena_of(buffer.len())];
            let (note, bytes) = arena.note_mut(buffer.memory.region()).expect("it is in use");
            note.stuck += 1;
            if note.stuck == 1 {
                self.budget.begin_stuck(bytes);
            }
        }
    }

    /// Gives everything that is unused back to the system.
    pub(crate) fn trim(&mut self) {
        self.unmap_idle(usize::MAX, 0);
    }

    /// Gives back what was unused ever since the last call.
    pub(crate) fn give_back_unneeded(&mut self) {
        self.unmap_idle(self.idle_bytes_least, 0);
        self.idle_bytes_least = self.idle_bytes();
    }

    /// While others wait for memory: gives back what is unused, but for one region of little
    /// buffers where the budget has slices for those, as small requests would map it anew at once.
    /// True if something was given back since the last call.
    pub(crate) fn trim_for_others(&mut self) -> bool {
        if self.idle_bytes() > 0 {
            let kept_bytes = if self.budget.has_slices() { REGION_BYTES } else { 0 };
            self.unmap_idle(usize::MAX, kept_bytes);
        }
        std::mem::take(&mut self.returned)
    }

    /// Unmaps regions without a buffer in use, `most_bytes` at most, but for the last of little
    /// buffers if so many bytes of those are to be kept.
    fn unmap_idle(&mut self, mut most_bytes: usize, kept_bytes: usize) {
        for (arena, kept_bytes) in [(1, 0), (0, kept_bytes)] {
            while self.arenas[arena].mapped_bytes() > kept_bytes
                && let Some(region) = self.arenas[arena].find_idle(|bytes| bytes <= most_bytes)
            {
                most_bytes -= self.unmap(arena, region);
            }
        }
    }

    /// Maps a region with room for a buffer of an order; none if all pools have, or would have,
    /// more than `limit` bytes.
    #[cold]
    fn map(&mut self, order: u8, limit: usize) -> Option<()> {
        let bytes = region_bytes(order);
        if !self.budget.take(bytes, limit) {
            if limit == 0 {
                // What is unused here is somebody else's turn.
                return None;
            }
            self.trim();
            if !self.budget.take(bytes, limit) {
                return None;
            }
        }
        let handle = &self.handle;
        let note = |region: &Region| RegionNote { registered: register(handle, region), stuck: 0 };
        let mapped = self.arenas[arena_of(order_bytes(order))].map(order, note);
        if mapped.is_err() {
            self.budget.give(bytes);
        }
        mapped.ok()
    }

    /// Unmaps a region that is not in use; returns its bytes.
    fn unmap(&mut self, arena: usize, region: u32) -> usize {
        let handle = &self.handle;
        let Some(bytes) = self.arenas[arena].unmap(region, |note| {
            if let Some(index) = note.registered {
                // SAFETY: no buffer of the region is in use, so no operation names it.
                unsafe { handle.unregister_buffer(index) };
            }
        }) else {
            return 0;
        };
        self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes());
        self.budget.give(bytes);
        self.returned = true;
        bytes
    }
}

/// Registers a region of small buffers with the ring, which saves the kernel pinning them for every
/// I/O of a file drive. Long ones would pin too much memory.
fn register(handle: &Handle, region: &Region) -> Option<u16> {
    if region.len_bytes() > REGION_BYTES {
        return None;
    }
    // SAFETY: the region is unregistered in `unmap` before its mapping goes, or the ring is gone
    // when the pool is dropped (the worker drops its I/O context first).
    unsafe { handle.register_buffer(region.start().as_ptr(), region.len_bytes()) }
}

/// Which arena a buffer of so many bytes comes from. Little ones have regions of their own, so that
/// longer ones do not use up what is free of those.
#[inline]
fn arena_of(buffer_bytes: usize) -> usize {
    usize::from(buffer_bytes > LITTLE_BYTES)
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.budget.give(self.arenas.iter().map(BufferArena::mapped_bytes).sum());
    }
}

/// Bytes of the buffer that holds so many; none if there is no such buffer.
#[inline]
pub(crate) fn buffer_bytes(len_bytes: usize) -> Option<usize> {
    order_of(len_bytes).map(order_bytes)
}

#[cfg(test)]
mod tests;
