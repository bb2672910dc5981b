//! `SplitRing`: the device's side of a split virtqueue, over memory that a guest may write.
//!
//! Takes heads off the avail ring, walks their chains, puts them on the used ring, and keeps both
//! sides' wishes for notifications (EVENT_IDX or flags). Every descriptor is read once, checked,
//! and translated; nothing that the guest writes afterwards matters. What the guest must not do is
//! a [`RingError`], after which the ring is not used any more. Called by queue.rs. Indices and
//! notifications are generic over where their words lie (cells.rs), for model.rs.
//!
//! Invariants: the three areas lie in mapped memory as long as the ring is used (its queue holds
//! the memory); at most `size` heads are out at a time; each index read from the guest is compared
//! with a bound before it is used. Source: virtio 1.2, section 2.7.
#![allow(unsafe_code)]

mod cells;
mod error;

use std::sync::atomic::{AtomicU16, Ordering};

use millrace_block::Segment;
use millrace_machine::{Machine, Native};

use super::memory::{GuestMemory, read_once};
use crate::virtio::descriptor::{INDIRECT, NEXT, WRITE};
use crate::virtio::{DESCRIPTOR_BYTES, HEADER_BYTES, NO_INTERRUPT, NO_NOTIFY, area_bytes};

pub use self::cells::Cells;
pub use self::error::RingError;

/// Largest ring.
pub const SIZE_MAX: u16 = 1024;
/// Most pieces of a request that is served, whatever the size of its ring: a descriptor for each of
/// the longest ring, and some buffers that regions of memory cut in two. Drivers take more in a
/// table of its own than their ring has, and qemu-storage-daemon serves as many.
pub const PARTS_MAX: usize = SIZE_MAX as usize + 16;

/// Descriptors of a table that an index of 16 bits reaches.
const INDICES: u32 = 1 << 16;
/// Bytes of the indirect table of a plain chain: header, data, status.
const PLAIN_TABLE_BYTES: u32 = 3 * DESCRIPTOR_BYTES as u32;

/// A descriptor as the guest wrote it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// The memory of a chain: first what the device may read, then what it may write.
#[derive(Debug, Default)]
pub struct Chain {
    /// Pieces in order.
    pub parts: Vec<Segment>,
    /// How many of them may be read.
    pub readable: usize,
    /// A buffer of no bytes was among them, which none may be.
    pub has_empty: bool,
    /// There are more than [`PARTS_MAX`]: only the last one is here, if it may be written.
    pub is_long: bool,
}

/// The memory of a plain chain.
#[derive(Debug, Clone, Copy)]
pub struct Plain {
    /// 16 bytes to read.
    pub header: *mut u8,
    /// Anything.
    pub data: Segment,
    /// The device may write it; else read it.
    pub writable: bool,
    /// A byte to write.
    pub status: *mut u8,
}

/// The areas of a ring, here.
#[derive(Debug, Clone, Copy)]
pub struct Areas {
    desc: *mut u8,
    avail: *mut u8,
    used: *mut u8,
}

impl Areas {
    /// The areas of a ring at these places: descriptor table, avail ring, used ring.
    ///
    /// # Safety
    /// The places are valid for reads and writes of [`area_bytes`] as long as these areas are used,
    /// and aligned to 16, 2 and 4.
    #[must_use]
    pub unsafe fn at([desc, avail, used]: [*mut u8; 3]) -> Areas {
        Areas { desc, avail, used }
    }

    /// used.idx, as it stands in the memory where these areas were found.
    #[must_use]
    pub fn used_idx(&self, _memory: &GuestMemory) -> u16 {
        // Relaxed: read before the ring is used.
        u16::from_le(Areas::cell(self.used, 1).load(Ordering::Relaxed))
    }

