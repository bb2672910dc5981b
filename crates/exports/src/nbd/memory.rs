//! Payload memory: a buffer pool for each I/O thread, and a shared area of zeroes.
//!
//! One [`MemoryBudget`] counts the memory that all pools have mapped. A region without a buffer in
//! use is unmapped after it was unused for a while, or when a connection waits for memory.
//!
//! Invariants: a buffer has one owner (it is not `Clone`), and its region stays mapped until
//! [`BufferPool::give`] gets it back. Fresh memory is zeroed by the kernel. A buffer's bytes are
//! read only by a drive, or by a send after a drive filled it.
#![allow(unsafe_code)]

pub(crate) mod budget;
pub(crate) mod waiting_line;

use std::io;
use std::sync::Arc;

use millrace_block::{Bio, Op, Sector};
use millrace_machine::payload::{
    ArenaBuffer, BufferArena, ORDERS, REGION_BYTES, Region, order_bytes, order_of, region_bytes,
};
use millrace_reactor::Handle;

use self::budget::{MemoryBudget, MemoryPart, STUCK};
use self::waiting_line::{GroupAccount, MemoryWaiter, SIZE_CLASSES, size_class};

/// Size in bytes of the shared area of zeroes, enough for all blocks of the longest read.
const ZERO_AREA_BYTES: usize = order_bytes(ORDERS as u8 - 1);

/// Returns unused heap memory to the kernel. The allocator would otherwise keep this memory after
/// connections were closed.
pub fn trim_heap() {
    // SAFETY: gives back memory that the allocator counts as free; takes its own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

#[derive(Debug)]
pub(crate) struct Zeroes(Region);

impl Zeroes {
    pub(crate) fn new() -> io::Result<Arc<Zeroes>> {
        Ok(Arc::new(Zeroes(Region::map_sparse(ZERO_AREA_BYTES)?)))
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    pub(crate) fn bio(&self, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(len_bytes as usize <= ZERO_AREA_BYTES);
        // SAFETY: the mapping outlives every channel of the server.
        // Only volumes whose drives never touch payload get this bio, so the area of zeroes does
        // not change.
        unsafe { Bio::foreign(op, sector, self.start(), len_bytes) }
    }
}

#[derive(Debug)]
pub(crate) struct PoolBuffer {
    memory: ArenaBuffer,
    /// Memory account that was charged for the buffer, if the request's group has limits.
    account: Option<GroupAccount>,
    /// True if the request was answered with a timeout, and a drive may still use the memory.
    is_stuck: bool,
}

impl PoolBuffer {
    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start().as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Returns the whole buffer. No drive and no socket operation may be using the buffer.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the region is mapped while the buffer exists, and `&mut self` is its only handle.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len()) }
    }

    /// Returns a bio for `len_bytes` bytes of the buffer, starting at `offset`. The buffer must be
    /// kept until the bio completes.
    #[inline]
    pub(crate) fn bio_at(&self, offset: usize, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(offset + len_bytes as usize <= self.len());
        // SAFETY: the offset is inside the buffer, which the ticket keeps until the bio completes.
        // If the thread ends with the bio in flight, it leaks its pool, so the buffer stays mapped.
        unsafe { Bio::foreign(op, sector, self.start().add(offset), len_bytes) }
    }
}

#[derive(Debug)]
struct RegionNote {
    /// Address and length of the region if it is lent to the ring (registered with io_uring).
    lent: Option<(*mut u8, usize)>,
    /// Number of the region's buffers that drives may still use after their requests timed out.
    stuck: u16,
}

pub(crate) struct BufferPool {
    pub(crate) budget: Arc<MemoryBudget>,
    handle: Handle,
    /// One arena for each size class, so that long buffers leave memory for short ones.
    arenas: [BufferArena<RegionNote>; SIZE_CLASSES],
    idle_bytes_max: usize,
    /// Smallest amount of mapped but unused memory, in bytes, since the last `give_back_unneeded`.
    idle_bytes_least: usize,
    pub(crate) thread: usize,
}

