//! Copies a request's data to and from a driver's own memory, so that the driver needs no unsafe
//! code.
//!
//! Intended for drivers that keep the data themselves, such as those that programs add. Call these
//! functions from `DriverQueue::queue_rq`, where the request's memory is valid. Copies go through
//! raw pointers, because a guest may change its memory meanwhile.
#![allow(unsafe_code)]

use millrace_block::Request;
use millrace_machine::Machine;

/// Copies `from` into a read request's memory.
///
/// # Panics
/// If `from` is not as long as the request's data.
pub fn copy_to_request<M: Machine>(rq: &Request<M>, from: &[u8]) {
    assert_eq!(
        from.len(),
        rq.len_bytes() as usize,
        "the buffer must be as long as the request's data"
    );
    let mut at = 0;
    for segment in rq.segments() {
        let len_bytes = segment.len_bytes as usize;
        let piece = &from[at..at + len_bytes];
        // SAFETY: the segments of a request that is held are valid memory of its bios, which
        // nobody here has a reference to, so that `from` does not overlap them.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), segment.start, len_bytes) };
        at += len_bytes;
    }
}

/// Copies a write request's memory to `into`.
///
/// # Panics
/// If `into` is not as long as the request's data.
pub fn copy_from_request<M: Machine>(rq: &Request<M>, into: &mut [u8]) {
    assert_eq!(
        into.len(),
        rq.len_bytes() as usize,
        "the buffer must be as long as the request's data"
    );
    let mut at = 0;
    for segment in rq.segments() {
        let len_bytes = segment.len_bytes as usize;
        let piece = &mut into[at..at + len_bytes];
        // SAFETY: the segments of a request that is held are valid memory of its bios, which
        // nobody here has a reference to, so that `into` does not overlap them.
        unsafe { std::ptr::copy_nonoverlapping(segment.start, piece.as_mut_ptr(), len_bytes) };
        at += len_bytes;
    }
}
