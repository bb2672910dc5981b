//! `Lane`: the volume or server that one or more devices of a trace are replayed on. `Target`: the
//! receiver of a replay's I/Os, with its lanes.
//!
//! The engine submits a `Piece`, and the target returns a `Done`. Only the engine's thread uses a
//! target.

use millrace_block::Op;

use crate::load::bench::BenchError;
use crate::load::overwrite::DiskContents;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceLimits {
    pub(crate) data_bytes_max: u64,
    /// Largest discard in bytes; 0 if the volume or server accepts no discards.
    pub(crate) discard_bytes_max: u64,
    /// Largest write-zeroes in bytes; 0 if the volume or server accepts no write-zeroes.
    pub(crate) zeroes_bytes_max: u64,
    pub(crate) flush: bool,
    pub(crate) fua: bool,
}

impl PieceLimits {
    /// Returns the largest size, in bytes, of a request with `op`; 0 if `op` is not accepted.
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
    /// Size of the volume or server in bytes, a multiple of `block_bytes`.
    pub(crate) size_bytes: u64,
    /// Block size, a power of two.
    pub(crate) block_bytes: u64,
    pub(crate) takes: PieceLimits,
    pub(crate) is_read_only: bool,
    pub(crate) contents: DiskContents,
}

/// Request to a volume or server: a whole I/O, a part of an I/O that is too long for one request,
/// or the flush that makes a write durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) lane: u32,
    pub(crate) slot: u32,
    pub(crate) op: Op,
    pub(crate) fua: bool,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) slot: u32,
    pub(crate) error: Option<String>,
}

/// Target of a replay, which executes the trace's I/Os. A method returns an error only if the
/// target has failed. An error of a single request is part of the request's `Done`.
pub(crate) trait Target {
    fn lanes(&self) -> &[Lane];

    fn now_ns(&self) -> u64;

    /// Submits a piece of an I/O to its volume or server. Returns false if the volume or server has
    /// no room for another request. The target may keep the piece in a batch until the next call of
    /// `start`.
    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError>;

    fn start(&mut self) -> Result<(), BenchError>;

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError>;

    /// Sleeps until a request completes, or until `until_ns`. The sleep may also end earlier
    /// without a completion.
    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError>;
}