impl BufferPool {
    pub(crate) fn new(
        budget: Arc<MemoryBudget>,
        handle: Handle,
        idle_bytes_max: usize,
        thread: usize,
    ) -> BufferPool {
        BufferPool {
            budget,
            handle,
            arenas: Default::default(),
            idle_bytes_max,
            idle_bytes_least: 0,
            thread,
        }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.arenas.iter().map(BufferArena::in_use).sum()
    }

    #[inline]
    pub(crate) fn idle_bytes(&self) -> usize {
        self.arenas.iter().map(BufferArena::idle_bytes).sum()
    }

    /// Takes a buffer for a connection from `part` of the memory budget. Returns `None` if that
    /// part is used up, or if connections in the waiting line come first.
    #[inline]
    pub(crate) fn take(&mut self, waiter: MemoryWaiter, part: MemoryPart) -> Option<PoolBuffer> {
        let (order, arena) = (order_of(waiter.bytes)?, waiter.class());
        let is_shared = part == MemoryPart::Shared;
        // Once the shared memory is used up, free buffers go only to requests within their
        // connection's window (the memory reserved for it).
        let may_reuse = !is_shared || !self.budget.is_overfull();
        let found = may_reuse.then(|| self.arenas[arena].take(order)).flatten();
        let asks = is_shared && (waiter.account.is_some() || self.budget.has_waiters());
        let memory = match found {
            Some(memory) if !asks => memory,
            found => self.ask(waiter, part, found)?,
        };
        self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes());
        Some(PoolBuffer { memory, account: waiter.account, is_stuck: false })
    }

    /// Takes the free buffer `found`, or maps a new region, if the server's memory budget permits.
    #[cold]
    fn ask(
        &mut self,
        waiter: MemoryWaiter,
        part: MemoryPart,
        found: Option<ArenaBuffer>,
    ) -> Option<ArenaBuffer> {
        let (order, arena) = (order_of(waiter.bytes)?, waiter.class());
        let bytes = if found.is_some() { 0 } else { region_bytes(order) };
        if !self.budget.admit(waiter, part, bytes) {
            self.trim_for_others();
            if !self.budget.admit(waiter, part, bytes) {
                found.map(|memory| self.arenas[arena].give(memory));
                return None;
            }
        }
        if found.is_some() {
            return found;
        }
        let handle = &self.handle;
        let note = |region: &Region| RegionNote { lent: lend(handle, region), stuck: 0 };
        if self.arenas[arena].map(order, note).is_err() {
            self.budget.revoke(waiter, bytes);
            return None;
        }
        self.arenas[arena].take(order)
    }

    pub(crate) fn give(&mut self, mut buffer: PoolBuffer) {
        self.leave_account(&mut buffer);
        let (arena, region) = (size_class(buffer.len()), buffer.memory.region());
        if buffer.is_stuck {
            let (note, bytes) = self.arenas[arena].note_mut(region).expect("it is in use");
            note.stuck -= 1;
            if note.stuck == 0 {
                self.budget.recount(bytes, STUCK, arena);
            }
        }
        if self.arenas[arena].give(buffer.memory) && self.idle_bytes() > self.idle_bytes_max {
            self.unmap(arena, region);
        }
    }

    #[inline]
    pub(crate) fn leave_account(&mut self, buffer: &mut PoolBuffer) {
        if let Some(account) = buffer.account.take() {
            self.budget.change_line(|line| line.credit(account, buffer.len()));
        }
    }

    /// Marks a buffer as stuck: its request is answered, but a drive that hangs may still use the
    /// memory.
    pub(crate) fn begin_stuck(&mut self, buffer: &mut PoolBuffer) {
        self.leave_account(buffer);
        if !std::mem::replace(&mut buffer.is_stuck, true) {
            let (arena, region) = (size_class(buffer.len()), buffer.memory.region());
            let (note, bytes) = self.arenas[arena].note_mut(region).expect("it is in use");
            note.stuck += 1;
            if note.stuck == 1 {
                self.budget.recount(bytes, arena, STUCK);
            }
        }
    }

    pub(crate) fn trim(&mut self) {
        self.unmap_idle(usize::MAX, 0);
    }

    /// Unmaps memory that was not used at any time since the last call.
    pub(crate) fn give_back_unneeded(&mut self) {
        self.unmap_idle(self.idle_bytes_least, 0);
        self.idle_bytes_least = self.idle_bytes();
    }

    /// Unmaps unused memory. A limit applies to the mapped memory of all threads together, so other
    /// threads can then map more. If the server reserves memory for each connection, one region
    /// stays mapped, because the next request would map it again.
    pub(crate) fn trim_for_others(&mut self) {
        let kept_bytes = if self.budget.window_bytes > 0 { REGION_BYTES } else { 0 };
        self.unmap_idle(usize::MAX, kept_bytes);
    }

    /// Unmaps up to `most_bytes` of unused regions. `kept_bytes` of the smallest size class stay
    /// mapped.
    fn unmap_idle(&mut self, mut most_bytes: usize, kept_bytes: usize) {
        for (arena, kept_bytes) in [(2, 0), (1, 0), (0, kept_bytes)] {
            while self.arenas[arena].mapped_bytes() > kept_bytes
                && let Some(region) = self.arenas[arena].find_idle(|bytes| bytes <= most_bytes)
            {
                most_bytes -= self.unmap(arena, region);
            }
        }
    }

    fn unmap(&mut self, arena: usize, region: u32) -> usize {
        let handle = &self.handle;
        let Some(bytes) = self.arenas[arena].unmap(region, |note| {
            if let Some((start, len)) = note.lent {
                // SAFETY: no buffer of the region is in use, so no outstanding operation uses it.
                unsafe { handle.take_back(start, len) };
            }
        }) else {
            return 0;
        };
        self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes());
        self.budget.unmap(arena, bytes);
        self.budget.announce();
        bytes
    }
}

