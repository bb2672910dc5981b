//! Outgoing replies: gathered while a send is outstanding, then sent as one message.
//!
//! Each connection has two batches: one gathers replies while the other is sent. Adjacent headers
//! form one segment (`iovec`) of the message; payload is sent from the drive's buffer without a
//! copy.
//!
//! Invariants: headers and lists never move or grow, so segments stay valid. A batch takes at most
//! [`BATCH_REPLIES`] replies. Buffers return to the pool only when the send of their batch has
//! completed.

use std::os::fd::RawFd;

use libc::iovec;

use crate::nbd::memory::{BufferPool, PoolBuffer};
use crate::nbd::ring::{SendBacklog, empty_message};
use millrace_nbd::{REPLY_BYTES_MAX, ReplyBuffer};

/// Maximum number of requests in flight plus unsent replies of one connection. All its replies fit
/// into one batch, whose segments (two per reply) stay below the kernel's limit of 1,024 per
/// message.
pub(crate) const BATCH_REPLIES: usize = 256;

/// Minimum size of a long reply, in bytes. If a batch consists of a single long reply, the reply's
/// header is sent first. The client then wakes up while the payload is copied into the socket.
const LONG_BYTES: usize = 32 * 1024;

#[derive(Debug)]
struct ReplyBatch {
    headers: Box<[u8]>,
    used_bytes: usize,
    pieces: Vec<iovec>,
    /// Number of segments of the batch that were sent completely.
    sent: usize,
    left_bytes: usize,
    replies: u32,
    buffers: Vec<PoolBuffer>,
}

impl ReplyBatch {
    fn new() -> ReplyBatch {
        ReplyBatch {
            headers: vec![0; BATCH_REPLIES * REPLY_BYTES_MAX].into_boxed_slice(),
            used_bytes: 0,
            pieces: Vec::with_capacity(2 * BATCH_REPLIES),
            sent: 0,
            left_bytes: 0,
            replies: 0,
            buffers: Vec::with_capacity(BATCH_REPLIES),
        }
    }

