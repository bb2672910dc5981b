//! What a connection has received and not used yet, and the payload that is coming in.
//!
//! Owns the receive buffer. While the payload of a write is incomplete, receives go straight into
//! that write's buffer, with the bytes that follow (the next headers) into the receive buffer by
//! the same system call. Called by the connection; calls nothing.
//!
//! Invariants: the buffer never moves; it has room for any message of the negotiation; after a
//! large write the buffer takes only a header at a time, so that the next payload is not copied.

use libc::iovec;

use super::ring::empty_message;
use crate::nbd::wire::EXTENDED_REQUEST_BYTES;

/// Bytes of a receive buffer; above `INPUT_BYTES_MAX` of the negotiation.
const INPUT_BYTES: usize = 128 * 1024;
/// Payloads above this are received in place, in bytes.
pub(crate) const COPY_BYTES_MAX: usize = 16 * 1024;

/// A receive buffer.
#[derive(Debug)]
pub(crate) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Take only a header along: large writes are coming.
    pub(crate) narrow: bool,
    pieces: [iovec; 2],
    message: libc::msghdr,
    /// A receive is outstanding.
    pub(crate) busy: bool,
}

impl Input {
    pub(crate) fn new() -> Input {
        Input {
            buffer: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            narrow: false,
            pieces: [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2],
            message: empty_message(),
            busy: false,
        }
    }

    /// What was received and not used.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Uses up bytes at the front.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.start = self.end;
    }

    /// Room for the next receive.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end - self.start < 4096 || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buffer[self.end..];
        let most = if self.narrow { EXTENDED_REQUEST_BYTES } else { room.len() };
        let most = most.min(room.len());
        &mut room[..most]
    }

    /// Adds bytes that were received into the room.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len());
    }

    /// The message that receives `payload` first and then into the room.
    pub(crate) fn message(&mut self, payload: (*mut u8, usize)) -> *mut libc::msghdr {
        let room = self.room();
        let room = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        self.pieces = [iovec { iov_base: payload.0.cast(), iov_len: payload.1 }, room];
        self.message.msg_iov = self.pieces.as_mut_ptr();
        self.message.msg_iovlen = self.pieces.len();
        &raw mut self.message
    }
}
