//! `RequestSender`: the sending side of a connection, which sends many requests in one operation.
//!
//! Headers are sent from a buffer, and payload straight from the requests' memory. Invariant: the
//! memory of a request in `batch` does not change until `sent` has returned the request.
#![allow(unsafe_code)]

use libc::{iovec, msghdr};
use millrace_nbd::wire::EXTENDED_REQUEST_BYTES;
use millrace_nbd::{Command, ReplyStyle, Request, encode_request};
use millrace_reactor::Op;
use millrace_tls::Session;

use super::ring::ConnectionRing;
use crate::common::pieces::PIECES_MAX;

const REQUESTS_MAX: usize = 256;
/// Maximum number of memory segments in one send, which is the kernel's limit.
const IOV_MAX: usize = 1024;
/// Number of payload bytes after which a send operation takes no more requests. Requests complete
/// only after the whole send operation, so a longer one would delay the first requests.
const PAYLOAD_MAX: u64 = 1 << 20;

pub(crate) struct RequestSender {
    headers: Box<[[u8; EXTENDED_REQUEST_BYTES]]>,
    iov: Vec<iovec>,
    /// Index of the first segment in `iov` that is not sent completely.
    first: usize,
    msg: Box<msghdr>,
    batch: Vec<u32>,
    payload_bytes: u64,
    pub(crate) is_busy: bool,
}

impl RequestSender {
    pub(crate) fn new() -> RequestSender {
        // SAFETY: msghdr is a plain structure for which zero is valid.
        let msg = unsafe { std::mem::zeroed() };
        RequestSender {
            headers: vec![[0; EXTENDED_REQUEST_BYTES]; REQUESTS_MAX].into_boxed_slice(),
            iov: Vec::with_capacity(IOV_MAX),
            first: 0,
            msg: Box::new(msg),
            batch: Vec::with_capacity(REQUESTS_MAX),
            payload_bytes: 0,
            is_busy: false,
        }
    }

    /// Begins a new batch. No send operation may be in flight.
    pub(crate) fn begin(&mut self) {
        assert!(!self.is_busy, "a send operation is still in flight");
        self.iov.clear();
        self.batch.clear();
        (self.first, self.payload_bytes) = (0, 0);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.batch.len() < REQUESTS_MAX
            && self.iov.len() + 1 + PIECES_MAX <= IOV_MAX
            && self.payload_bytes < PAYLOAD_MAX
    }

    /// Adds a request to the batch, which has room. `memory` is the payload of a write.
    pub(crate) fn add(
        &mut self,
        index: u32,
        request: &Request,
        style: ReplyStyle,
        memory: &[iovec],
    ) {
        let header = &mut self.headers[self.batch.len()];
        let iov_len = encode_request(request, style, header);
        push(&mut self.iov, iovec { iov_base: header.as_mut_ptr().cast(), iov_len });
        if request.command == Command::Write {
            self.iov.extend_from_slice(memory);
            self.payload_bytes += request.length;
        }
        self.batch.push(index);
    }

    /// Starts to send the rest of the batch as ciphertext, together with other output of the TLS
    /// session.
    pub(crate) fn send_sealed(
        &mut self,
        ring: &ConnectionRing<'_>,
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
        if self.is_sent() {
            session.finish()?;
        }
        let output = session.output();
        if !output.is_empty() {
            self.is_busy = true;
            let (buf, len) = (output.as_ptr(), output.len() as u32);
            let op = Op::Send { fd: ring.fd, buf, len, flags: libc::MSG_WAITALL };
            // SAFETY: the session's output never moves.
            // `NbdLink` keeps the session until this send operation has ended.
            unsafe { ring.push(op) };
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, ring: &ConnectionRing<'_>) {
        if self.is_sent() {
            return;
        }
        self.is_busy = true;
        let fd = ring.fd;
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
        // SAFETY: headers, message and segment list belong to this `RequestSender`.
        // `NbdLink` keeps the `RequestSender` until the send operation has ended. The payload is in
        // the memory of requests. A request completes only after the send operation has ended and
        // `sent` has returned the request.
        unsafe { ring.push(op) };
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.first == self.iov.len()
    }

    /// Records that this many bytes of the batch were sent or, with TLS, encrypted.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
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

    /// Empties the batch and returns its requests, which were sent completely or are given up.
    pub(crate) fn sent(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.first = self.iov.len();
        self.batch.drain(..)
    }
}

fn push(iov: &mut Vec<iovec>, piece: iovec) {
    match iov.last_mut() {
        Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base => {
            last.iov_len += piece.iov_len;
        }
        _ => iov.push(piece),
    }
}
