//! Scenarios give times in microseconds; the constant converts a time to nanoseconds.

pub(super) const NS_PER_US: u64 = 1_000;
