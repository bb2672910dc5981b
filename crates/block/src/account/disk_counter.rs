//! `DiskCounter`: counters of a drive's queues, defined in one table.
//!
//! Each row of the table defines a counter: an enum variant, a method of [`StatsSnapshot`] and a
//! help text. Each thread counts in its own array (account.rs), indexed by [`DiskCounter`].
//! [`StatsSnapshot`] has the sums over all threads in the same order. Reports and metrics list
//! [`DiskCounter::ALL`]. So a new counter needs only a row here and the code that increments it.
//! Counters never decrease.

use crate::account::stats::StatsSnapshot;

/// Generates [`DiskCounter`]. Each row is a variant, a method's name and a help text; doc comments
/// above a row are copied into the documentation.
macro_rules! disk_counters {
    ($($(#[doc = $more:literal])* $Counter:ident $name:ident $help:literal,)*) => {
        /// A counter of a drive's queues.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum DiskCounter {
            $(#[doc = $help] #[doc = ""] $(#[doc = $more])* $Counter,)*
        }

        impl DiskCounter {
            /// All counters, in the order in which reports list them.
            pub const ALL: [DiskCounter; [$($help),*].len()] = [$(DiskCounter::$Counter),*];

            /// Returns the counter's key in reports, which is also part of the metric's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                [$(stringify!($name)),*][self as usize]
            }

            /// Returns a sentence that describes the counter, for the help text of its metric.
            #[must_use]
            pub fn help(self) -> &'static str {
                [$($help),*][self as usize]
            }
        }

        impl StatsSnapshot {
            $(
                #[doc = $help] #[doc = ""] $(#[doc = $more])*
                #[must_use]
                pub fn $name(&self) -> u64 {
                    self.counts[DiskCounter::$Counter as usize]
                }
            )*
        }
    };
}

disk_counters! {
    Queued queued "I/Os handed to the drive's queues.",
    Parts parts "I/Os queued that are parts of split I/Os.",
    Requests requests "Requests handed to the driver, after merging.",
    /// Number of batches, equal to the sum of `StatsSnapshot::batches` over all size classes.
    Dispatches dispatches "Batches of requests handed to the driver.",
    Requeues requeues "Requests requeued because the driver was busy.",
    Timeouts timeouts "Requests that were not completed within the timeout.",
    /// A hardware queue that waits for a tag is usually counted once, however often it tries again.
    /// Every failed attempt is counted in two cases:
    /// - in the designs `sq` and `per-volume`;
    /// - while the driver has as many requests as it accepts.
    TagWaits tag_waits "Times that a hardware queue found no free tag.",
}