    #[inline]
    fn cell(area: *mut u8, index: usize) -> &'static AtomicU16 {
        // SAFETY: inside its area, which is aligned and mapped by the promise of `SplitRing::new`;
        // the reference does not leave the caller's statement.
        unsafe { AtomicU16::from_ptr(area.cast::<u16>().add(index)) }
    }

    /// The areas of a ring at these addresses of the frontend, if they are mapped and aligned.
    #[must_use]
    pub fn find(memory: &GuestMemory, size: u16, [desc, avail, used]: [u64; 3]) -> Option<Areas> {
        let bytes = area_bytes(size);
        let find = |user, bytes, align| {
            memory.translate_user(user, bytes).filter(|place| place.addr().is_multiple_of(align))
        };
        Some(Areas {
            desc: find(desc, bytes[0], 16)?,
            avail: find(avail, bytes[1], 2)?,
            used: find(used, bytes[2], 4)?,
        })
    }
}

// SAFETY: places in shared memory, which only unsafe code touches.
unsafe impl Send for Areas {}

impl Cells for Areas {
    type Machine = Native;

    #[inline]
    fn avail(&self, index: usize, order: Ordering) -> u16 {
        u16::from_le(Areas::cell(self.avail, index).load(order))
    }

    #[inline]
    fn set_used(&self, index: usize, value: u16, order: Ordering) {
        Areas::cell(self.used, index).store(value.to_le(), order);
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

/// The guest sees the used ring up to this index: proof for what may be done only then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published(u16);

impl Published {
    /// used.idx.
    #[must_use]
    pub fn used_idx(self) -> u16 {
        self.0
    }

    #[cfg(test)]
    pub(super) fn for_test(used_idx: u16) -> Published {
        Published(used_idx)
    }
}

/// What was negotiated for a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// Notifications are suppressed by index.
    pub event_idx: bool,
    /// Chains may be in tables of their own.
    pub indirect: bool,
}

/// The device's side of a split virtqueue.
#[derive(Debug)]
pub struct SplitRing<C = Areas> {
    areas: C,
    size: u16,
    mask: u16,
    features: RingFeatures,
    /// Heads taken.
    taken: u16,
    /// avail.idx when it was last read.
    seen: u16,
    /// Heads put on the used ring.
    used: u16,
    /// Heads of the used ring that the guest was shown.
    published: u16,
}

impl SplitRing {
    /// A ring of `size` descriptors, of which `taken` heads were taken before and `used` are on the
    /// used ring.
    ///
    /// # Safety
    /// The areas are valid for reads and writes of [`area_bytes`] and aligned as
    /// [`Areas::find`] says, as long as the ring is used; others may write them any time.
    ///
    /// # Panics
    /// If the size is not a power of two up to [`SIZE_MAX`].
    #[must_use]
    pub unsafe fn new(
        areas: Areas,
        size: u16,
        features: RingFeatures,
        (taken, used): (u16, u16),
    ) -> SplitRing {
        SplitRing::over(areas, size, features, (taken, used))
    }

    /// Moves the ring to where its areas are now mapped.
    ///
    /// # Safety
    /// The promises of [`SplitRing::new`].
    pub unsafe fn move_to(&mut self, areas: Areas) {
        self.areas = areas;
    }
}

impl<C: Cells> SplitRing<C> {
    fn over(
        areas: C,
        size: u16,
        features: RingFeatures,
        (taken, used): (u16, u16),
    ) -> SplitRing<C> {
        assert!(size.is_power_of_two() && size <= SIZE_MAX, "ring of {size}");
        SplitRing {
            areas,
            size,
            mask: size - 1,
            features,
            taken,
            seen: taken,
            used,
            published: used,
        }
    }

    /// Descriptors it has.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Heads taken so far, as the ring counts: what a frontend calls its base.
    #[must_use]
    pub fn taken(&self) -> u16 {
        self.taken
    }

    /// avail.idx, after which what it says is available can be read.
    #[inline]
    fn avail_idx(&self) -> u16 {
        // Acquire pairs with the driver's release of the index.
        self.areas.avail(1, Ordering::Acquire)
    }

    /// How many heads are available.
    ///
    /// # Errors
    /// `AvailIdx` if that cannot be.
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

