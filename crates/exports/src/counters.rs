//! Counters of one thread, for other threads to read.
//!
//! A thread counts in a plain struct of its own and publishes a copy once per turn of its loop;
//! whoever asks adds up the copies. Used by both servers, each with a struct of its own counters.
//!
//! Invariant: one writer per [`PublishedCounters`]; a reader may see counters of different turns.

use std::sync::atomic::{AtomicU64, Ordering};

/// A struct of `N` counters.
pub(crate) trait Counters<const N: usize>: Default {
    /// All its counters, in an order that never changes.
    fn fields(&mut self) -> [&mut u64; N];

    /// Adds another's, field by field.
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
    /// Shows other threads these counters.
    pub(crate) fn publish(&self, mut counters: impl Counters<N>) {
        for (cell, value) in self.0.iter().zip(counters.fields()) {
            // Relaxed: statistics, which order nothing.
            cell.store(*value, Ordering::Relaxed);
        }
    }

    /// The counters as last published.
    pub(crate) fn read<C: Counters<N>>(&self) -> C {
        let mut counters = C::default();
        for (cell, field) in self.0.iter().zip(counters.fields()) {
            // Relaxed: statistics, which order nothing.
            *field = cell.load(Ordering::Relaxed);
        }
        counters
    }
}
