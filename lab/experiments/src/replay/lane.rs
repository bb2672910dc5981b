//! `Lane`: what one device of a trace is replayed on, and `Target`, whatever takes its I/Os.
//!
//! Owns the words between the engine and targets: a `Piece` goes in, a `Done` comes out. A target
//! has a lane for each thing that devices are mapped to, and is used by the engine's thread alone.
//! Implemented by volumes.rs, servers.rs, and by a plain model in tests.

use millrace_block::Op;

use crate::load::bench::BenchError;
use crate::load::overwrite::DiskContents;

/// Largest pieces and optional operations that a lane accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceLimits {
    /// Largest number of bytes of a read or write.
    pub data_bytes_max: u64,
    /// Largest number of bytes of a discard; 0 if the lane accepts none.
    pub discard_bytes_max: u64,
    /// Largest number of bytes of a write of zeroes; 0 if the lane accepts none.
    pub zeroes_bytes_max: u64,
    /// The lane accepts flushes.
    pub flush: bool,
    /// The lane accepts FUA writes, which are durable before they are answered.
    pub fua: bool,
}

impl PieceLimits {
    /// Returns the largest size of `op` in one piece, in bytes; 0 if the lane does not accept `op`.
    #[must_use]
    pub fn bytes_max(&self, op: Op) -> u64 {
        match op {
            Op::Read | Op::Write => self.data_bytes_max,
            Op::Discard => self.discard_bytes_max,
            Op::WriteZeroes => self.zeroes_bytes_max,
            Op::Flush => u64::from(self.flush),
        }
    }
}

/// Target of one or more devices of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Name of the lane, for reports and errors.
    pub name: String,
    /// Size of the lane in bytes, a multiple of the block size.
    pub size_bytes: u64,
    /// Block size in bytes, a power of two.
    pub block_bytes: u64,
    /// Limits and optional operations of the lane.
    pub takes: PieceLimits,
    /// The lane accepts no writes.
    pub is_read_only: bool,
    /// Data on the lane that writes would destroy.
    pub contents: DiskContents,
}

/// I/O, or the part of an I/O that a lane takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the lane in [`Target::lanes`].
    pub lane: u32,
    /// Number of the engine's slot, returned in the piece's `Done`.
    pub slot: u32,
    /// Operation to do.
    pub op: Op,
    /// The write must be durable before it is answered.
    pub fua: bool,
    /// Offset of the first byte on the lane.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// Piece that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Number of the piece's slot.
    pub slot: u32,
    /// Text of the error; `None` for success.
    pub error: Option<String>,
}

/// Receiver of a trace's I/Os.
pub trait Target {
    /// Returns the target's lanes; [`Piece::lane`] is an index into them.
    fn lanes(&self) -> &[Lane];

    /// Returns the time by this target's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Takes a piece; returns false if there is no room for it now. The piece may wait until
    /// `start`.
    ///
    /// # Errors
    /// If the target is broken; a piece that fails is a `Done`.
    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError>;

    /// Starts the pieces that were submitted.
    ///
    /// # Errors
    /// If the target is broken.
    fn start(&mut self) -> Result<(), BenchError>;

    /// Appends the pieces that have ended, without waiting.
    ///
    /// # Errors
    /// If the target is broken.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError>;

    /// Sleeps until a piece may have ended or `until_ns` has come; may return earlier.
    ///
    /// # Errors
    /// If the target is broken.
    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError>;
}
