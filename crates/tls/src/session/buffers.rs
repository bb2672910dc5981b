//! Ciphertext buffers of a session: received bytes that are not consumed, and bytes to send.
//!
//! Invariants: the output's memory never moves, and its bytes are not overwritten before they were
//! sent. Messages of rustls wait if the output has no space for them, and no record overtakes them.

use super::RECORD_BYTES;

/// Size of the buffer for received ciphertext in bytes. It has space for a handshake message with a
/// long chain of certificates, or for many records.
pub const INPUT_BYTES: usize = 264 * 1024;
/// Size of the output buffer in bytes: eight full records.
pub const OUTPUT_BYTES: usize = 8 * RECORD_BYTES_MAX;
/// Output space in bytes that sealing one record may need, including a preceding key update.
const RECORD_BYTES_MAX: usize = RECORD_BYTES + 128;
/// Number of unconsumed bytes below which a receive first moves the bytes to the buffer's front.
const MOVE_BYTES_MAX: usize = 4096;

pub(super) struct IncomingBuffer {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// End of the bytes that were passed to rustls.
    shown: usize,
    /// Offset in `buffer` of the first TLS record whose header was not read yet. If the record
    /// before it is incomplete, the offset is greater than `end`.
    next: usize,
}

impl IncomingBuffer {
    pub(super) fn new() -> IncomingBuffer {
        IncomingBuffer {
            buffer: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            shown: 0,
            next: 0,
        }
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        let kept = self.end - self.start;
        if self.start > 0 && (kept < MOVE_BYTES_MAX || self.end == self.buffer.len()) {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.shown, self.next) = (self.shown - self.start, self.next - self.start);
            (self.start, self.end) = (0, kept);
        }
        &mut self.buffer[self.end..]
    }

    pub(super) fn received(&mut self, bytes: usize) -> &[u8] {
        let before = self.end;
        assert!(
            bytes <= self.buffer.len() - before,
            "more bytes were received than there was room for"
        );
        self.end += bytes;
        &self.buffer[before..self.end]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    pub(super) fn shown(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.shown]
    }

    /// Lets rustls see one more TLS record, or the part received so far. Returns false if no bytes
    /// are left.
    pub(super) fn show_more(&mut self) -> bool {
        let before = self.shown;
        self.shown = self.end;
        if self.next <= before {
            // An incomplete record header is also passed to rustls. A peer without TLS may send so
            // few bytes, and rustls must see them.
            let [_, _, _, high, low, ..] = self.buffer[self.next..self.end] else {
                return self.shown > before;
            };
            self.next += 5 + usize::from(u16::from_be_bytes([high, low]));
        }
        self.shown = self.next.min(self.end);
        self.shown > before
    }

    pub(super) fn is_full(&self) -> bool {
        self.end - self.start == self.buffer.len()
    }

    pub(super) fn discard(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more bytes are consumed than were received");
        // Moves `shown` and `next` up to `start`, because the record layer of TLS 1.3 consumes
        // bytes without updating these two offsets.
        (self.shown, self.next) = (self.shown.max(self.start), self.next.max(self.start));
    }
}

pub(super) struct OutgoingBuffer {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Messages of rustls that wait for space in `buffer`, and are sent after its bytes.
    control: Vec<u8>,
}

impl OutgoingBuffer {
    pub(super) fn new() -> OutgoingBuffer {
        let buffer = vec![0; OUTPUT_BYTES].into_boxed_slice();
        OutgoingBuffer { buffer, start: 0, end: 0, control: Vec::new() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more bytes were sent than the buffer had");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    pub(super) fn add_control(&mut self, bytes: Vec<u8>) {
        if self.control.is_empty() {
            self.control = bytes;
        } else {
            self.control.extend_from_slice(&bytes);
        }
    }

    pub(super) fn control_bytes(&self) -> usize {
        self.control.len()
    }

    pub(super) fn settle(&mut self) {
        if self.control.is_empty() {
            return;
        }
        let bytes = self.control.len().min(self.buffer.len() - self.end);
        self.buffer[self.end..self.end + bytes].copy_from_slice(&self.control[..bytes]);
        self.end += bytes;
        self.control.drain(..bytes);
        if self.control.is_empty() {
            self.control = Vec::new();
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.control.is_empty() && self.buffer.len() - self.end >= RECORD_BYTES_MAX
    }

    pub(super) fn record_room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.end..]
    }

    pub(super) fn add_record(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len(), "a record must fit into the rest of the buffer");
    }
}
