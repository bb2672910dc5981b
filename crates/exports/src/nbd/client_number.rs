//! The number of a client of NBD.
//!
//! It is that of its I/O thread and its place there, and is the tenant of its I/Os: logs, counters
//! and traces name it by the same number. A number is used again when its client has left.

/// Clients of a thread before numbers are used twice; 0 is nobody's.
const CLIENTS_PER_THREAD: u16 = 1000;

/// The number of the client at a place of an I/O thread.
pub(crate) fn client_number(thread: usize, index: usize) -> u16 {
    (thread as u16).wrapping_mul(CLIENTS_PER_THREAD).wrapping_add(1).wrapping_add(index as u16)
}