/// Lends a region of small buffers to the ring (registers it with io_uring), so that the kernel
/// need not pin the pages again for every I/O of a file drive. A region of long buffers is not
/// lent, because a registered region stays pinned.
fn lend(handle: &Handle, region: &Region) -> Option<(*mut u8, usize)> {
    let (start, len) = (region.start().as_ptr(), region.len_bytes());
    if len > REGION_BYTES {
        return None;
    }
    // SAFETY: `unmap` takes the region back before it unmaps the memory.
    // The worker drops its ring before the pool, so no registration with the ring outlives the
    // memory.
    unsafe { handle.lend(start, len, len) };
    if handle.fixed_buffer(start, len).is_some() {
        return Some((start, len));
    }
    // The ring did not register the region: there is no io_uring, the ring's table is full, or the
    // kernel refused. If the kernel refused, the ring keeps the error until the region is taken
    // back. A drive on this ring would report the error as a failure to register the drive's own
    // memory.
    // SAFETY: no operation uses the new region.
    unsafe { handle.take_back(start, len) };
    None
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        // A pool with requests in flight is leaked and never dropped. So no drive uses the memory
        // of a pool that is dropped, and no memory of the pool is counted as `STUCK` (in use by
        // drives after a timeout).
        let arenas = self.arenas.iter().enumerate();
        arenas.for_each(|(class, arena)| self.budget.unmap(class, arena.mapped_bytes()));
    }
}

/// Returns the size of a pool buffer for `len_bytes` of payload, or `None` if no buffer is that
/// long.
#[inline]
pub(crate) fn buffer_bytes(len_bytes: usize) -> Option<usize> {
    order_of(len_bytes).map(order_bytes)
}

#[cfg(test)]
mod tests;
