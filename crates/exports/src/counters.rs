//! Counters of one thread, readable by other threads, each declared by a row of a table.
//!
//! A thread counts in a plain struct and publishes a copy in each iteration of its event loop. A
//! reader adds up the copies of all threads. Reports and metrics are generated from the same table,
//! so a new counter needs only a row and the code that counts.
//!
//! Invariant: each [`PublishedCounters`] has one writer. A reader may see counters of different
//! iterations.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declaration of one counter for reports and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRow {
    /// Name of the metric without prefix and suffix; empty for a counter without a metric.
    pub metric: &'static str,
    /// Kind of the metric: `counter` if the value only grows, else `gauge`.
    pub kind: &'static str,
    /// JSON pointer to the counter's value in a report; empty if reports do not contain the
    /// counter.
    pub pointer: &'static str,
    /// Help text of the metric.
    pub help: &'static str,
}

/// A struct with `N` counters as fields, and a table with a row for each field.
pub trait CounterTable<const N: usize>: Copy + Default {
    /// Declarations of the counters, in the order of [`CounterTable::fields`].
    const ROWS: [CounterRow; N];

    /// Returns the counters.
    fn fields(&mut self) -> [&mut u64; N];

    /// Returns the values of the counters.
    #[must_use]
    fn values(mut self) -> [u64; N] {
        self.fields().map(|field| *field)
    }

    /// Adds the counters of `other`, field by field.
    fn add(&mut self, other: Self) {
        for (sum, value) in self.fields().into_iter().zip(other.values()) {
            *sum += value;
        }
    }

    /// Returns each counter minus its value in `before`. Gauges keep their current value.
    #[must_use]
    fn since(mut self, before: Self) -> Self {
        let old = Self::ROWS.iter().zip(before.values());
        for (field, (_, old)) in
            self.fields().into_iter().zip(old).filter(|(_, (row, _))| row.kind == "counter")
        {
            *field = field.saturating_sub(old);
        }
        self
    }
}

/// Declares a struct of counters. Each row declares a field: its kind, metric name, JSON pointer
/// and help text.
#[macro_export]
macro_rules! counter_table {
    ($(#[$doc:meta])* pub struct $table:ident {
        $($field:ident $kind:ident $metric:literal $pointer:literal $help:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $table {
            $(#[doc = $help] pub $field: u64,)*
        }

        impl $table {
            /// Number of counters.
            pub const COUNT: usize = [$($help),*].len();
        }

        impl $crate::CounterTable<{ $table::COUNT }> for $table {
            const ROWS: [$crate::CounterRow; $table::COUNT] = [$($crate::CounterRow {
                metric: $metric,
                kind: stringify!($kind),
                pointer: $pointer,
                help: $help,
            }),*];

            fn fields(&mut self) -> [&mut u64; $table::COUNT] {
                [$(&mut self.$field),*]
            }
        }
    };
}

/// Counters that one thread writes, on cache lines without other data.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct PublishedCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for PublishedCounters<N> {
    fn default() -> Self {
        PublishedCounters([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> PublishedCounters<N> {
    pub(crate) fn publish(&self, counters: impl CounterTable<N>) {
        for (cell, value) in self.0.iter().zip(counters.values()) {
            // Relaxed: these are statistics; no other memory access depends on them.
            cell.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn read<C: CounterTable<N>>(&self) -> C {
        let mut counters = C::default();
        for (cell, field) in self.0.iter().zip(counters.fields()) {
            // Relaxed: these are statistics; no other memory access depends on them.
            *field = cell.load(Ordering::Relaxed);
        }
        counters
    }
}