    /// Whether the guest has moved since [`SplitRing::available`]: a look that costs nothing while
    /// it has not.
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
        // Relaxed: ordered by the Acquire of the index.
        let head = self.areas.avail(place, Ordering::Relaxed);
        if head >= self.size {
            return Err(RingError::Index { index: head, count: self.size.into() });
        }
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(head))
    }

    /// Puts a head on the used ring, with how many bytes were written to its memory; the guest sees
    /// it after [`SplitRing::publish`].
    #[inline]
    pub fn put(&mut self, head: u16, len: u32) {
        self.areas.put(self.used & self.mask, head.into(), len);
        self.used = self.used.wrapping_add(1);
    }

    /// Heads put that are not published.
    #[inline]
    #[must_use]
    pub fn unpublished(&self) -> u16 {
        self.used.wrapping_sub(self.published)
    }

    /// Heads published in all, as the ring counts.
    #[inline]
    #[must_use]
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Shows the guest what was put, and returns up to where.
    #[inline]
    pub fn publish(&mut self) -> Published {
        // Release pairs with the driver's acquire of the index.
        self.areas.set_used(1, self.used, Ordering::Release);
        self.published = self.used;
        Published(self.used)
    }

    /// Whether the guest wants to be told of what was published since `before`.
    #[inline]
    #[must_use]
    pub fn wants_interrupt(&self, before: u16) -> bool {
        // Pairs with the driver's barrier between its wish and its last look at used.idx.
        C::Machine::fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if !self.features.event_idx {
            return self.areas.avail(0, Ordering::Relaxed) & NO_INTERRUPT == 0;
        }
        // Relaxed: ordered by the fence.
        let event = self.areas.avail(2 + usize::from(self.size), Ordering::Relaxed);
        let new = self.published;
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(before)
    }

    /// Asks for no kicks. With EVENT_IDX that is so anyway until they are asked for again.
    #[inline]
    pub fn suppress_kicks(&mut self) {
        if !self.features.event_idx {
            // Relaxed: a hint to the driver.
            self.areas.set_used(0, NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Asks for a kick with the next head; true if there is one already, of which no kick may come.
    #[inline]
    pub fn request_kick(&mut self) -> bool {
        // Relaxed: ordered by the fence.
        if self.features.event_idx {
            let place = 2 + 4 * usize::from(self.size);
            self.areas.set_used(place, self.taken, Ordering::Relaxed);
        } else {
            self.areas.set_used(0, 0, Ordering::Relaxed);
        }
        // Pairs with the driver's barrier between avail.idx and its look at our wish.
        C::Machine::fence(Ordering::SeqCst);
        self.avail_idx() != self.taken
    }
}

impl SplitRing {
    /// The memory of a chain as nearly all are: three buffers, in the ring or in a table of their
    /// own, of 16 bytes to read, of any bytes, and of one byte to write. `None` for all others, and
    /// for whatever is wrong: [`SplitRing::walk`] says what.
    #[inline(always)]
    #[must_use]
    pub fn walk_plain(&self, head: u16, memory: &GuestMemory) -> Option<Plain> {
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
        Some(Plain {
            header: memory.find(first.addr, HEADER_BYTES as u64)?,
            data: Segment { start: memory.find(data.addr, data.len.into())?, len_bytes: data.len },
            writable,
            status: memory.find(last.addr, 1)?,
        })
    }

    /// Collects the memory of the chain that begins at `head`.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn walk(
        &self,
        head: u16,
        memory: &GuestMemory,
        chain: &mut Chain,
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

    /// Adds a buffer to a chain: one piece, or several if it crosses regions.
    #[inline]
    fn add(
        Descriptor { mut addr, mut len, flags, .. }: Descriptor,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let writable = flags & WRITE != 0;
        if !writable && chain.readable < chain.parts.len() {
            return Err(RingError::Order);
        }
        // The request fails by that, not the ring.
        chain.has_empty |= len == 0;
        let wrong = RingError::NotMemory { addr, len };
        while len > 0 {
            let place = memory.translate(addr).ok_or(wrong)?;
            let len_bytes = u64::from(len).min(place.room_bytes) as u32;
            // The request fails by that, too, and needs no more than the place of its outcome.
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

/// Reads a descriptor once.
#[inline]
fn read(table: *const u8, index: u16) -> Descriptor {
    let place = table.wrapping_add(DESCRIPTOR_BYTES * usize::from(index));
    // SAFETY: the caller compared the index with the table's length, and the table is mapped; an
    // indirect one need not be aligned.
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
