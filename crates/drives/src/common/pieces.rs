//! A request's memory as a list for the system: its pieces, of which adjacent ones are joined.
//!
//! A list has room for the pieces of usual requests; it grows once, to its full size, when a longer
//! one comes, and keeps that, so that nothing is allocated per I/O in the steady state. Used by the
//! queues of file, NBD and Ceph drives, which own the lists.

use libc::{c_void, iovec};
use millrace_block::Request;
use millrace_machine::Native;

/// Pieces of memory of the longest request.
pub(crate) const PIECES_MAX: usize = 256;
/// Pieces that a list has room for from the start.
pub(crate) const PIECES: usize = 16;

/// An empty list.
pub(crate) fn list() -> Vec<iovec> {
    Vec::with_capacity(PIECES)
}

/// Has a list name the memory of a request, and nothing else.
#[inline]
pub(crate) fn take(list: &mut Vec<iovec>, rq: &Request<Native>) {
    list.clear();
    for piece in rq.segments() {
        let (iov_base, iov_len) = (piece.start.cast::<c_void>(), piece.len_bytes as usize);
        match list.last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == iov_base => {
                last.iov_len += iov_len;
            }
            _ => {
                if list.len() == list.capacity() {
                    list.reserve_exact(PIECES_MAX);
                }
                list.push(iovec { iov_base, iov_len });
            }
        }
    }
}
