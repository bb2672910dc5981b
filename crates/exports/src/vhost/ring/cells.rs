//! Access to the words of a ring, in guest memory or in a model of it.
//!
//! `RingAreas` (ring.rs) implements [`RingWords`] for guest memory, and model.rs implements it for
//! the model checker.

use millrace_machine::{Machine, Order};

/// The avail and used areas of a ring, in words of two bytes.
pub trait RingWords {
    /// Machine (real or modelled hardware) whose fences order accesses to the ring.
    type Machine: Machine;

    /// Reads word `index` of the avail area: flags, index, a head for each descriptor, used_event.
    fn avail(&self, index: usize, order: Order) -> u16;

    /// Writes word `index` of the used area. The area consists of flags, index, the used ring with
    /// four words per entry, and avail_event.
    fn set_used(&self, index: usize, value: u16, order: Order);

    /// Writes entry `place` of the used ring: the head, and the number of bytes written.
    fn put(&self, place: u16, head: u32, len: u32);
}
