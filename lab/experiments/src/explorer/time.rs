//! The unit in which scenarios count time. Used wherever a scenario's times are converted to the
//! machine's nanoseconds.

pub(super) const NS_PER_US: u64 = 1_000;
