//! Encoders of the server's replies, into a fixed buffer.
//!
//! This module owns the layout of simple replies and of structured and extended chunks. The
//! connection calls it once for each reply. The data of a read are sent after the header directly
//! from their buffer, without a copy.
//!
//! Invariants: nothing is allocated; no header is longer than [`REPLY_BYTES_MAX`]. Simple replies
//! are never sent in an extended session, nor in response to a read if chunks were negotiated.
//! Specification: "Simple reply message", "Structured reply chunk message", "Extended reply chunk
//! message", "Structured reply types".

use crate::error::Errno;
use crate::export::{ReplyStyle, Session};
use crate::transmission::Request;
use crate::wire::{
    EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, REPLY_FLAG_DONE, REPLY_TYPE_ERROR, REPLY_TYPE_NONE,
    REPLY_TYPE_OFFSET_DATA, REPLY_TYPE_OFFSET_HOLE, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_BYTES,
    STRUCTURED_REPLY_MAGIC, Writer,
};

/// Length of the longest reply header in bytes: an error chunk with its message.
pub const REPLY_BYTES_MAX: usize = 128;
/// Longest message of an error chunk in bytes; a longer one is cut.
pub const MESSAGE_BYTES_MAX: usize = REPLY_BYTES_MAX - EXTENDED_REPLY_BYTES - 6;

/// Buffer for one reply header.
pub type ReplyBuffer = [u8; REPLY_BYTES_MAX];

/// Position of a chunk in its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// More chunks of the reply follow.
    More,
    /// The reply ends with this chunk.
    Last,
}

/// Encoder of the reply to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    pub(crate) style: ReplyStyle,
    cookie: u64,
    offset: u64,
}

impl Reply {
    /// Prepares the reply to `request`.
    pub const fn new(request: &Request, session: &Session) -> Self {
        Reply { style: session.style, cookie: request.cookie, offset: request.offset }
    }

    /// Encodes the success of a request without reply data. Returns the number of bytes written.
    pub fn success(&self, buffer: &mut ReplyBuffer) -> usize {
        match self.style {
            ReplyStyle::Simple => self.simple(buffer, 0),
            _ => self.done(buffer),
        }
    }

    /// Encodes the failure of a request. Returns the number of bytes written. `message` is for
    /// people; it is truncated to [`MESSAGE_BYTES_MAX`], and left out of a simple reply.
    pub fn failure(&self, buffer: &mut ReplyBuffer, errno: Errno, message: &str) -> usize {
        if self.style == ReplyStyle::Simple {
            return self.simple(buffer, errno.to_wire());
        }
        // A longer message is cut between two characters.
        let mut ends = (0..=MESSAGE_BYTES_MAX).rev();
        let end = ends.find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        let message = &message[..end];
        let len =
            u16::try_from(message.len()).expect("the message was truncated to fit the buffer");
        let mut out = Writer::new(buffer);
        self.chunk(&mut out, Position::Last, REPLY_TYPE_ERROR, 6 + u64::from(len));
        out.u32(errno.to_wire()).u16(len).bytes(message.as_bytes()).len()
    }

    /// Encodes the success of a read whose `length` bytes of data follow as one piece. Returns the
    /// number of bytes written. The data must then be sent: a later error cannot be reported.
    pub fn read(&self, buffer: &mut ReplyBuffer, length: u32) -> usize {
        match self.style {
            ReplyStyle::Simple => self.simple(buffer, 0),
            _ => self.offset_data(buffer, Position::Last, self.offset, length),
        }
    }

    fn simple(&self, buffer: &mut ReplyBuffer, errno: u32) -> usize {
        Writer::new(buffer).u32(SIMPLE_REPLY_MAGIC).u32(errno).u64(self.cookie).len()
    }

    /// Encodes the header of a data chunk: `length` bytes at `offset` of the export follow.
    pub fn offset_data(
        &self,
        buffer: &mut ReplyBuffer,
        position: Position,
        offset: u64,
        length: u32,
    ) -> usize {
        let mut out = Writer::new(buffer);
        self.chunk(&mut out, position, REPLY_TYPE_OFFSET_DATA, u64::from(length) + 8);
        out.u64(offset).len()
    }

    /// Encodes a chunk that declares `length` bytes at `offset` of the export to be zeroes.
    pub fn offset_hole(
        &self,
        buffer: &mut ReplyBuffer,
        position: Position,
        offset: u64,
        length: u32,
    ) -> usize {
        let mut out = Writer::new(buffer);
        self.chunk(&mut out, position, REPLY_TYPE_OFFSET_HOLE, 12);
        out.u64(offset).u32(length).len()
    }

    /// Encodes the empty chunk that ends a reply.
    pub fn done(&self, buffer: &mut ReplyBuffer) -> usize {
        let mut out = Writer::new(buffer);
        self.chunk(&mut out, Position::Last, REPLY_TYPE_NONE, 0);
        out.len()
    }

    pub(super) const fn chunk_bytes(&self) -> usize {
        match self.style {
            ReplyStyle::Extended => EXTENDED_REPLY_BYTES,
            _ => STRUCTURED_REPLY_BYTES,
        }
    }

    pub(super) fn chunk(&self, out: &mut Writer<'_>, position: Position, kind: u16, payload: u64) {
        let flags = if position == Position::Last { REPLY_FLAG_DONE } else { 0 };
        match self.style {
            ReplyStyle::Extended => {
                out.u32(EXTENDED_REPLY_MAGIC).u16(flags).u16(kind);
                out.u64(self.cookie).u64(self.offset).u64(payload);
            }
            _ => {
                let payload =
                    u32::try_from(payload).expect("the length of a compact reply fits 32 bits");
                out.u32(STRUCTURED_REPLY_MAGIC).u16(flags).u16(kind).u64(self.cookie).u32(payload);
            }
        }
    }
}
