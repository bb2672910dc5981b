//! `Measured`: size, block, place and remarks of a drive that is not open.
//!
//! Plain data. Made by drivers for `--check` and for messages before anything is opened.

use super::place::Place;

/// What is known of a drive that is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Size in bytes, perhaps no multiple of its blocks.
    pub size_bytes: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// Lines that a person should see.
    pub notes: Vec<String>,
    /// Lines about things that are hardly meant.
    pub warnings: Vec<String>,
    /// Where it keeps its data; none if nobody else can name that.
    pub place: Option<Place>,
}

impl Measured {
    pub(crate) fn plain(size_bytes: u64, block_bytes: u32) -> Measured {
        Measured { size_bytes, block_bytes, notes: Vec::new(), warnings: Vec::new(), place: None }
    }
}
