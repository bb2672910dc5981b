//! `NS_PER_US`: converts a scenario's times, in microseconds, to the machine's nanoseconds.

pub(super) const NS_PER_US: u64 = 1_000;
