//! Client numbers.
//!
//! A number is made of the client's I/O thread and its index there. It is the tenant of the
//! client's I/Os; logs, counters and traces show the same number. It is reused after its client has
//! left.

/// Client numbers per I/O thread. More clients of a thread share numbers with another thread's; 0
/// is no client.
const CLIENTS_PER_THREAD: u16 = 1000;

/// Returns the number of the client at `index` of I/O thread `thread`.
pub(crate) fn client_number(thread: usize, index: usize) -> u16 {
    (thread as u16).wrapping_mul(CLIENTS_PER_THREAD).wrapping_add(1).wrapping_add(index as u16)
}
