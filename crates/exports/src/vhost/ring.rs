//! `SplitRing`: the device's side of a split virtqueue, in memory that a guest may write.
//!
//! Every descriptor is read once, checked, and translated, so later writes of the guest do not
//! matter. An error of the guest is a [`RingError`], after which the ring is not used any more.
//! Indices and notifications are generic over the location of the ring's words (cells.rs), so that
//! the model checker can run them (model.rs).
//!
//! Invariants: the three areas are mapped as long as the ring is used, because its queue holds the
//! memory. At most `size` heads (first descriptors of requests) are in flight at a time. Each index
//! read from the guest is checked against a limit before use. Source: virtio 1.2, section 2.7.
#![allow(unsafe_code)]

mod cells;
mod error;

use std::sync::atomic::{AtomicU16, Ordering};

use millrace_block::Segment;
use millrace_machine::{Machine, Native};

use super::memory::{GuestMemory, read_once};
use crate::virtio::descriptor::{INDIRECT, NEXT, WRITE};
use crate::virtio::{DESCRIPTOR_BYTES, HEADER_BYTES, NO_INTERRUPT, NO_NOTIFY, area_bytes};

pub use self::cells::RingWords;
pub use self::error::RingError;

/// Maximum number of descriptors of a ring.
pub const SIZE_MAX: u16 = 1024;
/// Maximum number of segments of a request, even in an indirect table: one for each descriptor of
/// the longest ring, and some for buffers that cross memory regions.
pub const PARTS_MAX: usize = SIZE_MAX as usize + 16;

const INDICES: u32 = 1 << 16;
/// Size in bytes of an indirect table with three descriptors: header, data and status.
const PLAIN_TABLE_BYTES: u32 = 3 * DESCRIPTOR_BYTES as u32;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// Memory of a chain: first the device-readable segments, then the device-writable ones.
#[derive(Debug, Default)]
pub struct DescriptorChain {
    /// Segments in order.
    pub parts: Vec<Segment>,
    /// Number of readable segments.
    pub readable: usize,
    /// True if the chain has a buffer of length 0, which is not allowed.
    pub has_empty: bool,
    /// True if the chain has more than [`PARTS_MAX`] segments. `parts` then has only the chain's
    /// last segment, for the status byte. If the last segment is not writable, `parts` is empty.
    pub is_long: bool,
}

/// Memory of a plain chain: a header, one data buffer and a status byte.
#[derive(Debug, Clone, Copy)]
pub struct PlainChain {
    /// Address of the 16-byte request header.
    pub header: *mut u8,
    /// Data segment, of any length.
    pub data: Segment,
    /// True if the device may write the data, false if it may read them.
    pub writable: bool,
    /// Address of the status byte.
    pub status: *mut u8,
}

/// Addresses of a ring's areas in this process.
#[derive(Debug, Clone, Copy)]
pub struct RingAreas {
    desc: *mut u8,
    avail: *mut u8,
    used: *mut u8,
}

impl RingAreas {
    /// Returns used.idx. The argument `_memory` proves that the areas are mapped.
    #[must_use]
    pub fn used_idx(&self, _memory: &GuestMemory) -> u16 {
        // Relaxed: used.idx is read once, before the ring is in use.
        u16::from_le(RingAreas::cell(self.used, 1).load(Ordering::Relaxed))
    }

    #[inline]
    fn cell(area: *mut u8, index: usize) -> &'static AtomicU16 {
        // SAFETY: the word is inside its area, which is aligned and mapped (see `SplitRing::new`).
        // Callers use the `'static` reference within one statement only, during which the area
        // stays mapped.
        unsafe { AtomicU16::from_ptr(area.cast::<u16>().add(index)) }
    }

    /// Translates the frontend's addresses of a ring's areas. Returns `None` if any area is
    /// unmapped or misaligned.
    #[must_use]
    pub fn find(
        memory: &GuestMemory,
        size: u16,
        [desc, avail, used]: [u64; 3],
    ) -> Option<RingAreas> {
        let bytes = area_bytes(size);
        let find = |user, bytes, align| {
            memory.translate_user(user, bytes).filter(|place| place.addr().is_multiple_of(align))
        };
        Some(RingAreas {
            desc: find(desc, bytes[0], 16)?,
            avail: find(avail, bytes[1], 2)?,
            used: find(used, bytes[2], 4)?,
        })
    }
}

