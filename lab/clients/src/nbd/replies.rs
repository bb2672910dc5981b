//! Parses replies: from received bytes to completed requests.
//!
//! This module owns the receive buffer. Payload is copied from that buffer to the request's buffer;
//! the rest of a large payload is received directly into the request's buffer. The client calls the
//! module with its table of requests.
//!
//! Invariants: payload is only written to the range that the request named. A reply to a request
//! that is not in flight, or more data than requested, is an error that ends the connection.

use std::io;

use millrace_nbd::client::{ServerReply, parse_reply};
use millrace_nbd::status::descriptors;
use millrace_nbd::{Command, ReplyStyle};

use super::socket::Socket;
use super::{SentRequest, invalid};

#[derive(Debug, Clone, Copy)]
struct PartialPayload {
    index: u32,
    /// Offset in the request's buffer for the next byte.
    at: usize,
    left: usize,
    last: bool,
}

#[derive(Debug)]
pub(crate) struct Replies {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<PartialPayload>,
}

impl Replies {
    pub(crate) fn new(bytes: usize, rest: &[u8]) -> Replies {
        let mut buffer = vec![0; bytes].into_boxed_slice();
        buffer[..rest.len()].copy_from_slice(rest);
        Replies { buffer, start: 0, end: rest.len(), payload: None }
    }

    /// Receives once and completes requests. Returns the number of bytes received, or 0 if none
    /// were available.
    pub(crate) fn receive(
        &mut self,
        socket: &Socket,
        style: ReplyStyle,
        pending: &mut [Option<SentRequest>],
        mut done: impl FnMut(u32, SentRequest),
    ) -> io::Result<usize> {
        let received = match self.payload {
            Some(payload) if payload.left > self.buffer.len() / 8 => {
                let request = in_flight(pending, payload.index)?;
                let room = &mut request.buffer[payload.at..payload.at + payload.left];
                let Some(bytes) = socket.receive(room)? else { return Ok(0) };
                self.payload = Some(PartialPayload {
                    at: payload.at + bytes,
                    left: payload.left - bytes,
                    ..payload
                });
                bytes
            }
            _ => {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                let Some(bytes) = socket.receive(&mut self.buffer[self.end..])? else {
                    return Ok(0);
                };
                self.end += bytes;
                bytes
            }
        };
        while self.step(style, pending, &mut done)? {}
        Ok(received)
    }

    fn step(
        &mut self,
        style: ReplyStyle,
        pending: &mut [Option<SentRequest>],
        done: &mut impl FnMut(u32, SentRequest),
    ) -> io::Result<bool> {
        if let Some(payload) = self.payload {
            let bytes = payload.left.min(self.end - self.start);
            let request = in_flight(pending, payload.index)?;
            request.buffer[payload.at..payload.at + bytes]
                .copy_from_slice(&self.buffer[self.start..self.start + bytes]);
            self.start += bytes;
            if bytes < payload.left {
                let (at, left) = (payload.at + bytes, payload.left - bytes);
                self.payload = Some(PartialPayload { at, left, ..payload });
                return Ok(false);
            }
            self.payload = None;
            if payload.last {
                finish(pending, payload.index, done)?;
            }
            return Ok(true);
        }
        let input = &self.buffer[self.start..self.end];
        let (reply, header) = match parse_reply(input, style).map_err(invalid)? {
            None => return Ok(false),
            Some((reply, header_bytes)) => (reply, header_bytes),
        };
        let Some(taken) = Replies::reply(&input[header..], reply, pending, done)? else {
            return Ok(false);
        };
        self.payload = taken.payload;
        self.start += header + taken.list_bytes;
        Ok(true)
    }

    /// Processes a reply. `behind` has the received bytes after the reply's header. Returns `None`
    /// if more bytes are needed.
    fn reply(
        behind: &[u8],
        reply: ServerReply<'_>,
        pending: &mut [Option<SentRequest>],
        done: &mut impl FnMut(u32, SentRequest),
    ) -> io::Result<Option<ReplyBody>> {
        let mut taken = ReplyBody { list_bytes: 0, payload: None };
        match reply {
            ServerReply::Simple { cookie, errno } => {
                let (index, request) = lookup(pending, cookie)?;
                request.errno = errno;
                if request.command == Command::Read && errno.is_none() {
                    request.received = request.length;
                    let left = request.buffer.len();
                    taken.payload = Some(PartialPayload { index, at: 0, left, last: true });
                } else {
                    finish(pending, index, done)?;
                }
            }
            ServerReply::Done { cookie } => {
                let (index, _) = lookup(pending, cookie)?;
                finish(pending, index, done)?;
            }
            ServerReply::Error { cookie, errno, last, .. } => {
                let (index, request) = lookup(pending, cookie)?;
                request.errno = request.errno.or(Some(errno));
                if last {
                    finish(pending, index, done)?;
                }
            }
            ServerReply::Data { cookie, offset, length, last } => {
                let (index, request) = lookup(pending, cookie)?;
                let (at, left) = place(request, offset, length)?;
                taken.payload = Some(PartialPayload { index, at, left, last });
            }
            ServerReply::Hole { cookie, offset, length, last } => {
                let (index, request) = lookup(pending, cookie)?;
                let (at, len) = place(request, offset, length)?;
                request.buffer[at..at + len].fill(0);
                if last {
                    finish(pending, index, done)?;
                }
            }
            ServerReply::Status { cookie, width, descriptor_bytes, last, .. } => {
                let (index, request) = lookup(pending, cookie)?;
                let bytes = usize::try_from(descriptor_bytes).map_err(invalid)?;
                let Some(list) = behind.get(..bytes) else { return Ok(None) };
                request.extents.extend(descriptors(list, width));
                taken.list_bytes = bytes;
                if last {
                    finish(pending, index, done)?;
                }
            }
        }
        Ok(Some(taken))
    }
}

struct ReplyBody {
    /// Size in bytes of the list of extents (block status) that followed the header; 0 without a
    /// list.
    list_bytes: usize,
    payload: Option<PartialPayload>,
}

fn lookup(pending: &mut [Option<SentRequest>], cookie: u64) -> io::Result<(u32, &mut SentRequest)> {
    let index = u32::try_from(cookie).map_err(invalid)?;
    Ok((index, in_flight(pending, index)?))
}

fn place(request: &mut SentRequest, offset: u64, length: u64) -> io::Result<(usize, usize)> {
    let wrong = || {
        invalid(format!("a chunk of {length} bytes at {offset}, which the read did not request"))
    };
    let at = offset.checked_sub(request.offset).ok_or_else(wrong)?;
    let end = at.checked_add(length).ok_or_else(wrong)?;
    if request.command != Command::Read || end > request.length {
        return Err(wrong());
    }
    request.received += length;
    Ok((at as usize, length as usize))
}

fn in_flight(pending: &mut [Option<SentRequest>], index: u32) -> io::Result<&mut SentRequest> {
    let slot = pending.get_mut(index as usize).and_then(Option::as_mut);
    slot.ok_or_else(|| invalid(format!("a reply to request {index}, which is not in flight")))
}

fn finish(
    pending: &mut [Option<SentRequest>],
    index: u32,
    done: &mut impl FnMut(u32, SentRequest),
) -> io::Result<()> {
    let request = in_flight(pending, index)?;
    if request.command == Command::Read
        && request.errno.is_none()
        && request.received != request.length
    {
        let (got, asked) = (request.received, request.length);
        return Err(invalid(format!("a read of {asked} bytes was answered with {got}")));
    }
    if let Some(request) = pending[index as usize].take() {
        done(index, request);
    }
    Ok(())
}
