//! Reads: hits that are copied in groups, and the streams that are read ahead.

pub(crate) mod hits;
pub(crate) mod streams;
