//! Counters of a drive's queues: one row each.
//!
//! Each thread counts in an array of its own (account.rs) that [`DiskCounter`] indexes;
//! [`StatsSnapshot`] has the sums in the same array, and a method for each. Reports and metrics
//! list [`DiskCounter::ALL`], so that a new counter is a row here and the line that counts.
//! Values only grow.

use crate::account::stats::StatsSnapshot;

/// A row: variant, name and help in one line, below documentation that says more than the help.
macro_rules! disk_counters {
    ($($(#[doc = $more:literal])* $Counter:ident $name:ident $help:literal,)*) => {
        /// A counter of a drive's queues.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum DiskCounter {
            $(#[doc = $help] #[doc = ""] $(#[doc = $more])* $Counter,)*
        }

        impl DiskCounter {
            /// All of them, in the order of reports.
            pub const ALL: [DiskCounter; [$($help),*].len()] = [$(DiskCounter::$Counter),*];

            /// The key in reports, and a part of the metric's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                [$(stringify!($name)),*][self as usize]
            }

            /// A sentence for those who read a metric.
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
    Parts parts "Of the I/Os queued, parts of split ones.",
    Requests requests "Requests handed to the driver, after merging.",
    /// The sum of `batches`, made by readers: threads count batches by size only.
    Dispatches dispatches "Batches of requests handed to the driver.",
    Requeues requeues "Requests that the driver gave back as busy.",
    Timeouts timeouts "Requests not answered in time.",
    /// Counted when a hardware queue begins to wait. A queue that has out what its drive takes, or
    /// has one list for all drives, counts how often it looked for room in vain.
    TagWaits tag_waits "Times that no tag was free.",
}
