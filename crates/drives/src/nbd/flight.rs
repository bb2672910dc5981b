//! `Flight`: one request to an NBD server, from its memory to its outcome.
//!
//! One for each tag, preallocated with a list of pieces of memory (`pieces.rs`). Filled by
//! `queue.rs`, sent and answered by `link.rs`. A request that is sent again begins with its first
//! byte. Invariant: what is `Idle` or `Waiting` is named by no operation of the reactor.
#![allow(unsafe_code)]

use libc::iovec;
use millrace_block::{Request as BlockRequest, Status};
use millrace_machine::Native;
use millrace_nbd::Command;
use millrace_nbd::wire::CMD_FLAG_FUA;

use super::siblings::{Forwarded, GivenBack, Origin};
use crate::common::pieces;

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FlightState {
    /// Nowhere: the tag is free.
    #[default]
    Idle,
    /// No link has it yet.
    Waiting,
    /// A link's send is under way, with it.
    Sending,
    /// The server has it.
    Sent,
    /// Another queue of the drive sends it, as this one has no connection.
    Forwarded,
}

/// One request.
pub(crate) struct Flight {
    pub(crate) state: FlightState,
    pub(crate) command: Command,
    /// `CMD_FLAG_*`.
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The link that has it.
    pub(crate) link: usize,
    /// Answered while its send was under way.
    pub(crate) answered: Option<Status>,
    /// Its time is over.
    pub(crate) expired: bool,
    /// It was sent on a connection that is lost.
    pub(crate) again: bool,
    /// That connection was given up since its server was silent for too long.
    pub(crate) silence: bool,
    /// Its number among the flushes of the drive; 0 for everything else.
    pub(crate) flush: u64,
    /// The other queue's request that this is; none for the queue's own ones.
    origin: Option<Origin>,
    /// Number of its last forwarding to another queue.
    pub(crate) forwarding: u64,
    memory: Vec<iovec>,
}

impl Flight {
    /// A free tag's.
    pub(crate) fn new() -> Flight {
        Flight { memory: pieces::list(), ..Flight::guest() }
    }

    /// A free place for requests of other queues, which bring their lists of memory.
    pub(crate) fn guest() -> Flight {
        Flight {
            state: FlightState::Idle,
            command: Command::Flush,
            flags: 0,
            offset: 0,
            len: 0,
            link: 0,
            answered: None,
            expired: false,
            again: false,
            silence: false,
            flush: 0,
            origin: None,
            forwarding: 0,
            memory: Vec::new(),
        }
    }

    /// Gives the request to another queue, for the tag and queue that it belongs to.
    pub(crate) fn forward(&mut self, origin: Origin) -> Forwarded {
        (self.state, self.forwarding) = (FlightState::Forwarded, origin.id);
        Forwarded {
            origin,
            command: self.command,
            flags: self.flags,
            offset: self.offset,
            len: self.len,
            flush: self.flush,
            again: self.again,
            memory: std::mem::take(&mut self.memory),
        }
    }

    /// Takes a forwarded request back that no queue has taken.
    pub(crate) fn take_back(&mut self, request: Forwarded) {
        (self.state, self.memory) = (FlightState::Waiting, request.memory);
    }

    /// Takes the request of another queue.
    pub(crate) fn fill_from(&mut self, request: Forwarded) {
        let Forwarded { origin, command, flags, offset, len, flush, again, memory } = request;
        (self.command, self.flags, self.flush) = (command, flags, flush);
        (self.offset, self.len, self.memory) = (offset, len, memory);
        (self.state, self.origin) = (FlightState::Waiting, Some(origin));
        (self.answered, self.expired) = (None, false);
        (self.again, self.silence) = (again, false);
    }

    /// Whether it is the request of another queue, of this number.
    pub(crate) fn is_forwarding(&self, id: u64) -> bool {
        self.origin.is_some_and(|origin| origin.id == id)
    }

