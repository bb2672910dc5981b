//! `BufferArena`: buffers of 4 KiB to 32 MiB, cut from regions.
//!
//! Buffers of up to 2 MiB share regions of that size (blocks.rs); a longer one has a region of its
//! own. The first region with room is used, so that later regions become idle. The owner of the
//! arena decides when a region is mapped and unmapped, and stores a value with each region, such as
//! the region's index in a ring's table of buffers.
//!
//! Invariants: a buffer has a single user (it is not `Clone`); a region with a buffer in use stays
//! mapped. Memory is zeroed only where the system has just mapped it.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::vec::Vec;

use super::blocks::{FreeBlocks, WHOLE};
use super::region::Region;
use super::{BUFFER_BYTES_MIN, REGION_BYTES};

/// Order of a buffer of 32 MiB: a buffer of order n has 4 KiB times 2 to the n.
const LONGEST: u8 = 13;
/// Number of orders, that is, of buffer sizes.
pub const ORDERS: usize = LONGEST as usize + 2;
/// Additional bytes of the largest buffer, so that it holds all blocks of a request of 32 MiB that
/// does not begin at a block boundary.
const EDGES_BYTES: usize = 256 << 10;

/// A buffer of an arena.
#[derive(Debug)]
pub struct ArenaBuffer {
    start: NonNull<u8>,
    region: u32,
    node: u16,
    order: u8,
}

// SAFETY: a buffer is plain memory, and this is the only handle to it.
unsafe impl Send for ArenaBuffer {}

impl ArenaBuffer {
    /// Returns the address of the first byte, which is valid until the buffer is given back.
    #[inline]
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the buffer's length in bytes, which may be more than was asked for.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        order_bytes(self.order)
    }

    /// Returns the buffer's order: its length is 4 KiB times 2 to the order, except for the last
    /// order.
    #[inline]
    #[must_use]
    pub fn order(&self) -> u8 {
        self.order
    }

    /// Returns the index of the region that contains the buffer.
    #[must_use]
    pub fn region(&self) -> u32 {
        self.region
    }
}

#[derive(Debug)]
struct MappedRegion<T> {
    region: Region,
    /// Unused parts of the region. `None` if the region is a single buffer.
    blocks: Option<FreeBlocks>,
    used: u16,
    note: T,
}

/// Allocator of buffers, which it cuts from mapped memory regions of 2 MiB or more.
#[derive(Debug)]
pub struct BufferArena<T> {
    regions: Vec<Option<MappedRegion<T>>>,
    /// For each region, a bit mask of the sizes (orders) of its free buffers.
    orders: Vec<u16>,
    vacant: Vec<u32>,
    idle_bytes: usize,
    in_use: usize,
}

impl<T> Default for BufferArena<T> {
    fn default() -> Self {
        BufferArena {
            regions: Vec::new(),
            orders: Vec::new(),
            vacant: Vec::new(),
            idle_bytes: 0,
            in_use: 0,
        }
    }
}

impl<T> BufferArena<T> {
    /// Allocates a buffer of this order from the mapped regions. Returns `None` if no region has
    /// room.
    #[inline]
    pub fn take(&mut self, order: u8) -> Option<ArenaBuffer> {
        let wanted = wanted_orders(order);
        let place = match self.orders.iter().position(|orders| orders & wanted != 0) {
            Some(place) => place,
            None => self.join(order)?,
        };
        let shared = self.regions[place].as_mut().expect("a region with room is mapped");
        if shared.used == 0 {
            self.idle_bytes -= shared.region.len_bytes();
        }
        shared.used += 1;
        self.in_use += 1;
        let (node, offset) = match &mut shared.blocks {
            Some(blocks) => {
                let node = blocks.take(order).expect("the region has a free block of this order");
                self.orders[place] = blocks.orders;
                (node, FreeBlocks::offset(node, order))
            }
            None => {
                self.orders[place] = 0;
                (1, 0)
            }
        };
        // SAFETY: the block lies inside the region.
        let start = unsafe { shared.region.start().add(offset) };
        Some(ArenaBuffer { start, region: place as u32, node, order })
    }

