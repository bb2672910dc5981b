//! Replies on their way out: gathered while a send is under way, then sent as one message.
//!
//! Two batches per connection: replies gather in one while the other is being sent. A batch has an
//! arena of headers and a list of pieces; headers that touch each other are one piece, payload is
//! sent from the drive's buffer without a copy. Called by the worker; calls nothing.
//!
//! Invariants: arena and lists never move or grow once made, so pieces stay valid; a batch takes at
//! most [`BATCH_REPLIES`] replies, which the bound on requests in flight upholds; buffers go back
//! to the pool only when the send of their batch is over.

use std::os::fd::RawFd;

use libc::iovec;

use crate::nbd::memory::{Pool, PoolBuffer};
use crate::nbd::ring::{Backlog, empty_message};
use millrace_nbd::{REPLY_BYTES_MAX, ReplyBuffer};

/// Requests in flight and replies not sent of one connection: what a batch must have room for.
/// Two pieces each stay below the 1,024 of a message.
pub(crate) const BATCH_REPLIES: usize = 256;

/// A reply of so many bytes takes about as long to copy as its reader takes to wake up.
const LONG_BYTES: usize = 32 * 1024;

/// Replies of one send.
#[derive(Debug)]
struct ReplyBatch {
    headers: Box<[u8]>,
    used_bytes: usize,
    pieces: Vec<iovec>,
    /// Pieces sent already.
    sent: usize,
    /// Bytes that are not sent yet.
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

    /// Whether it is a single reply with a long payload. Its header goes ahead by itself, so that
    /// the client wakes up while the payload is copied into the socket.
    #[inline]
    fn is_one_long(&self) -> bool {
        self.replies == 1 && self.left_bytes >= LONG_BYTES
    }

    /// Notes that `bytes` were sent; true when nothing is left.
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

    /// Empties it.
    fn clear(&mut self, pool: &mut Pool) -> SentReplies {
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

/// What went out, or was thrown away.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SentReplies {
    pub(crate) replies: u32,
    /// Bytes of buffers that went back to the pool.
    pub(crate) bytes: usize,
}

/// The replies of one connection that are not sent yet.
#[derive(Debug)]
pub(crate) struct ReplyQueue {
    gathering: ReplyBatch,
    sending: ReplyBatch,
    message: libc::msghdr,
    /// A send is outstanding.
    pub(crate) busy: bool,
    /// Bytes and replies sent since the peer was last known to have caught up.
    pub(crate) backlog_bytes: usize,
    pub(crate) backlog_replies: u32,
    /// Tells when the client has read what was sent; none where the system has no descriptor left.
    pub(crate) backlog: Option<Backlog>,
    /// Since when the next receive waits for that, by the layer's clock; 0 if it does not.
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
            backlog: Backlog::new(fd),
            catching_ns: 0,
        }
    }

    /// A reply without payload.
    #[inline]
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut ReplyBuffer) -> usize) {
        self.gathering.header(encode);
    }

    /// A reply with payload that stays where it is; `buffer` goes back to the pool afterwards.
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

    /// Whether there are replies that no send has yet.
    pub(crate) fn has_gathered(&self) -> bool {
        self.gathering.replies > 0
    }

    /// The message of the next send, valid until that send is over. Nothing may be outstanding.
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

    /// A send moved `bytes`. Returns the replies that are out now, none while some of them is left.
    pub(crate) fn sent(&mut self, bytes: usize, pool: &mut Pool) -> SentReplies {
        self.busy = false;
        self.backlog_bytes += bytes;
        if !self.sending.advance(bytes) {
            return SentReplies::default();
        }
        self.backlog_replies += self.sending.replies;
        self.sending.clear(pool)
    }

    /// The first piece that is not sent, whose memory is valid until it is said to be taken. For
    /// whoever copies replies instead of sending them; no send may be outstanding.
    pub(crate) fn next_piece(&mut self) -> Option<iovec> {
        if self.sending.replies == 0 {
            std::mem::swap(&mut self.gathering, &mut self.sending);
        }
        self.sending.pieces.get(self.sending.sent).copied()
    }

    /// So many bytes of the first piece were copied. Returns the replies that are out now.
    pub(crate) fn took(&mut self, bytes: usize, pool: &mut Pool) -> SentReplies {
        let busy = self.busy;
        let freed = self.sent(bytes, pool);
        self.busy = busy;
        freed
    }

    /// Bytes of replies that no send has moved yet.
    #[inline]
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.gathering.left_bytes + self.sending.left_bytes
    }

    /// Replies that have not left.
    pub(crate) fn replies(&self) -> u32 {
        self.gathering.replies + self.sending.replies
    }

    /// Whether a batch was sent in part.
    pub(crate) fn has_rest(&self) -> bool {
        self.sending.replies > 0
    }

    /// Throws away what no outstanding send needs.
    pub(crate) fn discard(&mut self, pool: &mut Pool) -> SentReplies {
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
