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
    /// Bytes of a read or write.
    pub data_bytes_max: u64,
    /// Bytes of a discard; 0 if it takes none.
    pub discard_bytes_max: u64,
    /// Bytes of a write of zeroes; 0 if it takes none.
    pub zeroes_bytes_max: u64,
    /// The lane accepts flushes.
    pub flush: bool,
    /// The lane accepts FUA writes, which are durable before they are answered.
    pub fua: bool,
}

impl PieceLimits {
    /// Bytes of an operation in one piece; 0 if it takes none such.
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

/// One thing that devices are mapped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Name of the lane, for reports and errors.
    pub name: String,
    /// Its bytes, a multiple of its block.
    pub size_bytes: u64,
    /// Bytes of a block, a power of two.
    pub block_bytes: u64,
    /// Limits and optional operations of the lane.
    pub takes: PieceLimits,
    /// The lane accepts no writes.
    pub is_read_only: bool,
    /// Data on it that writes would destroy.
    pub contents: DiskContents,
}

/// An I/O, or as much of it as a lane takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the lane in [`Target::lanes`].
    pub lane: u32,
    /// The number that comes back with its `Done`.
    pub slot: u32,
    /// Operation to do.
    pub op: Op,
    /// Durable before it is answered.
    pub fua: bool,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub len_bytes: u64,
}

/// A piece that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The piece's number.
    pub slot: u32,
    /// Text of the error; `None` for success.
    pub error: Option<String>,
}

/// Whatever takes the I/Os of a trace.
pub trait Target {
    /// Returns the target's lanes; [`Piece::lane`] is an index into them.
    fn lanes(&self) -> &[Lane];

    /// The time by this target's clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Takes a piece; false if there is no room for it now. It may start at the next `start`.
    ///
    /// # Errors
    /// If the target is broken; a piece that fails is a `Done`.
    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError>;

    /// Starts what was submitted.
    ///
    /// # Errors
    /// If the target is broken.
    fn start(&mut self) -> Result<(), BenchError>;

    /// Appends what has ended, without waiting.
    ///
    /// # Errors
    /// If the target is broken.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError>;

    /// Sleeps until something may have ended or the time has come; for shorter if it likes.
    ///
    /// # Errors
    /// If the target is broken.
    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError>;
}