    /// Joins adjacent free blocks in all regions. Returns a region with room for a buffer, if any.
    #[cold]
    fn join(&mut self, order: u8) -> Option<usize> {
        if order == 0 || order > WHOLE {
            return None;
        }
        let wanted = wanted_orders(order);
        for (shared, orders) in self.regions.iter_mut().zip(&mut self.orders) {
            if let Some(blocks) = shared.as_mut().and_then(|shared| shared.blocks.as_mut()) {
                blocks.join();
                *orders = blocks.orders;
            }
        }
        self.orders.iter().position(|orders| orders & wanted != 0)
    }

    /// Maps a new region with room for a buffer of this order.
    ///
    /// # Errors
    /// Returns the system's error if it has no memory.
    #[cold]
    pub fn map(&mut self, order: u8, note: impl FnOnce(&Region) -> T) -> io::Result<()> {
        let region = Region::map(region_bytes(order))?;
        let blocks = (order <= WHOLE).then(FreeBlocks::new);
        let orders = blocks.as_ref().map_or(1 << order, |blocks| blocks.orders);
        let place = match self.vacant.pop() {
            Some(place) => place as usize,
            None => {
                self.regions.push(None);
                self.orders.push(0);
                // Reserves capacity now, so that unmapping a region never allocates.
                self.vacant.reserve(self.regions.len() - self.vacant.len());
                self.regions.len() - 1
            }
        };
        self.idle_bytes += region.len_bytes();
        let note = note(&region);
        self.regions[place] = Some(MappedRegion { region, blocks, used: 0, note });
        self.orders[place] = orders;
        Ok(())
    }

    /// Takes a buffer back. Returns true if its region is now idle.
    #[inline]
    pub fn give(&mut self, buffer: ArenaBuffer) -> bool {
        let place = buffer.region as usize;
        let shared = self.regions[place].as_mut().expect("its buffer was in use");
        match &mut shared.blocks {
            Some(blocks) => {
                blocks.give(buffer.node, buffer.order);
                self.orders[place] = blocks.orders;
            }
            None => self.orders[place] = 1 << buffer.order,
        }
        shared.used -= 1;
        self.in_use -= 1;
        if shared.used == 0 {
            self.idle_bytes += shared.region.len_bytes();
        }
        shared.used == 0
    }

    /// Unmaps an idle region. First calls `before` with the value that the owner stored. Returns
    /// the region's length in bytes, or `None` if the region is in use.
    pub fn unmap(&mut self, region: u32, before: impl FnOnce(T)) -> Option<usize> {
        let place = region as usize;
        let MappedRegion { region: mapped, note, .. } =
            self.regions[place].take_if(|shared| shared.used == 0)?;
        self.orders[place] = 0;
        self.vacant.push(region);
        self.idle_bytes -= mapped.len_bytes();
        before(note);
        Some(mapped.len_bytes())
    }

    /// Returns the last idle region whose length satisfies `is_wanted`.
    pub fn find_idle(&self, is_wanted: impl Fn(usize) -> bool) -> Option<u32> {
        let is_idle =
            |shared: &MappedRegion<T>| shared.used == 0 && is_wanted(shared.region.len_bytes());
        let place = self.regions.iter().rposition(|shared| shared.as_ref().is_some_and(is_idle));
        place.map(|place| place as u32)
    }

    /// Returns the value that the owner stored with a region, and the region's length in bytes.
    pub fn note_mut(&mut self, region: u32) -> Option<(&mut T, usize)> {
        let shared = self.regions.get_mut(region as usize)?.as_mut()?;
        Some((&mut shared.note, shared.region.len_bytes()))
    }

    /// Returns the total length of idle regions, in bytes.
    #[inline]
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.idle_bytes
    }

    /// Returns the number of buffers in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns the total length of all regions, in bytes.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.regions.iter().flatten().map(|shared| shared.region.len_bytes()).sum()
    }
}

