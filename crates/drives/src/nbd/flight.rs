//! `NbdFlight`: one request to an NBD server, from preparation to completion.
//!
//! Each tag has a preallocated flight with a list of memory segments. A request that is sent again
//! starts with its first byte. Invariant: while a flight is `Idle` or `Waiting`, no operation of
//! the reactor uses its memory.
#![allow(unsafe_code)]

use libc::iovec;
use millrace_block::{Request as BlockRequest, Status};
use millrace_machine::Native;
use millrace_nbd::Command;
use millrace_nbd::wire::CMD_FLAG_FUA;

use super::siblings::{ForwardedRequest, NbdRequest, RequestOrigin};
use crate::common::pieces;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FlightState {
    #[default]
    Idle,
    Waiting,
    Sending,
    Sent,
    /// Another queue of the drive sends the request, because this queue has no connection.
    Forwarded,
}

pub(crate) struct NbdFlight {
    pub(crate) state: FlightState,
    pub(crate) request: NbdRequest,
    pub(crate) link: usize,
    /// Result, if the answer arrived while the send was still in progress.
    pub(crate) answered: Option<Status>,
    pub(crate) expired: bool,
    /// True if the connection that carried the request was given up because the server did not
    /// answer for too long.
    pub(crate) silence: bool,
    /// Queue and tag that a forwarded request belongs to; `None` for the queue's own requests.
    origin: Option<RequestOrigin>,
    pub(crate) forwarding: u64,
}

impl NbdFlight {
    pub(crate) fn new() -> NbdFlight {
        let request = NbdRequest { memory: pieces::list(), ..NbdRequest::EMPTY };
        NbdFlight { request, ..NbdFlight::guest() }
    }

    /// Creates a flight (the state of one request) for requests that other queues forward to this
    /// queue. A forwarded request has its own list of memory segments, so none is allocated here.
    pub(crate) fn guest() -> NbdFlight {
        NbdFlight {
            state: FlightState::Idle,
            request: NbdRequest::EMPTY,
            link: 0,
            answered: None,
            expired: false,
            silence: false,
            origin: None,
            forwarding: 0,
        }
    }

    pub(crate) fn forward(&mut self, origin: RequestOrigin) -> ForwardedRequest {
        (self.state, self.forwarding) = (FlightState::Forwarded, origin.id);
        let request = std::mem::replace(&mut self.request, NbdRequest::EMPTY);
        ForwardedRequest { origin, request, status: None, silence: false }
    }

    pub(crate) fn take_back(&mut self, forwarded: ForwardedRequest) {
        (self.state, self.request) = (FlightState::Waiting, forwarded.request);
    }

    pub(crate) fn fill_from(&mut self, ForwardedRequest { origin, request, .. }: ForwardedRequest) {
        (self.state, self.origin, self.request) = (FlightState::Waiting, Some(origin), request);
        (self.answered, self.expired, self.silence) = (None, false, false);
    }

    pub(crate) fn is_forwarding(&self, id: u64) -> bool {
        self.origin.is_some_and(|origin| origin.id == id)
    }

    /// Takes out a forwarded request, to return it to the queue that has forwarded it. `status` is
    /// the result, or `None` if that queue must send the request again. Returns `None` if the
    /// request was not forwarded.
    pub(crate) fn give_back(&mut self, status: Option<Status>) -> Option<ForwardedRequest> {
        let origin = self.origin.take()?;
        self.state = FlightState::Idle;
        let request = std::mem::replace(&mut self.request, NbdRequest::EMPTY);
        Some(ForwardedRequest { origin, request, status, silence: self.silence })
    }

    /// Takes back a request that this queue has forwarded to another queue. Returns the result, or
    /// `None` if the request must be sent again.
    pub(crate) fn returned(&mut self, back: ForwardedRequest) -> Option<Status> {
        self.request = back.request;
        self.silence |= back.silence;
        let status = back.status.or(self.expired.then_some(Status::TimedOut));
        self.state = if status.is_some() { FlightState::Idle } else { FlightState::Waiting };
        status
    }

    pub(crate) fn fill(&mut self, command: Command, flags: u16, rq: &BlockRequest<Native>) {
        (self.state, self.answered) = (FlightState::Waiting, None);
        (self.expired, self.silence) = (false, false);
        let request = &mut self.request;
        (request.command, request.flags) = (command, flags);
        (request.flush, request.again) = (0, false);
        (request.offset, request.len) = match command {
            Command::Flush => (0, 0),
            _ => (rq.sector() << 9, u64::from(rq.nr_sectors()) << 9),
        };
        pieces::take(&mut request.memory, rq);
    }

    pub(crate) fn is_sent_by(&self, link: usize) -> bool {
        self.link == link && matches!(self.state, FlightState::Sending | FlightState::Sent)
    }

    pub(crate) fn needs_flush(&self) -> bool {
        let writes = !matches!(self.request.command, Command::Read | Command::Flush);
        writes && self.request.flags & CMD_FLAG_FUA == 0
    }

    pub(crate) fn makes_durable(&self) -> bool {
        self.request.command == Command::Flush || self.request.flags & CMD_FLAG_FUA != 0
    }

    fn for_part(&self, at: u64, len: u64, mut each: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (at as usize, len as usize);
        for piece in &self.request.memory {
            if left == 0 {
                return;
            }
            let here = skip.min(piece.iov_len);
            skip -= here;
            let part = left.min(piece.iov_len - here);
            if part > 0 {
                each(piece.iov_base.cast::<u8>().wrapping_add(here), part);
                left -= part;
            }
        }
        assert!(left == 0, "a part of a request must lie within the request's memory");
    }

    pub(crate) fn part(&self, at: u64, len: u64, into: &mut Vec<iovec>) {
        self.for_part(at, len, |start, iov_len| {
            into.push(iovec { iov_base: start.cast(), iov_len });
        });
    }

    pub(crate) fn copy_in(&mut self, at: u64, bytes: &[u8]) {
        let mut from = bytes;
        self.for_part(at, bytes.len() as u64, |start, len| {
            let (head, rest) = from.split_at(len);
            // SAFETY: the segment at `start` belongs to a read in flight; no other code uses it.
            // Received bytes lie in a buffer of the connection, which does not overlap any segment.
            unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), start, len) };
            from = rest;
        });
    }

    pub(crate) fn zero(&mut self, at: u64, len: u64) {
        self.for_part(at, len, |start, len| {
            // SAFETY: memory of a read that is in flight, which nobody else touches.
            unsafe { std::ptr::write_bytes(start, 0, len) };
        });
    }
}
