//! Payload memory: anonymous mappings, the shared area of zeroes, and each I/O thread's pool.
//!
//! A [`Pool`] belongs to one I/O thread and hands out buffers aligned to 4 KiB, in classes of
//! powers of two from 4 KiB to 32 MiB; what all pools have mapped is counted by one [`Budget`].
//! Buffers are carved from regions; a region without a buffer in use may go back to the system.
//! Called by the request path; calls mmap and the reactor's table of registered buffers.
//!
//! Invariants: a buffer is in one pair of hands (it is not `Clone`), and its region stays mapped
//! until it came back by [`Pool::give`]; fresh memory is zeroed by the kernel; nothing reads a
//! buffer's bytes but a drive, a socket send of what a drive has just filled, and nobody else.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_block::{Bio, Op, Sector};
use millrace_reactor::Handle;

/// Smallest buffer in bytes, and the alignment of all.
const CLASS_BYTES_MIN: usize = 4096;
/// Classes: 4 KiB to 32 MiB.
const CLASSES: usize = 14;
/// Buffers of up to a quarter of this are carved from regions of this size, in bytes.
const REGION_BYTES: usize = 1 << 20;
/// Bytes of the area of zeroes: the longest read.
pub(crate) const ZERO_BYTES: usize = 32 << 20;

/// An anonymous mapping.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping is plain memory; who may touch it is settled by its owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out nothing but the address.
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

/// Read-only zeroes, shared by every reply that says zeroes.
#[derive(Debug)]
pub(crate) struct Zeroes(Mapping);

impl Zeroes {
    pub(crate) fn new() -> io::Result<Arc<Zeroes>> {
        Ok(Arc::new(Zeroes(Mapping::new(ZERO_BYTES, libc::PROT_READ)?)))
    }

    /// The address, for sends only.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// A bio over these zeroes for a volume whose drives never touch payload.
    pub(crate) fn bio(&self, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(len_bytes as usize <= ZERO_BYTES);
        // SAFETY: the mapping outlives every channel of the server; the caller's drives never touch
        // payload, so that it is read-only does not matter.
        unsafe { Bio::foreign(op, sector, self.start(), len_bytes) }
    }
}

/// Bytes mapped by all pools of a server, and how many may be.
#[derive(Debug)]
pub(crate) struct Budget {
    mapped_bytes: AtomicUsize,
    max_bytes: usize,
}

impl Budget {
    pub(crate) fn new(max_bytes: usize) -> Arc<Budget> {
        Arc::new(Budget { mapped_bytes: AtomicUsize::new(0), max_bytes })
    }

    pub(crate) fn mapped_bytes(&self) -> usize {
        // Relaxed: a figure for reports.
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        // Relaxed: the counter guards no other memory.
        let before = self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.max_bytes {
            self.give(bytes);
            return false;
        }
        true
    }

    fn give(&self, bytes: usize) {
        // Relaxed: as in `take`.
        self.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A buffer of a pool.
#[derive(Debug)]
pub(crate) struct PoolBuffer {
    start: NonNull<u8>,
    region: u32,
    index: u16,
    class: u8,
}

impl PoolBuffer {
    /// Its first byte; valid until the buffer is given back.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        CLASS_BYTES_MIN << self.class
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
    pub(crate) fn bio(&self, op: Op, sector: Sector, len_bytes: u32) -> Bio {
        assert!(len_bytes as usize <= self.len());
        // SAFETY: the ticket of the request keeps the buffer until its completion was polled, and a
        // thread that ends with tickets left leaks its pool.
        unsafe { Bio::foreign(op, sector, self.start.as_ptr(), len_bytes) }
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
    /// Bytes of regions without a buffer in use, and how many are kept.
    idle_bytes: usize,
    idle_bytes_max: usize,
    in_use: usize,
}

impl Pool {
    /// A pool that keeps at most `idle_bytes_max` unused.
    pub(crate) fn new(budget: Arc<Budget>, handle: Handle, idle_bytes_max: usize) -> Pool {
        let partial = std::array::from_fn(|_| Vec::new());
        let (regions, vacant) = (Vec::new(), Vec::new());
        Pool { budget, handle, regions, vacant, partial, idle_bytes: 0, idle_bytes_max, in_use: 0 }
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

    /// Most bytes of all pools together.
    pub(crate) fn max_bytes(&self) -> usize {
        self.budget.max_bytes
    }

    /// Whether a buffer of this size could ever be had.
    pub(crate) fn can_ever(&self, len_bytes: usize) -> bool {
        class_of(len_bytes).is_some_and(|class| region_bytes(class) <= self.budget.max_bytes)
    }

    /// A buffer of at least `len_bytes`; none while memory is short.
    pub(crate) fn take(&mut self, len_bytes: usize) -> Option<PoolBuffer> {
        let class = class_of(len_bytes)?;
        let id = match self.partial[class].last() {
            Some(id) => *id,
            None => self.map(class)?,
        };
        let region = self.regions[id as usize].as_mut().expect("a listed region is mapped");
        if region.free == region.count {
            self.idle_bytes -= region.mapping.len_bytes;
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
        let start = unsafe { region.mapping.start.add(index * (CLASS_BYTES_MIN << class)) };
        Some(PoolBuffer { start, region: id, index: index as u16, class: class as u8 })
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: PoolBuffer) {
        let id = buffer.region;
        let region = self.regions[id as usize].as_mut().expect("its buffer was in use");
        let (word, bit) = (usize::from(buffer.index) / 64, buffer.index % 64);
        assert!(region.bits[word] & (1 << bit) == 0, "a buffer was given back twice");
        region.bits[word] |= 1 << bit;
        region.free += 1;
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

    /// Gives everything that is unused back to the system.
    pub(crate) fn trim(&mut self) {
        for id in 0..self.regions.len() as u32 {
            if self.regions[id as usize].as_ref().is_some_and(|r| r.free == r.count) {
                self.unmap(id);
            }
        }
    }

    fn map(&mut self, class: usize) -> Option<u32> {
        let bytes = region_bytes(class);
        if !self.budget.take(bytes) {
            self.trim();
            if !self.budget.take(bytes) {
                return None;
            }
        }
        let Ok(mapping) = Mapping::new(bytes, libc::PROT_READ | libc::PROT_WRITE) else {
            self.budget.give(bytes);
            return None;
        };
        let count = (bytes / (CLASS_BYTES_MIN << class)) as u16;
        let bits = std::array::from_fn(|word| match usize::from(count).saturating_sub(word * 64) {
            0 => 0,
            left @ 1..64 => (1 << left) - 1,
            _ => u64::MAX,
        });
        let registered = self.register(&mapping);
        let region = Region { mapping, registered, class: class as u8, count, free: count, bits };
        let id = self.vacant.pop().unwrap_or(self.regions.len() as u32);
        if id as usize == self.regions.len() {
            self.regions.push(None);
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
        self.budget.give(region.mapping.len_bytes);
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

fn class_of(len_bytes: usize) -> Option<usize> {
    let bits = len_bytes.max(CLASS_BYTES_MIN).next_power_of_two().trailing_zeros() as usize;
    let class = bits - CLASS_BYTES_MIN.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn region_bytes(class: usize) -> usize {
    let bytes = CLASS_BYTES_MIN << class;
    if bytes * 4 <= REGION_BYTES { REGION_BYTES } else { bytes }
}
