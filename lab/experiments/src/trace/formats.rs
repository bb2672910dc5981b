//! Readers of trace formats, one file each.
//!
//! Called by `open.rs`, and by `detect.rs`, which tries them on the first lines of a trace.

pub(super) mod alibaba;
pub(super) mod blkparse;
pub(super) mod blktrace;
pub(super) mod fiu;
pub(super) mod iolog;
pub(super) mod msr;
pub(super) mod nbdkit;
pub(super) mod spc;
pub(super) mod systor;
pub(super) mod tencent;
pub(super) mod trlog;
pub(super) mod vscsi;

/// Bytes per sector, in all formats that count in sectors.
const SECTOR_BYTES: u64 = 512;
