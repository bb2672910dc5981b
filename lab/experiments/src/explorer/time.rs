//! The unit of the times in a scenario, for conversion to the machine's nanoseconds.

pub(super) const NS_PER_US: u64 = 1_000;
