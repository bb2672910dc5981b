//! A request's memory as an iovec list, in which adjacent segments are joined.
//!
//! A list has room for the segments of usual requests. It grows once, to its full size, when a
//! longer request comes, so nothing is allocated for each I/O in the steady state.

use libc::{c_void, iovec};
use millrace_block::Request;
use millrace_machine::Native;

pub(crate) const PIECES_MAX: usize = 256;
/// Number of segments for which a list has room from the start.
pub(crate) const PIECES: usize = 16;

pub(crate) fn list() -> Vec<iovec> {
    Vec::with_capacity(PIECES)
}

/// Replaces the contents of `list` by a request's memory segments, and joins adjacent segments.
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
