//! `Outbound`: the sending side of a connection, which sends many requests in one operation.
//!
//! Headers are sent from a buffer, and payload straight from the requests' memory. Invariant: the
//! memory of a request in `batch` does not change until `sent` has returned the request.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::RawFd;

use libc::{iovec, msghdr};
use millrace_nbd::client::Answers;
use millrace_nbd::wire::EXTENDED_REQUEST_BYTES;
use millrace_nbd::{Command, ReplyStyle, Request, encode_request};
use millrace_reactor::Op;
use millrace_tls::Session;

use super::flight::{Flight, FlightState};
use super::ring::Ring;
use super::siblings::NbdRequest;
use crate::common::pieces::PIECES_MAX;

const REQUESTS_MAX: usize = 256;
/// Maximum number of memory segments in one send, which is the kernel's limit.
const IOV_MAX: usize = 1024;
/// Payload in bytes after which a send takes no more requests, because the first requests are
/// answered only after the whole send.
const PAYLOAD_MAX: u64 = 1 << 20;

pub(crate) struct Outbound {
    headers: Box<[[u8; EXTENDED_REQUEST_BYTES]]>,
    iov: Vec<iovec>,
    /// Index of the first segment in `iov` that is not sent completely.
    first: usize,
    msg: Box<msghdr>,
    batch: Vec<u32>,
    pub(crate) is_busy: bool,
}

impl Outbound {
    pub(crate) fn new() -> Outbound {
        // SAFETY: msghdr is a plain structure for which zero is valid.
        let msg = unsafe { std::mem::zeroed() };
        Outbound {
            headers: vec![[0; EXTENDED_REQUEST_BYTES]; REQUESTS_MAX].into_boxed_slice(),
            iov: Vec::with_capacity(IOV_MAX),
            first: 0,
            msg: Box::new(msg),
            batch: Vec::with_capacity(REQUESTS_MAX),
            is_busy: false,
        }
    }

    /// Makes a batch of up to `share` waiting requests for `link` to send. No send operation may be
    /// in flight.
    pub(crate) fn load(
        &mut self,
        (waiting, share): (&mut VecDeque<u32>, usize),
        (link, style): (usize, ReplyStyle),
        answers: &mut Answers,
        flights: &mut [Flight],
    ) {
        assert!(!self.is_busy, "a send operation is still in flight");
        self.iov.clear();
        self.batch.clear();
        self.first = 0;
        let mut payload = 0;
        while self.batch.len() < share.min(REQUESTS_MAX)
            && self.iov.len() + 1 + PIECES_MAX <= IOV_MAX
            && payload < PAYLOAD_MAX
        {
            let Some(index) = waiting.pop_front() else { return };
            let flight = &mut flights[index as usize];
            let NbdRequest { command, flags, offset, len, .. } = flight.request;
            let mut request = Request { cookie: 0, flags, command, offset, length: len };
            answers.expect(index, &mut request);
            let header = &mut self.headers[self.batch.len()];
            let iov_len = encode_request(&request, style, header);
            push(&mut self.iov, iovec { iov_base: header.as_mut_ptr().cast(), iov_len });
            if command == Command::Write {
                self.iov.extend_from_slice(&flight.request.memory);
                payload += len;
            }
            (flight.state, flight.link, flight.silence) = (FlightState::Sending, link, false);
            self.batch.push(index);
        }
    }

    /// Starts to send the rest of the batch as ciphertext, together with other output of the TLS
    /// session.
    pub(crate) fn send_sealed(
        &mut self,
        (ring, fd, user_data): (&Ring, RawFd, u64),
        session: &mut Session,
    ) -> Result<(), millrace_tls::Error> {
        while let Some(piece) = self.iov.get(self.first) {
            // SAFETY: the segment is one of this value's headers, or memory of a write in flight.
            let plain = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
            let taken = session.write(plain)?;
            let whole = taken == plain.len();
            self.advance(taken);
            if !whole {
                break;
            }
        }
        if self.first == self.iov.len() {
            session.finish()?;
        }
        let output = session.output();
        if !output.is_empty() {
            self.is_busy = true;
            let (buf, len) = (output.as_ptr(), output.len() as u32);
            let op = Op::Send { fd, buf, len, flags: libc::MSG_WAITALL };
            // SAFETY: the session's output never moves.
            // The link keeps the session until this send operation has ended.
            unsafe { ring.push(user_data, op) };
        }
        Ok(())
    }

    /// Records that the send operation sent this many bytes of ciphertext. Returns true if the
    /// batch is complete.
    pub(crate) fn moved_sealed(&mut self, bytes: usize, session: &mut Session) -> bool {
        self.is_busy = false;
        session.sent(bytes);
        self.first == self.iov.len() && session.output().is_empty()
    }

    pub(crate) fn send(&mut self, ring: &Ring, fd: RawFd, user_data: u64) {
        if self.first == self.iov.len() {
            return;
        }
        self.is_busy = true;
        let rest = &mut self.iov[self.first..];
        let flags = libc::MSG_WAITALL;
        let op = match rest {
            [one] => {
                let len = one.iov_len as u32;
                Op::Send { fd, buf: one.iov_base.cast_const().cast(), len, flags }
            }
            rest => {
                (self.msg.msg_iov, self.msg.msg_iovlen) = (rest.as_mut_ptr(), rest.len());
                Op::SendMsg { fd, msg: &raw const *self.msg, flags }
            }
        };
        // SAFETY: headers, message and segment list belong to this `Outbound`.
        // `NbdLink` keeps its `Outbound` until the send operation has ended. Payload is memory of
        // requests, which complete only after the send has ended and `sent` has taken them out of
        // the batch.
        unsafe { ring.push(user_data, op) };
    }

    /// Records that the send operation sent this many bytes. Returns true if the batch is complete.
    pub(crate) fn moved(&mut self, bytes: usize) -> bool {
        self.is_busy = false;
        self.advance(bytes);
        self.first == self.iov.len()
    }

    fn advance(&mut self, bytes: usize) {
        let mut bytes = bytes;
        while let Some(piece) = self.iov.get_mut(self.first) {
            let part = bytes.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(part);
            piece.iov_len -= part;
            bytes -= part;
            if piece.iov_len > 0 {
                return;
            }
            self.first += 1;
        }
    }

    pub(crate) fn broken(&mut self) {
        self.is_busy = false;
    }

    /// Empties the batch and returns its requests, which were sent completely or are given up.
    pub(crate) fn sent(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.first = self.iov.len();
        self.batch.drain(..)
    }
}

/// Appends a segment, or extends the last one if it is adjacent.
fn push(iov: &mut Vec<iovec>, piece: iovec) {
    match iov.last_mut() {
        Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base => {
            last.iov_len += piece.iov_len;
        }
        _ => iov.push(piece),
    }
}
