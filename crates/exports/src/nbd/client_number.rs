//! Client numbers, computed from the client's I/O thread and the client's index on that thread.
//!
//! The number is the tenant of the client's I/Os, and appears in logs, counters and traces. After
//! the client has left, another client may get the number.

/// Number of client numbers per I/O thread: 1 to 1000 for thread 0, and so on. A thread with more
/// clients also uses numbers of the next thread.
const CLIENTS_PER_THREAD: u16 = 1000;

pub(crate) fn client_number(thread: usize, index: usize) -> u16 {
    (thread as u16).wrapping_mul(CLIENTS_PER_THREAD).wrapping_add(1).wrapping_add(index as u16)
}
