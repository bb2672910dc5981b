//! Copies a request's data to and from a driver's own memory, so that the driver needs no unsafe
//! code.
//!
//! Drivers that keep the data themselves call these functions from `DriverQueue::queue_rq`, where
//! the request's memory is valid. Copies go through raw pointers, because a guest may change its
//! memory meanwhile.
#![allow(unsafe_code)]

use std::ops::Range;

use millrace_block::Request;
use millrace_machine::Machine;

/// Copies `from` into a read request's memory.
///
/// # Panics
/// Panics if `from` is not as long as the request's data.
pub fn copy_to_request<M: Machine>(rq: &Request<M>, from: &[u8]) {
    for_segments(rq, from.len(), |start, range| {
        let piece = &from[range];
        // SAFETY: the segments of a request in flight are valid memory of its bios.
        // `from` is a reference, and no Rust reference points to the memory of a request. So the
        // two memory ranges do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), start, piece.len()) };
    });
}

/// Copies a write request's memory to `into`.
///
/// # Panics
/// Panics if `into` is not as long as the request's data.
pub fn copy_from_request<M: Machine>(rq: &Request<M>, into: &mut [u8]) {
    for_segments(rq, into.len(), |start, range| {
        let piece = &mut into[range];
        // SAFETY: as in `copy_to_request`, for `into`.
        unsafe { std::ptr::copy_nonoverlapping(start, piece.as_mut_ptr(), piece.len()) };
    });
}

/// Calls `each` once per segment of a request, with the segment's address and its byte range in the
/// request's data.
fn for_segments<M: Machine>(
    rq: &Request<M>,
    len_bytes: usize,
    mut each: impl FnMut(*mut u8, Range<usize>),
) {
    let text = "the buffer must be as long as the request's data";
    assert_eq!(len_bytes, rq.len_bytes() as usize, "{text}");
    let mut at = 0;
    for segment in rq.segments() {
        let end = at + segment.len_bytes as usize;
        each(segment.start, at..end);
        at = end;
    }
}