// SAFETY: places in shared memory, which only unsafe code touches.
unsafe impl Send for RingAreas {}

impl RingWords for RingAreas {
    type Machine = Native;

    #[inline]
    fn avail(&self, index: usize, order: Ordering) -> u16 {
        u16::from_le(RingAreas::cell(self.avail, index).load(order))
    }

    #[inline]
    fn set_used(&self, index: usize, value: u16, order: Ordering) {
        RingAreas::cell(self.used, index).store(value.to_le(), order);
    }

    #[inline]
    fn put(&self, place: u16, head: u32, len: u32) {
        // SAFETY: inside the used area, aligned to 4 by the promise of `SplitRing::new`.
        unsafe {
            let entry = self.used.add(4 + 8 * usize::from(place)).cast::<u32>();
            entry.write_volatile(head.to_le());
            entry.add(1).write_volatile(len.to_le());
        }
    }
}

/// Proof that the used ring was published up to an index, required by functions that must run only
/// after the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedIndex(u16);

impl PublishedIndex {
    /// Returns the used.idx that was published.
    #[must_use]
    pub fn used_idx(self) -> u16 {
        self.0
    }

    #[cfg(test)]
    pub(super) fn for_test(used_idx: u16) -> PublishedIndex {
        PublishedIndex(used_idx)
    }
}

/// Negotiated features of a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// EVENT_IDX: notifications are suppressed by index.
    pub event_idx: bool,
    /// INDIRECT_DESC: chains may use indirect tables.
    pub indirect: bool,
}

/// Location and state of a ring that is put into service.
#[derive(Debug, Clone, Copy)]
pub struct RingParts<C = RingAreas> {
    /// Areas of the ring.
    pub areas: C,
    /// Number of descriptors.
    pub size: u16,
    /// Negotiated features.
    pub features: RingFeatures,
    /// Number of heads (first descriptors) already taken from the avail ring at the start, modulo
    /// 2^16.
    pub taken: u16,
    /// Number of heads (first descriptors) already put on the used ring at the start, modulo 2^16.
    pub used: u16,
}

/// The device's side of a split virtqueue.
#[derive(Debug)]
pub struct SplitRing<C = RingAreas> {
    areas: C,
    size: u16,
    mask: u16,
    features: RingFeatures,
    /// Number of heads taken, modulo 2^16.
    taken: u16,
    /// Value of avail.idx when it was last read.
    seen: u16,
    /// Number of heads put on the used ring, modulo 2^16.
    used: u16,
    /// Value of used.idx that was published to the guest last.
    published: u16,
}

impl SplitRing {
    /// Puts a ring into service.
    ///
    /// # Safety
    /// The areas must be valid for reads and writes of [`area_bytes`] and aligned as by
    /// [`RingAreas::find`], as long as the ring is used. Other threads and processes may write them
    /// at any time.
    ///
    /// # Panics
    /// If the size is not a power of two up to [`SIZE_MAX`].
    #[must_use]
    pub unsafe fn new(parts: RingParts) -> SplitRing {
        SplitRing::over(parts)
    }

    /// Replaces the areas, because the ring's memory was mapped at other addresses.
    ///
    /// # Safety
    /// The conditions of [`SplitRing::new`].
    pub unsafe fn move_to(&mut self, areas: RingAreas) {
        self.areas = areas;
    }
}

impl<C: RingWords> SplitRing<C> {
    fn over(parts: RingParts<C>) -> SplitRing<C> {
        let RingParts { areas, size, features, taken, used } = parts;
        assert!(size.is_power_of_two() && size <= SIZE_MAX, "ring of {size}");
        let (mask, seen, published) = (size - 1, taken, used);
        SplitRing { areas, size, mask, features, taken, seen, used, published }
    }

    /// Returns the number of descriptors.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the number of heads taken, modulo 2^16: the base in vhost-user terms.
    #[must_use]
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// Reads avail.idx with Acquire order, so that the heads before this index can be read.
    #[inline]
    fn avail_idx(&self) -> u16 {
        // Acquire pairs with the driver's release store of avail.idx.
        self.areas.avail(1, Ordering::Acquire)
    }

    /// Returns the number of available heads.
    ///
    /// # Errors
    /// `AvailIdx` if the guest's index is impossible.
    #[inline]
    pub fn available(&mut self) -> Result<u16, RingError> {
        let idx = self.avail_idx();
        let count = idx.wrapping_sub(self.taken);
        if count > self.size {
            return Err(RingError::AvailIdx { idx, taken: self.taken, size: self.size });
        }
        self.seen = idx;
        Ok(count)
    }

