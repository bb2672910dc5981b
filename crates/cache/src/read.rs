//! Reads: hits that are copied in groups, and read-ahead for sequential streams.

pub(crate) mod hits;
pub(crate) mod streams;
