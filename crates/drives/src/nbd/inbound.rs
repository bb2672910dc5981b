//! `ReplyReceiver`: the receiving side of a connection, from received bytes to answers.
//!
//! There is a single receive operation in flight. Headers and small payloads are received into a
//! buffer. The payload of a longer read is received straight into the request's memory, and the
//! bytes after it into the buffer, in the same operation. Invariant: the receive operation uses the
//! memory of at most one request, the read whose payload is incomplete.
#![allow(unsafe_code)]

use libc::{iovec, msghdr};
use millrace_nbd::client::{Answer, AnswerError, Answers};
use millrace_nbd::{Command, Errno};
use millrace_reactor::Op;
use millrace_tls::Session;

use super::flight::NbdFlight;
use super::ring::ConnectionRing;
use crate::common::pieces::PIECES_MAX;

/// Size of the buffer in bytes; longer than the longest message without payload.
const BUFFER_BYTES: usize = 128 << 10;
/// Maximum number of bytes that one receive puts into the buffer after an incomplete payload, or
/// while the payload of a long read is expected. A reply header fits. With a higher limit, more
/// payload would be received into the buffer, and then copied to the request's memory.
const HEADER_BYTES: usize = 512;
pub(crate) const LONG_READ_BYTES: u64 = 16 << 10;

pub(crate) struct ReplyReceiver {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    iov: Vec<iovec>,
    msg: Box<msghdr>,
    /// Number of bytes that the receive in flight writes straight into a request's memory.
    direct: u64,
    pub(crate) is_busy: bool,
}

/// Index of a completed request, and its error if it failed.
pub(crate) type EndedRequest = (u32, Option<Errno>);

impl ReplyReceiver {
    pub(crate) fn new() -> ReplyReceiver {
        // SAFETY: msghdr is a plain structure for which zero is valid.
        let msg = unsafe { std::mem::zeroed() };
        ReplyReceiver {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            iov: Vec::with_capacity(PIECES_MAX + 1),
            msg: Box::new(msg),
            direct: 0,
            is_busy: false,
        }
    }

    pub(crate) fn reset(&mut self) {
        assert!(!self.is_busy, "a connection is reset only after its receive operation has ended");
        (self.start, self.end, self.direct) = (0, 0, 0);
    }

    pub(crate) fn arm(
        &mut self,
        ring: &ConnectionRing<'_>,
        answers: &Answers,
        tls: Option<&mut Session>,
        flights: &[NbdFlight],
    ) {
        let fd = ring.fd;
        if self.is_busy {
            return;
        }
        self.is_busy = true;
        let op = match (tls, answers.payload()) {
            (Some(session), _) => {
                let room = session.room();
                Op::Recv { fd, buf: room.as_mut_ptr(), len: room.len() as u32 }
            }
            (None, Some(payload)) => {
                assert!(
                    self.start == self.end,
                    "received bytes are processed before the next receive"
                );
                (self.start, self.end, self.direct) = (0, 0, payload.left);
                self.iov.clear();
                flights[payload.index as usize].part(payload.at, payload.left, &mut self.iov);
                let iov_base = self.buffer.as_mut_ptr().cast();
                self.iov.push(iovec { iov_base, iov_len: HEADER_BYTES });
                (self.msg.msg_iov, self.msg.msg_iovlen) = (self.iov.as_mut_ptr(), self.iov.len());
                Op::RecvMsg { fd, msg: &raw mut *self.msg, flags: 0 }
            }
            (None, None) => {
                let long = has_long_read(answers, flights);
                let room = self.room();
                let most = if long { HEADER_BYTES } else { room.len() };
                Op::Recv { fd, buf: room.as_mut_ptr(), len: most.min(room.len()) as u32 }
            }
        };
        // SAFETY: the buffer, the message header and its list belong to this `ReplyReceiver`.
        // `NbdLink` keeps the `ReplyReceiver` until the receive operation has ended. The payload's
        // memory belongs to a request in flight, which does not complete before the operation has
        // ended.
        unsafe { ring.push(op) };
    }

    /// Returns the free part of the buffer, after moving the unprocessed bytes to its start.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.buffer[self.end..]
    }

    /// Decrypts received data into the buffer. Returns false if there was no data.
    pub(crate) fn unseal(&mut self, session: &mut Session) -> Result<bool, millrace_tls::Error> {
        let bytes = session.read(self.room())?;
        self.end += bytes;
        Ok(bytes > 0)
    }

    pub(crate) fn received(&mut self, bytes: usize, answers: &mut Answers) {
        let direct = self.direct.min(bytes as u64);
        self.direct = 0;
        if direct > 0 {
            answers.took(direct);
        }
        self.end += bytes - direct as usize;
    }

    /// Processes received bytes up to the next completed request. Returns an error if the server
    /// broke the protocol.
    pub(crate) fn next(
        &mut self,
        answers: &mut Answers,
        flights: &mut [NbdFlight],
    ) -> Result<Option<EndedRequest>, AnswerError> {
        loop {
            let input = &self.buffer[self.start..self.end];
            let (used, answer) = answers.next(input)?;
            self.start += used;
            match answer {
                Answer::NeedMore => return Ok(None),
                Answer::Nothing => {}
                Answer::Ended { index, errno } => return Ok(Some((index, errno))),
                Answer::Zeroes { index, at, length } => {
                    flights[index as usize].zero(at, length);
                }
                Answer::Payload => {
                    let input = &self.buffer[self.start..self.end];
                    let Some(payload) = answers.payload() else { continue };
                    let taken = payload.left.min(input.len() as u64);
                    if taken == 0 {
                        return Ok(None);
                    }
                    let bytes = &input[..taken as usize];
                    flights[payload.index as usize].copy_in(payload.at, bytes);
                    self.start += bytes.len();
                    answers.took(taken);
                }
            }
        }
    }
}

/// Guesses that the next reply answers a long read if the last request sent is a long read. A wrong
/// guess costs only a copy or further receive operations.
fn has_long_read(answers: &Answers, flights: &[NbdFlight]) -> bool {
    let Some(index) = answers.newest() else { return false };
    let request = &flights[index as usize].request;
    request.command == Command::Read && request.len >= LONG_READ_BYTES
}
