//! Receive buffer of a connection.
//!
//! If a write's payload is incomplete, one operation receives the rest of the payload straight into
//! the write's own buffer. Headers after the payload go to the receive buffer.
//!
//! Invariants: the receive buffer never moves, and has room for any message of the negotiation.
//! After a large write, a receive takes only one header after the payload. So the next payload goes
//! straight into its own buffer.

use libc::iovec;

use crate::nbd::ring::empty_message;
use millrace_nbd::wire::EXTENDED_REQUEST_BYTES;

/// Size of a receive buffer in bytes; more than the negotiation's `INPUT_BYTES_MAX`.
const INPUT_BYTES: usize = 128 * 1024;
/// Length, in bytes, below which unconsumed bytes are moved to the front of the buffer before the
/// next receive.
const MOVE_BYTES_MAX: usize = 4096;
/// Longest payload, in bytes, that is copied out of the receive buffer. The rest of a longer
/// payload is received straight into the request's buffer.
pub(crate) const COPY_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// True if more large writes are expected. A receive then takes only one header after the
    /// payload, so that the next payload goes straight into its own buffer.
    pub(crate) narrow: bool,
    pieces: [iovec; 2],
    message: libc::msghdr,
    pub(crate) busy: bool,
}

impl ReceiveBuffer {
    pub(crate) fn new() -> ReceiveBuffer {
        ReceiveBuffer {
            buffer: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            narrow: false,
            pieces: [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2],
            message: empty_message(),
            busy: false,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    #[inline]
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
    }

    pub(crate) fn clear(&mut self) {
        self.start = self.end;
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end - self.start < MOVE_BYTES_MAX || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = &mut self.buffer[self.end..];
        let most = if self.narrow { EXTENDED_REQUEST_BYTES } else { room.len() };
        let most = most.min(room.len());
        &mut room[..most]
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len());
    }

    /// Returns a `msghdr` that receives into `payload` first and then into the free space of the
    /// buffer.
    pub(crate) fn message(&mut self, payload: &mut [u8]) -> *mut libc::msghdr {
        let piece =
            |part: &mut [u8]| iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        self.pieces = [piece(payload), piece(self.room())];
        self.message.msg_iov = self.pieces.as_mut_ptr();
        self.message.msg_iovlen = self.pieces.len();
        &raw mut self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a buffer that has received `received` bytes, of which `used` were consumed.
    fn input(received: usize, used: usize) -> ReceiveBuffer {
        let mut input = ReceiveBuffer::new();
        input.room();
        input.received(received);
        input.consume(used);
        input
    }

    #[test]
    fn bytes_come_out_as_they_came_in_wherever_they_are_moved() {
        let mut input = ReceiveBuffer::new();
        let (mut next, mut expected) = (0u8, 0u8);
        for round in 0..2000usize {
            let room = input.room();
            let len = room.len().min(1 + round * 7919 % 9000);
            for place in &mut room[..len] {
                (*place, next) = (next, next.wrapping_add(1));
            }
            input.received(len);
            let used = input.bytes().len().min(round * 104_729 % 9001);
            for byte in &input.bytes()[..used] {
                assert_eq!(*byte, expected, "round {round}");
                expected = expected.wrapping_add(1);
            }
            input.consume(used);
        }
    }

    #[test]
    fn room_is_what_is_left_behind_the_bytes_that_are_kept() {
        const ALL: usize = 128 * 1024;
        for (received, used, room) in [
            (0, 0, ALL),
            (1000, 1000, ALL),
            (1000, 0, ALL - 1000),
            // A few leftover bytes are moved to the front. Many are moved only if there is no room
            // behind them.
            (10_000, 10_000 - 4095, ALL - 4095),
            (10_000, 10_000 - 4096, ALL - 10_000),
            (ALL, 1, 1),
            (ALL, ALL - 5000, ALL - 5000),
        ] {
            let mut input = input(received, used);
            assert_eq!(input.room().len(), room, "{received} {used}");
            assert_eq!(input.bytes().len(), received - used);
        }
    }

    #[test]
    fn a_narrow_room_is_for_one_header() {
        let mut input = input(10, 0);
        input.narrow = true;
        assert_eq!(input.room().len(), 32);
        input.received(128 * 1024 - 10 - 5);
        assert_eq!(input.room().len(), 5);
    }

    #[test]
    fn a_message_fills_the_payload_first_and_then_the_room() {
        let (mut input, mut payload) = (input(100, 0), [0u8; 7]);
        input.message(&mut payload);
        let lens = input.pieces.map(|piece| piece.iov_len);
        assert_eq!(lens, [7, 128 * 1024 - 100]);
        assert_eq!(input.pieces[0].iov_base.cast(), payload.as_mut_ptr());
        assert_eq!(input.pieces[1].iov_base.addr(), input.buffer[100..].as_ptr().addr());
        assert_eq!(input.message.msg_iov, input.pieces.as_mut_ptr());
        assert_eq!(input.message.msg_iovlen, 2);
    }

    #[test]
    fn what_is_forgotten_does_not_come_back() {
        let mut input = input(100, 30);
        input.clear();
        assert!(input.bytes().is_empty());
        assert_eq!(input.room().len(), 128 * 1024);
        // The memory of every write that may be copied, and of every header, fits.
        assert_eq!(COPY_BYTES_MAX, 16_384);
    }
}
