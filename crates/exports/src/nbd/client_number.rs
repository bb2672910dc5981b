//! Client numbers, made of the client's I/O thread and its index there.
//!
//! The client's I/Os are accounted to the tenant of this number, and logs, counters and traces show
//! it. After the client has left, another client may get its number.

/// Client numbers per I/O thread. If a thread has more clients, they share numbers with clients of
/// another thread. The number 0 stands for no client.
const CLIENTS_PER_THREAD: u16 = 1000;

pub(crate) fn client_number(thread: usize, index: usize) -> u16 {
    (thread as u16).wrapping_mul(CLIENTS_PER_THREAD).wrapping_add(1).wrapping_add(index as u16)
}
