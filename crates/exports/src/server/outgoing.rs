//! Replies on their way out: gathered while a send is under way, then sent as one message.
//!
//! Two batches per connection: replies gather in one while the other is being sent. A batch has an
//! arena of headers and a list of pieces; headers that touch each other are one piece, payload is
//! sent from the drive's buffer without a copy. Called by the worker; calls nothing.
//!
//! Invariants: arena and lists never move or grow once made, so pieces stay valid; a batch takes at
//! most [`BATCH_REPLIES`] replies, which the bound on requests in flight upholds; buffers go back to
//! the pool only when the send of their batch is over.

use libc::iovec;

use super::memory::{Pool, PoolBuffer};
use super::ring::empty_message;
use crate::nbd::{REPLY_BYTES_MAX, ReplyBuffer};

/// Requests in flight and replies not sent of one connection: what a batch must have room for.
/// Two pieces each stay below the 1,024 of a message.
pub(crate) const BATCH_REPLIES: usize = 256;

/// Replies of one send.
#[derive(Debug)]
struct Batch {
    headers: Box<[u8]>,
    used_bytes: usize,
    pieces: Vec<iovec>,
    /// Pieces sent already.
    sent: usize,
    replies: u32,
    buffers: Vec<PoolBuffer>,
}

impl Batch {
    fn new() -> Batch {
        Batch {
            headers: vec![0; BATCH_REPLIES * REPLY_BYTES_MAX].into_boxed_slice(),
            used_bytes: 0,
            pieces: Vec::with_capacity(2 * BATCH_REPLIES),
            sent: 0,
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

    /// Notes that `bytes` were sent; true when nothing is left.
    fn advance(&mut self, mut bytes: usize) -> bool {
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

    /// Empties it; returns how many replies it had.
    fn clear(&mut self, pool: &mut Pool) -> u32 {
        self.buffers.drain(..).for_each(|buffer| pool.give(buffer));
        self.pieces.clear();
        (self.used_bytes, self.sent) = (0, 0);
        std::mem::take(&mut self.replies)
    }
}

/// The replies of one connection that are not sent yet.
#[derive(Debug)]
pub(crate) struct Outgoing {
    gathering: Batch,
    sending: Batch,
    message: libc::msghdr,
    /// A send is outstanding.
    pub(crate) busy: bool,
    /// Bytes sent since the peer was last known to have caught up.
    pub(crate) backlog_bytes: usize,
}

impl Outgoing {
    pub(crate) fn new() -> Outgoing {
        let message = empty_message();
        let (gathering, sending) = (Batch::new(), Batch::new());
        Outgoing { gathering, sending, message, busy: false, backlog_bytes: 0 }
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
        let rest = &mut self.sending.pieces[self.sending.sent..];
        self.message.msg_iov = rest.as_mut_ptr();
        self.message.msg_iovlen = rest.len();
        &raw const self.message
    }

    /// A send moved `bytes`. Returns how many replies are out now, 0 while some of them is left.
    pub(crate) fn sent(&mut self, bytes: usize, pool: &mut Pool) -> u32 {
        self.busy = false;
        self.backlog_bytes += bytes;
        if self.sending.advance(bytes) { self.sending.clear(pool) } else { 0 }
    }

    /// Whether a batch was sent in part.
    pub(crate) fn has_rest(&self) -> bool {
        self.sending.replies > 0
    }

    /// Throws away what no outstanding send needs; returns how many replies that were.
    pub(crate) fn discard(&mut self, pool: &mut Pool) -> u32 {
        let gathered = self.gathering.clear(pool);
        if self.busy { gathered } else { gathered + self.sending.clear(pool) }
    }
}
