//! Payload memory: anonymous mappings, the shared area of zeroes, and each I/O thread's pool.
//!
//! A [`Pool`] belongs to one I/O thread and hands out buffers aligned to 4 KiB, in classes of
//! powers of two from 4 KiB to 32 MiB, and one a little larger for requests that start and end
//! within a block; what all pools have mapped is counted by one [`Budget`]. Buffers are carved from
//! regions; a region without a buffer in use goes back to the system when it was not needed for a
//! while, or when somebody waits for memory.
//! Called by the request path; calls mmap and the reactor's table of registered buffers.
//!
//! Invariants: a buffer is in one pair of hands (it is not `Clone`), and its region stays mapped
//! until it came back by [`Pool::give`]; fresh memory is zeroed by the kernel; nothing reads a
//! buffer's bytes but a drive, a socket send of what a drive has just filled, and nobody else.
#![allow(unsafe_code)]

pub(crate) mod budget;
pub(crate) mod group_parts;

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use millrace_block::{Bio, Op, Sector};
use millrace_reactor::Handle;

use self::budget::Budget;
use self::group_parts::Part;

/// Smallest buffer in bytes, and the alignment of all.
const CLASS_BYTES_MIN: usize = 4096;
/// Classes: 4 KiB to 32 MiB, and one more.
const CLASSES: usize = 15;
/// What the last class has above the largest request: room for the blocks at both of its ends.
const EDGES_BYTES: usize = 256 << 10;
/// Buffers of up to a quarter of this are carved from regions of this size, in bytes.
const REGION_BYTES: usize = 1 << 20;
/// The longest read; the area of zeroes is as long as all blocks that it may touch.
pub(crate) const ZERO_BYTES: usize = 32 << 20;

/// An anonymous mapping.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping is plain memory; its owner settles which thread may touch it.
unsafe impl Send for Mapping {}
// SAFETY: a mapping is plain memory; a shared reference gives out nothing but the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len_bytes: usize, protection: i32) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, flags, -1, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(address) if start != libc::MAP_FAILED => Ok(Mapping { start: address, len_bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; the owner gave out no address still in use.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// Has the allocator give back to the system what nobody uses: it keeps what many connections had
/// for the next ones, for ever.
pub(crate) fn trim_heap() {
    // SAFETY: gives back memory that the allocator counts as free; takes its own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Read-only zeroes, shared by every reply that says zeroes.
#[derive(Debug)]
pub(crate) struct Zeroes(Mapping);

impl Zeroes {
    pub(crate) fn new() -> io::Result<Arc<Zeroes>> {
        Ok(Arc::new(Zeroes(Mapping::new(ZERO_BYTES + EDGES_BYTES, libc::PROT_READ)?)))
    }

    /// The address, for sends only.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// A bio over these zeroes for a volume whose drives never touch payload.
    pub(crate) fn bio(&self, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(len_bytes as usize <= ZERO_BYTES + EDGES_BYTES);
        // SAFETY: the mapping outlives every channel of the server; the caller's drives never touch
        // payload, so that it is read-only does not matter.
        unsafe { Bio::foreign(op, sector, self.start(), len_bytes) }
    }
}

/// A buffer of a pool.
#[derive(Debug)]
pub(crate) struct PoolBuffer {
    start: NonNull<u8>,
    region: u32,
    index: u16,
    class: u8,
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
        self.start.as_ptr()
    }

    /// The buffer's size in bytes.
    pub(crate) fn len(&self) -> usize {
        class_bytes(usize::from(self.class))
    }

    /// Copies bytes in at an offset.
    pub(crate) fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// All of it. Only for buffers that no drive and no socket operation has.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the region is mapped as long as the buffer exists, and the exclusive borrow of
        // the only handle means that nobody else here touches it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
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
        unsafe { Bio::foreign(op, sector, self.start.as_ptr().add(offset), len_bytes) }
    }
}

/// A mapping and which of its buffers are free.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    registered: Option<u16>,
    class: u8,
    count: u16,
    free: u16,
    /// Buffers that stuck drives keep.
    stuck: u16,
    bits: [u64; 4],
}

