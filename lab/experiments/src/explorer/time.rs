//! The unit in which scenarios count time. Called by whatever turns it into the machine's.

/// Nanoseconds in a microsecond.
pub(super) const NS_PER_US: u64 = 1_000;
