//! What a program gets from a channel: completed bios, and bios that were not accepted.
//!
//! Plain values that carry the bio and its memory back to whoever submitted it. Made by channel.rs
//! and reap.rs.

use core::fmt;

use crate::bio::Bio;
use crate::bio::status::Status;

/// A bio that was not accepted, and why.
#[derive(Debug)]
pub struct Rejected {
    /// The bio, with its memory.
    pub bio: Bio,
    /// Why.
    pub reason: Reject,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reject::Full => f.write_str("the channel is full: poll, then submit again"),
            Reject::Invalid(status) => write!(f, "the bio can never be served: {status}"),
        }
    }
}

impl core::error::Error for Rejected {}

/// Why a bio was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// The channel is full: poll, then try again.
    Full,
    /// It can never be accepted.
    Invalid(Status),
}

/// A bio that is done.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's number.
    pub user_data: u64,
    /// The outcome.
    pub status: Status,
    /// The bio with its memory. After a timeout that the drive has not confirmed, the memory stays
    /// with the channel and the bio comes back without.
    pub bio: Bio,
    /// When it was queued (Q), in nanoseconds of the machine's clock; with [`Stamp::Batch`] that of
    /// its batch; 0 if it never was.
    ///
    /// [`Stamp::Batch`]: crate::Stamp::Batch
    pub q_ns: u64,
    /// When the thread found it, or what it found last, complete (C); 0 if it never did.
    pub c_ns: u64,
}

/// What is to become of a completed bio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Submit it again, as it stands now.
    Submit,
    /// Drop it, and its memory with it if it owns that.
    Drop,
}