/// Returns a bit mask of the orders whose free blocks can serve a request of this order. Blocks of
/// up to 2 MiB can be split; longer ones must have the requested order.
#[inline]
fn wanted_orders(order: u8) -> u16 {
    if order <= WHOLE { (2 << WHOLE) - (1 << order) } else { 1 << order }
}

/// Returns the order of the smallest buffer that holds `len_bytes`. Returns `None` for more than 32
/// MiB plus 256 KiB.
#[inline]
#[must_use]
pub fn order_of(len_bytes: usize) -> Option<u8> {
    let bits = len_bytes.max(BUFFER_BYTES_MIN).checked_next_power_of_two()?.trailing_zeros();
    let order = (bits - BUFFER_BYTES_MIN.trailing_zeros()) as u8;
    (order <= LONGEST + 1 && len_bytes <= order_bytes(order)).then_some(order)
}

/// Returns the length in bytes of a buffer of size class `order`. The length is `4 KiB << order`,
/// except for the last order: 32 MiB plus 256 KiB.
#[inline]
#[must_use]
pub const fn order_bytes(order: u8) -> usize {
    if order <= LONGEST {
        BUFFER_BYTES_MIN << order
    } else {
        (BUFFER_BYTES_MIN << LONGEST) + EDGES_BYTES
    }
}

/// Returns the length in bytes of the region that is mapped for a buffer of size class `order`.
#[must_use]
pub fn region_bytes(order: u8) -> usize {
    order_bytes(order).max(REGION_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn orders_are_powers_of_two_and_one_for_requests_with_two_edges() {
        for (len, buffer, region) in [
            (0, 4096, 2 * MIB),
            (1, 4096, 2 * MIB),
            (4097, 8192, 2 * MIB),
            (MIB + 1, 2 * MIB, 2 * MIB),
            (2 * MIB + 1, 4 * MIB, 4 * MIB),
            (32 * MIB, 32 * MIB, 32 * MIB),
            (32 * MIB + 1, 32 * MIB + EDGES_BYTES, 32 * MIB + EDGES_BYTES),
        ] {
            let order = order_of(len).unwrap();
            assert_eq!((order_bytes(order), region_bytes(order)), (buffer, region), "{len}");
        }
        for len in [32 * MIB + EDGES_BYTES + 1, 64 * MIB, usize::MAX] {
            assert_eq!(order_of(len), None, "{len}");
        }
    }

    #[test]
    fn buffers_of_all_orders_share_regions_and_longer_ones_do_not() {
        let mut arena = BufferArena::default();
        assert!(arena.take(0).is_none(), "nothing is mapped");
        arena.map(0, |_| 'a').unwrap();
        let (small, half) = (arena.take(0).unwrap(), arena.take(8).unwrap());
        assert_eq!((small.region(), half.region(), arena.in_use()), (0, 0, 2));
        assert!(
            arena.take(9).is_none() && arena.take(10).is_none() && arena.unmap(0, |_| ()).is_none()
        );
        arena.map(10, |_| 'b').unwrap();
        assert_eq!(arena.idle_bytes(), 4 * MIB);
        let long = arena.take(10).unwrap();
        assert_eq!((long.region(), arena.idle_bytes(), arena.mapped_bytes()), (1, 0, 6 * MIB));
        assert!(arena.give(long) && !arena.give(half) && arena.give(small));
        assert_eq!(arena.find_idle(|bytes| bytes > 2 * MIB), Some(1));
        assert_eq!(arena.unmap(1, |note| assert_eq!(note, 'b')), Some(4 * MIB));
        let whole = arena.take(9).expect("what was cut is joined");
        assert!(arena.find_idle(|_| true).is_none());
        assert!(arena.give(whole));
        let bytes = arena.unmap(0, |note| assert_eq!(note, 'a'));
        assert_eq!((bytes, arena.idle_bytes()), (Some(2 * MIB), 0));
        arena.map(9, |_| 'c').unwrap();
        assert_eq!(arena.note_mut(0).unwrap(), (&mut 'c', 2 * MIB), "its place is used again");
    }
}
