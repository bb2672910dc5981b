//! Readers of trace formats, each in a file of its own, and tables that describe simple text
//! formats by their columns.
//!
//! The rows of the table in `format.rs` name these readers.

pub(super) mod blkparse;
pub(super) mod blktrace;
pub(super) mod nbdkit;
pub(super) mod tables;
pub(super) mod trlog;
pub(super) mod vscsi;

const SECTOR_BYTES: u64 = 512;
