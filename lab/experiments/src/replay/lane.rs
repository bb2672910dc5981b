//! `Lane`: the volume or server that one or more devices of a trace are replayed on. `Target`: the
//! receiver of a replay's I/Os, with its lanes.
//!
//! The engine submits a `Piece`, and the target returns a `Done`. Only the engine's thread uses a
//! target.

use millrace_block::Op;

use crate::load::bench::BenchError;
use crate::load::overwrite::DiskContents;

/// Largest piece of each operation, and true for each optional operation that a lane supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceLimits {
    pub(crate) data_bytes_max: u64,
    /// Largest discard; 0 if the lane accepts no discards.
    pub(crate) discard_bytes_max: u64,
    /// Largest write-zeroes; 0 if the lane accepts no write-zeroes.
    pub(crate) zeroes_bytes_max: u64,
    pub(crate) flush: bool,
    pub(crate) fua: bool,
}

impl PieceLimits {
    /// Returns the largest size of `op` in one piece, in bytes; 0 if the lane does not accept `op`.
    pub(crate) fn bytes_max(&self, op: Op) -> u64 {
        match op {
            Op::Read | Op::Write => self.data_bytes_max,
            Op::Discard => self.discard_bytes_max,
            Op::WriteZeroes => self.zeroes_bytes_max,
            Op::Flush => u64::from(self.flush),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) name: String,
    /// Size of the lane, a multiple of the block size.
    pub(crate) size_bytes: u64,
    /// Block size, a power of two.
    pub(crate) block_bytes: u64,
    pub(crate) takes: PieceLimits,
    pub(crate) is_read_only: bool,
    pub(crate) contents: DiskContents,
}

/// An I/O, or a part of an I/O that the lane accepts as one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Index of the lane in [`Target::lanes`].
    pub(crate) lane: u32,
    /// Number of the engine's slot, which the piece's `Done` returns.
    pub(crate) slot: u32,
    pub(crate) op: Op,
    pub(crate) fua: bool,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) slot: u32,
    /// Text of the error; `None` for success.
    pub(crate) error: Option<String>,
}

/// Target of a replay, which executes the trace's I/Os. A method returns an error only if the
/// target has failed. An error of a single piece is part of the piece's `Done`.
pub(crate) trait Target {
    fn lanes(&self) -> &[Lane];

    fn now_ns(&self) -> u64;

    /// Submits a piece. Returns false if there is no room for the piece now. The target may hold
    /// back the piece until `start` is called.
    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError>;

    fn start(&mut self) -> Result<(), BenchError>;

    /// Appends the pieces that have ended to `done`, without waiting.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError>;

    /// Sleeps until a piece may have ended, at most until `until_ns`.
    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError>;
}
