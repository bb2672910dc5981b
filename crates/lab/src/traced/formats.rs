//! Readers of formats, a file each.
//!
//! Called by `open.rs`, and by `detect.rs`, which tries them on the first lines of a trace.

pub(super) mod iolog;