    #[inline]
    fn header(&mut self, encode: impl FnOnce(&mut ReplyBuffer) -> usize) {
        let room = self.headers[self.used_bytes..].first_chunk_mut::<REPLY_BYTES_MAX>();
        let room = room.expect("a batch has room for all replies of a connection");
        let len = encode(room);
        let start = room.as_mut_ptr();
        self.used_bytes += len;
        self.left_bytes += len;
        self.replies += 1;
        if len == 0 {
            return;
        }
        match self.pieces.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start => {
                last.iov_len += len;
            }
            _ => self.pieces.push(iovec { iov_base: start.cast(), iov_len: len }),
        }
    }

    /// Returns true if the batch is a single reply with a long payload. The header of such a reply
    /// is sent first, so that the client wakes up while the payload is copied into the socket.
    #[inline]
    fn is_one_long(&self) -> bool {
        self.replies == 1 && self.left_bytes >= LONG_BYTES
    }

    fn advance(&mut self, mut bytes: usize) -> bool {
        self.left_bytes -= bytes;
        while let Some(piece) = self.pieces.get_mut(self.sent) {
            if bytes < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(bytes);
                piece.iov_len -= bytes;
                return false;
            }
            bytes -= piece.iov_len;
            self.sent += 1;
        }
        true
    }

    fn clear(&mut self, pool: &mut BufferPool) -> SentReplies {
        let mut bytes = 0;
        for buffer in self.buffers.drain(..) {
            bytes += buffer.len();
            pool.give(buffer);
        }
        self.pieces.clear();
        (self.used_bytes, self.sent, self.left_bytes) = (0, 0, 0);
        SentReplies { replies: std::mem::take(&mut self.replies), bytes }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SentReplies {
    pub(crate) replies: u32,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct ReplyQueue {
    gathering: ReplyBatch,
    sending: ReplyBatch,
    message: libc::msghdr,
    pub(crate) busy: bool,
    /// Number of reply bytes sent since the server last waited for the client to read replies.
    pub(crate) backlog_bytes: usize,
    pub(crate) backlog_replies: u32,
    /// Descriptor that becomes readable when the client has read most replies. `None` if no file
    /// descriptor was free.
    pub(crate) backlog: Option<SendBacklog>,
    /// Time, in nanoseconds, at which the server began to delay its next receive. The delay lasts
    /// until the client has read most replies. 0 if there is no delay.
    pub(crate) catching_ns: u64,
}

impl ReplyQueue {
    pub(crate) fn new(fd: RawFd) -> ReplyQueue {
        ReplyQueue {
            gathering: ReplyBatch::new(),
            sending: ReplyBatch::new(),
            message: empty_message(),
            busy: false,
            backlog_bytes: 0,
            backlog_replies: 0,
            backlog: SendBacklog::new(fd),
            catching_ns: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut ReplyBuffer) -> usize) {
        self.gathering.header(encode);
    }

    /// Adds a reply whose payload is sent without a copy. `buffer` returns to the pool after the
    /// send.
    #[inline]
    pub(crate) fn push_with(
        &mut self,
        encode: impl FnOnce(&mut ReplyBuffer) -> usize,
        (start, len_bytes): (*mut u8, usize),
        buffer: Option<PoolBuffer>,
    ) {
        self.gathering.header(encode);
        self.gathering.pieces.push(iovec { iov_base: start.cast(), iov_len: len_bytes });
        self.gathering.left_bytes += len_bytes;
        self.gathering.buffers.extend(buffer);
    }

    pub(crate) fn has_gathered(&self) -> bool {
        self.gathering.replies > 0
    }

    /// Returns the message of the next send, valid until that send completes. Panics if a send is
    /// outstanding.
    pub(crate) fn start(&mut self) -> *const libc::msghdr {
        assert!(!self.busy, "one send at a time");
        if self.sending.replies == 0 {
            std::mem::swap(&mut self.gathering, &mut self.sending);
        }
        self.busy = true;
        let alone = self.sending.sent == 0 && self.sending.is_one_long();
        let rest = &mut self.sending.pieces[self.sending.sent..];
        self.message.msg_iov = rest.as_mut_ptr();
        self.message.msg_iovlen = if alone { 1 } else { rest.len() };
        &raw const self.message
    }

    /// Records that `bytes` bytes were sent. Returns the batch's replies if the batch is complete
    /// now.
    pub(crate) fn sent(&mut self, bytes: usize, pool: &mut BufferPool) -> SentReplies {
        self.busy = false;
        self.backlog_bytes += bytes;
        if !self.sending.advance(bytes) {
            return SentReplies::default();
        }
        self.backlog_replies += self.sending.replies;
        self.sending.clear(pool)
    }

    /// Returns the first unsent segment, for callers that copy replies instead of sending them. The
    /// segment is valid until `took` is called. No send may be outstanding.
    pub(crate) fn next_piece(&mut self) -> Option<iovec> {
        if self.sending.replies == 0 {
            std::mem::swap(&mut self.gathering, &mut self.sending);
        }
        self.sending.pieces.get(self.sending.sent).copied()
    }

    /// Records that the caller copied `bytes` bytes of the first unsent segment. Returns the
    /// batch's replies if the batch is complete now.
    pub(crate) fn took(&mut self, bytes: usize, pool: &mut BufferPool) -> SentReplies {
        let busy = self.busy;
        let freed = self.sent(bytes, pool);
        self.busy = busy;
        freed
    }

    #[inline]
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.gathering.left_bytes + self.sending.left_bytes
    }

    pub(crate) fn replies(&self) -> u32 {
        self.gathering.replies + self.sending.replies
    }

    pub(crate) fn has_rest(&self) -> bool {
        self.sending.replies > 0
    }

    /// Discards all replies except those that belong to an outstanding send.
    pub(crate) fn discard(&mut self, pool: &mut BufferPool) -> SentReplies {
        let gathered = self.gathering.clear(pool);
        let sending = if self.busy { SentReplies::default() } else { self.sending.clear(pool) };
        SentReplies {
            replies: gathered.replies + sending.replies,
            bytes: gathered.bytes + sending.bytes,
        }
    }
}

#[cfg(test)]
mod tests;
