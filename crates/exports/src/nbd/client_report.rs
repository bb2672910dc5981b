//! A client as operators see it, and its number.
//!
//! A client's number is that of its I/O thread and its place there, and is the tenant of its I/Os:
//! logs, counters and traces name it by the same number. A number is used again when its client has
//! left. Filled in by clients.rs.

use millrace_block::GroupId;

/// Clients of a thread before numbers are used twice; 0 is nobody's.
const CLIENTS_PER_THREAD: u16 = 1000;

/// The number of the client at a place of an I/O thread.
pub(crate) fn client_number(thread: usize, index: usize) -> u16 {
    (thread as u16).wrapping_mul(CLIENTS_PER_THREAD).wrapping_add(1).wrapping_add(index as u16)
}

/// One client, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    /// Its number, which is the tenant of its I/Os.
    pub number: u16,
    /// Where it is: process and user, or address; with the name in its certificate if it has one.
    pub peer: String,
    /// The name of its export; empty while it negotiates.
    pub export: String,
    /// Time since it connected, in nanoseconds.
    pub connected_ns: u64,
    /// Requests it has sent.
    pub requests: u64,
    /// Bytes that it read and wrote.
    pub bytes: u64,
    /// Requests that are not answered yet.
    pub in_flight: u32,
    /// Its group.
    pub group: GroupId,
    /// Reason for which its next request waits; empty if it does not wait.
    pub waits_for: &'static str,
}
