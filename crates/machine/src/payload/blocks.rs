//! `FreeBlocks`: the free parts of a 2 MiB region, as a binary buddy system.
//!
//! The state is a tree of bits: node 1 is the whole region, nodes 2 and 3 are its halves, and so on
//! to the 512 pages from node 512 on. A bit is set if its block is free as a whole. A block is
//! split into halves if no block of the wanted size is free. Halves are joined only when a larger
//! block is wanted, because most blocks are soon wanted again at the same size. Invariant: of a
//! node and its ancestors, at most one has its bit set.
//! # Source
//! Knowlton, "A fast storage allocator", Communications of the ACM, 1965.

use super::{BUFFER_BYTES_MIN, REGION_BYTES};

/// Order of a whole region: a block of order n has 4 KiB times 2 to the n.
pub(super) const WHOLE: u8 = (REGION_BYTES / BUFFER_BYTES_MIN).trailing_zeros() as u8;
const WORDS: usize = (2 << WHOLE) / 64;
/// Mask of the even bits, which belong to the left blocks of buddy pairs.
const LEFT: u64 = 0x5555_5555_5555_5555;

#[derive(Debug, Clone)]
pub(super) struct FreeBlocks {
    free: [u64; WORDS],
    /// Bit mask of the orders of free blocks.
    pub(super) orders: u16,
    used: u16,
    /// True if a block was given back since free buddy blocks were last joined.
    joinable: bool,
}

impl FreeBlocks {
    pub(super) fn new() -> FreeBlocks {
        let mut free = [0; WORDS];
        free[0] = 1 << 1;
        FreeBlocks { free, orders: 1 << WHOLE, used: 0, joinable: false }
    }

    /// Takes a block, splitting a larger one if necessary. `None` if none is large enough.
    #[inline]
    pub(super) fn take(&mut self, order: u8) -> Option<u16> {
        let larger = self.orders >> order;
        if larger == 0 {
            return None;
        }
        let mut from = order + larger.trailing_zeros() as u8;
        let mut node = self.first(from);
        self.clear(node, from);
        while from > order {
            from -= 1;
            node *= 2;
            self.set(node + 1, from);
        }
        self.used += 1;
        Some(node)
    }

    #[inline]
    pub(super) fn give(&mut self, node: u16, order: u8) {
        assert!(!self.is_free(node), "a buffer was given back twice");
        self.set(node, order);
        self.used -= 1;
        self.joinable = true;
    }

    #[cold]
    pub(super) fn join(&mut self) {
        if self.used == 0 {
            *self = FreeBlocks::new();
            return;
        }
        if !std::mem::take(&mut self.joinable) {
            return;
        }
        for order in 0..WHOLE {
            for word in words(order) {
                // Bits of free blocks that are the left half of a buddy pair and have a free right
                // half. The bit of the right half is the next bit.
                let mut pairs = self.free[word] & self.free[word] >> 1 & LEFT & bits(order);
                self.free[word] &= !(pairs | pairs << 1);
                while pairs != 0 {
                    let node = word as u16 * 64 + pairs.trailing_zeros() as u16;
                    self.set(node / 2, order + 1);
                    pairs &= pairs - 1;
                }
            }
            self.note(order);
        }
    }

    #[inline]
    pub(super) fn offset(node: u16, order: u8) -> usize {
        usize::from(node - (1 << (WHOLE - order))) * (BUFFER_BYTES_MIN << order)
    }

    fn is_free(&self, node: u16) -> bool {
        self.free[usize::from(node / 64)] >> (node % 64) & 1 != 0
    }

    #[inline]
    fn set(&mut self, node: u16, order: u8) {
        self.free[usize::from(node / 64)] |= 1 << (node % 64);
        self.orders |= 1 << order;
    }

    #[inline]
    fn clear(&mut self, node: u16, order: u8) {
        self.free[usize::from(node / 64)] &= !(1 << (node % 64));
        self.note(order);
    }

    /// Sets or clears the bit in `orders` that tells if a block of this order is free.
    #[inline]
    fn note(&mut self, order: u8) {
        let any = words(order).any(|word| self.free[word] & bits(order) != 0);
        self.orders = self.orders & !(1 << order) | u16::from(any) << order;
    }

    /// Returns the node of the first free block of this order. At least one must be free.
    #[inline]
    fn first(&self, order: u8) -> u16 {
        for word in words(order) {
            let found = self.free[word] & bits(order);
            if found != 0 {
                return word as u16 * 64 + found.trailing_zeros() as u16;
            }
        }
        unreachable!("no block of order {order} is free")
    }
}

#[inline]
fn words(order: u8) -> std::ops::Range<usize> {
    let first = 1_usize << (WHOLE - order);
    first / 64..(2 * first).div_ceil(64)
}

#[inline]
fn bits(order: u8) -> u64 {
    let first = 1_u32 << (WHOLE - order);
    if first >= 64 { u64::MAX } else { mask_below(2 * first) & !mask_below(first) }
}

#[inline]
fn mask_below(bit: u32) -> u64 {
    if bit >= 64 { u64::MAX } else { (1 << bit) - 1 }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn random_blocks_never_overlap_and_all_join_again() {
        let mut state = 7_u64;
        let mut random = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for round in 0..40 {
            let mut blocks = FreeBlocks::new();
            let mut pages = [false; 512];
            let mut held: Vec<(u16, u8)> = Vec::new();
            for _ in 0..2_000 {
                let order = random(usize::from(WHOLE) + 1).min(random(12)) as u8;
                let range = |node, order| {
                    let first = FreeBlocks::offset(node, order) / BUFFER_BYTES_MIN;
                    first..first + (1 << order)
                };
                if random(2) == 0 {
                    let mut found = blocks.take(order);
                    if found.is_none() {
                        blocks.join();
                        found = blocks.take(order);
                        let fits = |first: usize| {
                            pages[first..first + (1 << order)].iter().all(|used| !used)
                        };
                        let any = (0..512).step_by(1 << order).any(fits);
                        assert_eq!(found.is_some(), any, "round {round}: order {order}");
                    }
                    let Some(node) = found else { continue };
                    assert!(
                        range(node, order).all(|page| !std::mem::replace(&mut pages[page], true))
                    );
                    held.push((node, order));
                } else if !held.is_empty() {
                    let (node, order) = held.swap_remove(random(held.len()));
                    range(node, order).for_each(|page| pages[page] = false);
                    blocks.give(node, order);
                }
                assert_eq!(usize::from(blocks.used), held.len());
            }
            held.drain(..).for_each(|(node, order)| blocks.give(node, order));
            blocks.join();
            assert_eq!((blocks.take(WHOLE), blocks.take(0)), (Some(1), None));
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_block_that_comes_back_twice_is_noticed() {
        let mut blocks = FreeBlocks::new();
        let node = blocks.take(3).unwrap();
        blocks.give(node, 3);
        blocks.give(node, 3);
    }
}
