//! Counters of one thread, which other threads can read.
//!
//! A thread counts in a plain struct of its own and publishes a copy once per turn of its loop. A
//! reader sums the copies of all threads. Both servers use this, each with its own struct.
//!
//! Invariant: each [`PublishedCounters`] has one writer. A reader may see counters of different
//! turns.

use std::sync::atomic::{AtomicU64, Ordering};

/// A struct of `N` counters.
pub(crate) trait Counters<const N: usize>: Default {
    /// Returns the counters in an order that never changes.
    fn fields(&mut self) -> [&mut u64; N];

    /// Adds the counters of `other`, field by field.
    fn add_fields(&mut self, mut other: Self) {
        for (sum, value) in self.fields().into_iter().zip(other.fields()) {
            *sum += *value;
        }
    }
}

/// Counters that one thread writes, alone on their cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct PublishedCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for PublishedCounters<N> {
    fn default() -> Self {
        PublishedCounters([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> PublishedCounters<N> {
    /// Publishes `counters` for other threads.
    pub(crate) fn publish(&self, mut counters: impl Counters<N>) {
        for (cell, value) in self.0.iter().zip(counters.fields()) {
            // Relaxed: these are statistics; no other memory access depends on them.
            cell.store(*value, Ordering::Relaxed);
        }
    }

    /// Returns the last published counters.
    pub(crate) fn read<C: Counters<N>>(&self) -> C {
        let mut counters = C::default();
        for (cell, field) in self.0.iter().zip(counters.fields()) {
            // Relaxed: these are statistics; no other memory access depends on them.
            *field = cell.load(Ordering::Relaxed);
        }
        counters
    }
}