    /// Gives a request back to its queue, ended or to be sent again; none if it is this queue's
    /// own.
    pub(crate) fn give_back(&mut self, status: Option<Status>) -> Option<GivenBack> {
        let origin = self.origin.take()?;
        self.state = FlightState::Idle;
        let (again, silence) = (self.again, self.silence);
        let memory = std::mem::take(&mut self.memory);
        Some(GivenBack { origin, status, again, silence, memory })
    }

    /// Takes back a request that another queue had: it is over, with the status returned, or waits
    /// to be sent.
    pub(crate) fn returned(&mut self, back: GivenBack) -> Option<Status> {
        self.memory = back.memory;
        self.again |= back.again;
        self.silence |= back.silence;
        let status = back.status.or(self.expired.then_some(Status::TimedOut));
        self.state = if status.is_some() { FlightState::Idle } else { FlightState::Waiting };
        status
    }

    /// Takes the place and memory of a request; adjacent pieces are joined.
    pub(crate) fn fill(&mut self, command: Command, flags: u16, rq: &BlockRequest<Native>) {
        (self.state, self.command, self.flags) = (FlightState::Waiting, command, flags);
        (self.answered, self.expired, self.flush) = (None, false, 0);
        (self.again, self.silence) = (false, false);
        (self.offset, self.len) = (rq.sector() << 9, u64::from(rq.nr_sectors()) << 9);
        if command == Command::Flush {
            (self.offset, self.len) = (0, 0);
        }
        pieces::take(&mut self.memory, rq);
    }

    /// Whether a link has it.
    pub(crate) fn is_sent_by(&self, link: usize) -> bool {
        self.link == link && matches!(self.state, FlightState::Sending | FlightState::Sent)
    }

    /// Whether it changes data that a later flush makes durable.
    pub(crate) fn needs_flush(&self) -> bool {
        let writes = !matches!(self.command, Command::Read | Command::Flush);
        writes && self.flags & CMD_FLAG_FUA == 0
    }

    /// Whether all that was answered before, or it itself, is durable when it is answered.
    pub(crate) fn makes_durable(&self) -> bool {
        self.command == Command::Flush || self.flags & CMD_FLAG_FUA != 0
    }

    /// Whether its data follow it to the server.
    pub(crate) fn sends_data(&self) -> bool {
        self.command == Command::Write
    }

    /// Its memory, in order.
    pub(crate) fn pieces(&self) -> &[iovec] {
        &self.memory
    }

    /// Calls `each` with the pieces of `len` bytes of its memory that begin at byte `at`.
    fn for_part(&self, at: u64, len: u64, mut each: impl FnMut(*mut u8, usize)) {
        let (mut skip, mut left) = (at as usize, len as usize);
        for piece in &self.memory {
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
        assert!(left == 0, "a part of a request lies outside of its memory");
    }

    /// Appends the pieces of `len` bytes of its memory that begin at byte `at`.
    pub(crate) fn part(&self, at: u64, len: u64, into: &mut Vec<iovec>) {
        self.for_part(at, len, |start, iov_len| {
            into.push(iovec { iov_base: start.cast(), iov_len });
        });
    }

    /// Copies received bytes to where they belong, from byte `at` on.
    pub(crate) fn copy_in(&mut self, at: u64, bytes: &[u8]) {
        let mut from = bytes;
        self.for_part(at, bytes.len() as u64, |start, len| {
            let (head, rest) = from.split_at(len);
            // SAFETY: memory of a read that is in flight, which nobody else touches; the received
            // bytes are a buffer of the link's own.
            unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), start, len) };
            from = rest;
        });
    }

    /// Zeroes `len` bytes from byte `at` on.
    pub(crate) fn zero(&mut self, at: u64, len: u64) {
        self.for_part(at, len, |start, len| {
            // SAFETY: memory of a read that is in flight, which nobody else touches.
            unsafe { std::ptr::write_bytes(start, 0, len) };
        });
    }
}