/// The buffers of one I/O thread.
pub(crate) struct Pool {
    budget: Arc<Budget>,
    handle: Handle,
    regions: Vec<Option<Region>>,
    vacant: Vec<u32>,
    /// For each class the regions that have a free buffer.
    partial: [Vec<u32>; CLASSES],
    /// Bytes of regions without a buffer in use, how many are kept, and the fewest since the pool
    /// was last asked to give back what it does not need.
    idle_bytes: usize,
    idle_bytes_max: usize,
    idle_bytes_least: usize,
    in_use: usize,
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
            regions: Vec::new(),
            vacant: Vec::new(),
            partial: std::array::from_fn(|_| Vec::new()),
            idle_bytes: 0,
            idle_bytes_max,
            idle_bytes_least: 0,
            in_use: 0,
            thread,
            returned: false,
            part_freed: false,
        }
    }

    /// Registers the regions of small buffers with the ring, which saves the kernel pinning them
    /// for every I/O of a file drive. Large ones would pin too much memory.
    fn register(&self, mapping: &Mapping) -> Option<u16> {
        if mapping.len_bytes > REGION_BYTES {
            return None;
        }
        // SAFETY: the region is unregistered in `unmap` before its mapping goes, or the ring is
        // gone when the pool is dropped (the worker drops its I/O context first).
        unsafe { self.handle.register_buffer(mapping.start.as_ptr(), mapping.len_bytes) }
    }

    /// Buffers handed out.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
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
    pub(crate) fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Whether a buffer of this size could ever be had.
    pub(crate) fn can_ever(&self, len_bytes: usize) -> bool {
        let most_bytes = self.budget.limit(usize::MAX);
        class_of(len_bytes).is_some_and(|class| region_bytes(class) <= most_bytes)
    }

    /// Whether waiting for a buffer of this size can end while stuck drives keep what they have.
    /// Small buffers share their regions with others that do come back.
    pub(crate) fn fits_beside_stuck(&self, len_bytes: usize) -> bool {
        let Some(class) = class_of(len_bytes) else { return false };
        class_bytes(class) < region_bytes(class)
            || self.budget.fits_beside_stuck(region_bytes(class))
    }

    /// A buffer of at least `len_bytes`; none if there is no free one and all pools have, or would
    /// have, more than `limit` bytes mapped.
    #[inline]
    pub(crate) fn take(&mut self, len_bytes: usize, limit: usize) -> Option<PoolBuffer> {
        let mut class = class_of(len_bytes)?;
        let id = match self.partial[class].last() {
            Some(id) => *id,
            None => match self.map(class, limit) {
                Some(id) => id,
                None => {
                    // Better one a few times larger than none.
                    let larger = class + 1..CLASSES.min(class + 4);
                    class = larger.into_iter().find(|class| !self.partial[*class].is_empty())?;
                    *self.partial[class].last().expect("it was just found there")
                }
            },
        };
        let region = self.regions[id as usize].as_mut().expect("a listed region is mapped");
        if region.free == region.count {
            self.idle_bytes -= region.mapping.len_bytes;
            self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes);
        }
        let word = region.bits.iter().position(|bits| *bits != 0).expect("the region has room");
        let bit = region.bits[word].trailing_zeros();
        region.bits[word] &= !(1 << bit);
        region.free -= 1;
        if region.free == 0 {
            self.partial[class].pop();
        }
        self.in_use += 1;
        let index = word * 64 + bit as usize;
        // SAFETY: the index is below the region's count, so the offset lies inside the mapping.
        let start = unsafe { region.mapping.start.add(index * class_bytes(class)) };
        Some(PoolBuffer {
            start,
            region: id,
            index: index as u16,
            class: class as u8,
            part: None,
            overtakes: false,
            is_stuck: false,
        })
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, mut buffer: PoolBuffer) {
        self.leave_part(&mut buffer);
        self.end_overtaking(&mut buffer);
        let id = buffer.region;
        let region = self.regions[id as usize].as_mut().expect("its buffer was in use");
        let (word, bit) = (usize::from(buffer.index) / 64, buffer.index % 64);
        assert!(region.bits[word] & (1 << bit) == 0, "a buffer was given back twice");
        region.bits[word] |= 1 << bit;
        region.free += 1;
        if buffer.is_stuck {
            region.stuck -= 1;
            if region.stuck == 0 {
                self.budget.end_stuck(region.mapping.len_bytes);
            }
        }
        self.in_use -= 1;
        if region.free == 1 {
            self.partial[usize::from(buffer.class)].push(id);
        }
        if region.free == region.count {
            self.idle_bytes += region.mapping.len_bytes;
            if self.idle_bytes > self.idle_bytes_max {
                self.unmap(id);
            }
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
            let region = self.regions[buffer.region as usize].as_mut().expect("it is in use");
            region.stuck += 1;
            if region.stuck == 1 {
                self.budget.begin_stuck(region.mapping.len_bytes);
            }
        }
    }

    /// Gives everything that is unused back to the system.
    pub(crate) fn trim(&mut self) {
        self.unmap_idle(usize::MAX, |_, _| true);
    }

    /// Gives back what was unused ever since the last call.
    pub(crate) fn give_back_unneeded(&mut self) {
        self.unmap_idle(self.idle_bytes_least, |_, _| true);
        self.idle_bytes_least = self.idle_bytes;
    }

    /// While others wait for memory: gives back what is unused, but for one small region of each
    /// class where the budget has slices for those, as small requests would map it anew at once.
    /// True if something was given back since the last call.
    pub(crate) fn trim_for_others(&mut self) -> bool {
        if self.idle_bytes > 0 {
            let keeps = self.budget.has_slices();
            self.unmap_idle(usize::MAX, |pool, region| {
                let is_last = pool.partial[usize::from(region.class)].len() == 1;
                !(keeps && is_last && region.count > 1)
            });
        }
        std::mem::take(&mut self.returned)
    }

    /// Unmaps regions without a buffer in use, `most_bytes` at most.
    fn unmap_idle(&mut self, mut most_bytes: usize, wanted: impl Fn(&Pool, &Region) -> bool) {
        for id in 0..self.regions.len() as u32 {
            let Some(region) = &self.regions[id as usize] else { continue };
            let bytes = region.mapping.len_bytes;
            if region.free == region.count && bytes <= most_bytes && wanted(self, region) {
                most_bytes -= bytes;
                self.unmap(id);
            }
        }
    }

    #[cold]
    fn map(&mut self, class: usize, limit: usize) -> Option<u32> {
        let bytes = region_bytes(class);
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
        let Ok(mapping) = Mapping::new(bytes, libc::PROT_READ | libc::PROT_WRITE) else {
            self.budget.give(bytes);
            return None;
        };
        let count = (bytes / class_bytes(class)) as u16;
        let bits = std::array::from_fn(|word| match usize::from(count).saturating_sub(word * 64) {
            0 => 0,
            left @ 1..64 => (1 << left) - 1,
            _ => u64::MAX,
        });
        let registered = self.register(&mapping);
        let class_number = class as u8;
        let region =
            Region { mapping, registered, class: class_number, count, free: count, stuck: 0, bits };
        let id = self.vacant.pop().unwrap_or(self.regions.len() as u32);
        if id as usize == self.regions.len() {
            self.regions.push(None);
            // So that nothing is allocated when regions are given back.
            self.vacant.reserve(self.regions.len() - self.vacant.len());
        }
        self.regions[id as usize] = Some(region);
        self.partial[class].push(id);
        self.idle_bytes += bytes;
        Some(id)
    }

    fn unmap(&mut self, id: u32) {
        let Some(region) = self.regions[id as usize].take() else { return };
        self.partial[usize::from(region.class)].retain(|other| *other != id);
        self.vacant.push(id);
        self.idle_bytes -= region.mapping.len_bytes;
        self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes);
        self.budget.give(region.mapping.len_bytes);
        self.returned = true;
        if let Some(index) = region.registered {
            // SAFETY: no buffer of the region is in use, so no operation names it.
            unsafe { self.handle.unregister_buffer(index) };
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mapped = self.regions.iter().flatten().map(|r| r.mapping.len_bytes).sum();
        self.budget.give(mapped);
    }
}

#[inline]
fn class_of(len_bytes: usize) -> Option<usize> {
    let bits = len_bytes.max(CLASS_BYTES_MIN).next_power_of_two().trailing_zeros() as usize;
    let class = bits - CLASS_BYTES_MIN.trailing_zeros() as usize;
    (class < CLASSES && len_bytes <= class_bytes(class)).then_some(class)
}

/// Bytes of a buffer of a class.
#[inline]
fn class_bytes(class: usize) -> usize {
    if class + 1 < CLASSES { CLASS_BYTES_MIN << class } else { ZERO_BYTES + EDGES_BYTES }
}

/// Bytes of the buffer that holds so many; none if there is no such buffer.
#[inline]
pub(crate) fn buffer_bytes(len_bytes: usize) -> Option<usize> {
    class_of(len_bytes).map(class_bytes)
}

fn region_bytes(class: usize) -> usize {
    let bytes = class_bytes(class);
    if bytes * 4 <= REGION_BYTES { REGION_BYTES } else { bytes }
}

#[cfg(test)]
mod tests;
