//! `Measured`: size, block size, identity and remarks of a drive that is not open.
//!
//! Plain data. Drivers create it for `--check`, and for messages before any drive is opened.

use super::place::DataPlace;

/// Properties of a drive that is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Size in bytes, which need not be a multiple of the block size.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// Warnings about settings that are probably mistakes.
    pub warnings: Vec<String>,
    /// Identity of the drive's data, or `None` if no other drive can use the same data.
    pub place: Option<DataPlace>,
}

impl Measured {
    pub(crate) fn plain(size_bytes: u64, block_bytes: u32) -> Measured {
        Measured { size_bytes, block_bytes, notes: Vec::new(), warnings: Vec::new(), place: None }
    }
}
