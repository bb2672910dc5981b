//! The results that a program gets from a channel: completed bios, and bios that were not accepted.
//!
//! Both are plain values that return the bio and its memory to the submitter. Made by channel.rs
//! and reap.rs.

use core::fmt;

use crate::bio::Bio;
use crate::bio::status::Status;

/// A bio that was not accepted, with the reason.
#[derive(Debug)]
pub struct Rejected {
    /// The bio, with its memory.
    pub bio: Bio,
    /// The reason why the bio was not accepted.
    pub reason: Reject,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reject::Full => f.write_str("the channel is full; poll it, then submit again"),
            Reject::Invalid(status) => write!(f, "the volume cannot serve this bio: {status}"),
        }
    }
}

impl core::error::Error for Rejected {}

/// The reason why a bio was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reject {
    /// The channel is full: poll, then try again.
    Full,
    /// The bio can never be served; the status says why.
    Invalid(Status),
}

/// A completed bio.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's number for the bio.
    pub user_data: u64,
    /// Outcome of the I/O.
    pub status: Status,
    /// The bio with its memory. After a timeout that the drive has not confirmed, the memory stays
    /// with the channel, and the bio comes back without it.
    pub bio: Bio,
    /// Time of submission in nanoseconds of the machine's clock; 0 if the bio was never queued.
    /// With [`Stamp::Batch`], the time of the batch's first bio.
    ///
    /// [`Stamp::Batch`]: crate::Stamp::Batch
    pub q_ns: u64,
    /// Time at which the thread noticed the completion, in nanoseconds of the machine's clock. For
    /// a bio that reached no drive: the time of the thread's previous completion, or 0.
    pub c_ns: u64,
}

/// A program's decision about a completed bio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AfterCompletion {
    /// Submit the bio again, with the present values of its fields.
    Submit,
    /// Drop the bio, and its memory if the bio owns the memory.
    Drop,
}