    /// Returns true if the guest has added heads since [`SplitRing::available`]. Does not modify
    /// memory.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.avail_idx() != self.seen
    }

    /// Takes the next head that [`SplitRing::available`] has seen.
    ///
    /// # Errors
    /// `Index` if there is no such descriptor.
    #[inline]
    pub fn take(&mut self) -> Result<Option<u16>, RingError> {
        if self.taken == self.seen {
            return Ok(None);
        }
        let place = 2 + usize::from(self.taken & self.mask);
        // Relaxed: the Acquire load of avail.idx orders this load.
        let head = self.areas.avail(place, Ordering::Relaxed);
        if head >= self.size {
            return Err(RingError::Index { index: head, count: self.size.into() });
        }
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(head))
    }

    /// Puts a head on the used ring with the number of bytes written to the request's memory. The
    /// guest sees the head after [`SplitRing::publish`].
    #[inline]
    pub fn put(&mut self, head: u16, len: u32) {
        self.areas.put(self.used & self.mask, head.into(), len);
        self.used = self.used.wrapping_add(1);
    }

    /// Returns the number of heads that were put on the used ring but not published.
    #[inline]
    #[must_use]
    pub fn unpublished(&self) -> u16 {
        self.used.wrapping_sub(self.published)
    }

    /// Returns the number of heads published, modulo 2^16.
    #[inline]
    #[must_use]
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Publishes all heads that were put on the used ring. Returns the new used.idx as a
    /// [`PublishedIndex`], for functions that must run only after the publication.
    #[inline]
    pub fn publish(&mut self) -> PublishedIndex {
        // Release pairs with the driver's acquire load of used.idx.
        self.areas.set_used(1, self.used, Ordering::Release);
        self.published = self.used;
        PublishedIndex(self.used)
    }

    /// Returns true if the guest wants an interrupt for the heads that were published since
    /// `before`.
    #[inline]
    #[must_use]
    pub fn wants_interrupt(&self, before: u16) -> bool {
        // Pairs with the driver's barrier between enabling interrupts and reading used.idx.
        C::Machine::fence(Ordering::SeqCst);
        // Relaxed: the SeqCst fence orders this load of the driver's flags after the store of
        // used.idx.
        if !self.features.event_idx {
            return self.areas.avail(0, Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        // Relaxed: the SeqCst fence orders this load of used_event after the store of used.idx.
        let event = self.areas.avail(2 + usize::from(self.size), Ordering::Relaxed);
        let new = self.published;
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(before)
    }

    /// Suppresses kicks. With EVENT_IDX this is not necessary, because kicks are suppressed until
    /// requested again.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if !self.features.event_idx {
            // Relaxed: `NO_NOTIFY` is a hint to the driver, and a superfluous kick does no harm.
            self.areas.set_used(0, NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Requests a kick for the next head. Returns true if a head is already available. The guest
    /// may send no kick for that head.
    #[inline]
    pub fn request_kick(&mut self) -> bool {
        // Relaxed: the SeqCst fence orders the request for a kick before the load of avail.idx.
        if self.features.event_idx {
            let place = 2 + 4 * usize::from(self.size);
            self.areas.set_used(place, self.taken, Ordering::Relaxed);
        } else {
            self.areas.set_used(0, 0, Ordering::Relaxed);
        }
        // The fence pairs with the driver's barrier between writing avail.idx and checking for
        // suppressed kicks.
        C::Machine::fence(Ordering::SeqCst);
        self.avail_idx() != self.taken
    }
}

impl SplitRing {
    /// Returns the memory of a plain chain, in the ring or in an indirect table: a readable buffer
    /// of 16 bytes, a buffer of any length, and a writable buffer of 1 byte. Nearly all chains are
    /// plain. Returns `None` for other chains and for errors, which [`SplitRing::walk`] handles.
    #[inline(always)]
    #[must_use]
    pub fn walk_plain(&self, head: u16, memory: &GuestMemory) -> Option<PlainChain> {
        let (mut table, mut count) = (self.areas.desc.cast_const(), u32::from(self.size));
        if u32::from(head) >= count {
            return None;
        }
        let mut first = read(table, head);
        if first.flags == INDIRECT && first.len == PLAIN_TABLE_BYTES && self.features.indirect {
            table = memory.find(first.addr, PLAIN_TABLE_BYTES.into())?;
            count = 3;
            first = read(table, 0);
        }
        if first.flags != NEXT || first.len != HEADER_BYTES as u32 || u32::from(first.next) >= count
        {
            return None;
        }
        let data = read(table, first.next);
        let writable = data.flags == NEXT | WRITE;
        if !(writable || data.flags == NEXT) || data.len == 0 || u32::from(data.next) >= count {
            return None;
        }
        let last = read(table, data.next);
        if last.flags != WRITE || last.len != 1 {
            return None;
        }
        Some(PlainChain {
            header: memory.find(first.addr, HEADER_BYTES as u64)?,
            data: Segment { start: memory.find(data.addr, data.len.into())?, len_bytes: data.len },
            writable,
            status: memory.find(last.addr, 1)?,
        })
    }

    /// Collects the memory of the chain that begins at `head`.
    ///
    /// # Errors
    /// Returns the guest's error, after which the ring must not be used.
    #[inline]
    pub fn walk(
        &self,
        head: u16,
        memory: &GuestMemory,
        chain: &mut DescriptorChain,
    ) -> Result<(), RingError> {
        chain.parts.clear();
        (chain.readable, chain.has_empty, chain.is_long) = (0, false, false);
        let (mut table, mut count) = (self.areas.desc.cast_const(), u32::from(self.size));
        let (mut index, mut seen, mut indirect) = (head, 0, false);
        loop {
            if u32::from(index) >= count {
                return Err(RingError::Index { index, count });
            }
            let descriptor @ Descriptor { addr, len, flags, next } = read(table, index);
            if flags & INDIRECT != 0 {
                let allowed = self.features.indirect && !indirect && flags & NEXT == 0;
                if !allowed || len == 0 || !len.is_multiple_of(DESCRIPTOR_BYTES as u32) {
                    return Err(RingError::Indirect { len });
                }
                let place = memory.translate(addr).filter(|at| at.room_bytes >= len.into());
                table = place.ok_or(RingError::NotMemory { addr, len })?.start;
                (count, index, indirect) = (len / DESCRIPTOR_BYTES as u32, 0, true);
                seen = 0;
                continue;
            }
            if seen == count.min(INDICES) {
                return Err(RingError::Loop { count });
            }
            seen += 1;
            SplitRing::add(descriptor, memory, chain)?;
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
    }

    /// Adds a buffer to a chain, as one segment, or as several segments if it crosses memory
    /// regions.
    #[inline]
    fn add(
        Descriptor { mut addr, mut len, flags, .. }: Descriptor,
        memory: &GuestMemory,
        chain: &mut DescriptorChain,
    ) -> Result<(), RingError> {
        let writable = flags & WRITE != 0;
        if !writable && chain.readable < chain.parts.len() {
            return Err(RingError::Order);
        }
        // An empty buffer fails the request, but not the ring.
        chain.has_empty |= len == 0;
        let wrong = RingError::NotMemory { addr, len };
        while len > 0 {
            let place = memory.translate(addr).ok_or(wrong)?;
            let len_bytes = u64::from(len).min(place.room_bytes) as u32;
            // A request with too many segments fails, but its ring stays in service. Only the
            // request's status byte is needed then, so all segments before it are dropped.
            if chain.is_long || chain.parts.len() >= PARTS_MAX {
                chain.is_long = true;
                chain.parts.clear();
                chain.readable = 0;
            }
            if writable || !chain.is_long {
                chain.parts.push(Segment { start: place.start, len_bytes });
                chain.readable += usize::from(!writable);
            }
            (addr, len) = (addr.wrapping_add(len_bytes.into()), len - len_bytes);
        }
        Ok(())
    }
}

#[inline]
fn read(table: *const u8, index: u16) -> Descriptor {
    let place = table.wrapping_add(DESCRIPTOR_BYTES * usize::from(index));
    // SAFETY: the caller compared the index with the table's length, and the table is mapped.
    // The address need not be aligned for `read_once`.
    let [addr, rest] = unsafe { read_once(place) };
    let rest = u64::from_le(rest);
    Descriptor {
        addr: u64::from_le(addr),
        len: rest as u32,
        flags: (rest >> 32) as u16,
        next: (rest >> 48) as u16,
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
