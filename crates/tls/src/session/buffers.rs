//! A session's ciphertext: what came in and is not used up, and what is to be sent.
//!
//! Owns the two buffers. Called by the session only.
//!
//! Invariants: the output's memory never moves, and bytes in it are not written again before they
//! were sent; messages of rustls that find no room there wait, and no record overtakes them.

use super::RECORD_BYTES;

/// Ciphertext that is received at a time, in bytes: a message of a handshake with a long chain of
/// certificates, or four records.
pub const INPUT_BYTES: usize = 264 * 1024;
/// Ciphertext that waits to be sent, in bytes: eight full records.
pub const OUTPUT_BYTES: usize = 8 * RECORD_BYTES_MAX;
/// A full record with its header, its tag, and what a change of keys needs before it.
const RECORD_BYTES_MAX: usize = RECORD_BYTES + 128;
/// Fewer bytes than this are moved to the front before more are received.
const MOVE_BYTES_MAX: usize = 4096;

/// Ciphertext that came in.
pub(super) struct Incoming {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Up to here rustls was shown it.
    shown: usize,
    /// Where the record begins that stands behind those of which rustls was shown the header.
    next: usize,
}

impl Incoming {
    pub(super) fn new() -> Incoming {
        Incoming {
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

    /// Adds bytes that were received, and shows them.
    pub(super) fn received(&mut self, bytes: usize) -> &[u8] {
        let before = self.end;
        assert!(bytes <= self.buffer.len() - before, "more was received than there was room for");
        self.end += bytes;
        &self.buffer[before..self.end]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// What rustls sees of it.
    pub(super) fn shown(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.shown]
    }

    /// Shows rustls one more record, or what there is of it; false if nothing is left.
    pub(super) fn show_more(&mut self) -> bool {
        let before = self.shown;
        self.shown = self.end;
        if self.next <= before {
            // Rustls sees part of a header, too: it may be none.
            let [_, _, _, high, low, ..] = self.buffer[self.next..self.end] else {
                return self.shown > before;
            };
            self.next += 5 + usize::from(u16::from_be_bytes([high, low]));
        }
        self.shown = self.next.min(self.end);
        self.shown > before
    }

    /// Whether nothing was used up and nothing more can be received.
    pub(super) fn is_full(&self) -> bool {
        self.end - self.start == self.buffer.len()
    }

    pub(super) fn discard(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more is used up than came in");
        // Once rustls is not shown any more, whole records are used up.
        (self.shown, self.next) = (self.shown.max(self.start), self.next.max(self.start));
    }
}

/// Ciphertext to be sent.
pub(super) struct Outgoing {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Messages of rustls that come behind what is in the buffer.
    control: Vec<u8>,
}

impl Outgoing {
    pub(super) fn new() -> Outgoing {
        let buffer = vec![0; OUTPUT_BYTES].into_boxed_slice();
        Outgoing { buffer, start: 0, end: 0, control: Vec::new() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more was sent than there was");
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

    /// Moves messages of rustls into the buffer as far as there is room.
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

    /// Whether a record may be added.
    pub(super) fn has_room(&self) -> bool {
        self.control.is_empty() && self.buffer.len() - self.end >= RECORD_BYTES_MAX
    }

    /// Where the next record is written.
    pub(super) fn record_room(&mut self) -> &mut [u8] {
        &mut self.buffer[self.end..]
    }

    pub(super) fn add_record(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len(), "a record is written into its room");
    }
}
