//! One client's connection: its negotiation, its session, its received and its outgoing bytes.
//!
//! The worker of one I/O thread owns the connection in a `Box`. The receive path (receive.rs) and
//! the request path (execute.rs) change it. Sends and receives go through [`SocketRing`].
//!
//! Phases: `Handshake` -> `Transmission` -> `Draining` (takes no more requests, answers those in
//! flight) -> `Dead` (answers nothing any more). A broken connection becomes `Dead` from every
//! phase. A dead connection is freed when it has no outstanding operation on its socket. Its
//! requests may still be in flight at the drives, because their memory and tickets belong to the
//! thread.
//!
//! Invariants: at most one receive and one send are outstanding. Requests in flight plus unsent
//! replies are at most [`BATCH_REPLIES`]; at that limit the server receives nothing from the
//! client. `held_bytes` is the total size of the pool buffers in the connection's tickets and
//! batches.

pub(crate) mod client_log;
pub(crate) mod hole_search;
pub(crate) mod input;
pub(crate) mod progress;
pub(crate) mod replies;

use std::os::fd::RawFd;
use std::sync::Arc;

use millrace_block::{GroupId, Status};
use millrace_machine::{Machine, Native};

use self::hole_search::HoleSearch;
use self::input::ReceiveBuffer;
use self::progress::Progress;
use self::replies::{BATCH_REPLIES, ReplyQueue, SentReplies};
use super::exports::Export;
use super::memory::BufferPool;
use super::memory::waiting_line::MemoryWait;
use super::on_demand::OnDemandState;
use super::ring::{SocketRing, shut_down};
use super::server_state::NegotiationCount;
use super::submit::ticket::{TicketMemory, Tickets};
use super::tls::TlsSession;
use crate::GroupMembership;
use millrace_nbd::{Errno, Handshake, Reply, Request, RequestLimits, Session, TlsMode};

/// Minimum number of possibly unread reply bytes for which the server delays its next receive. The
/// delay lasts until the client has read most replies. Meanwhile requests accumulate, so that one
/// receive takes several. client_timers.rs limits the delay, because a client may have to send
/// before it reads.
const BACKLOG_BYTES: usize = 32 * 1024;
/// Minimum number of possibly unread replies for which the server delays its next receive. The
/// delay lets requests accumulate. With fewer replies, none would accumulate: a client with few
/// requests in flight often sends the next request only after it has read a reply.
const BACKLOG_REPLIES: u32 = 8;
/// Number of bytes of reads after which a connection starts no more reads in an iteration of the
/// event loop. Read data are then still in the CPU cache when they are sent.
const TURN_BYTES: usize = 256 * 1024;
/// Number of unsent reply bytes at which the server stops taking requests of a connection. After a
/// short time, the server takes requests again (client_timers.rs), because a client may have to
/// send before it reads.
const UNSENT_BYTES: usize = 512 * 1024;

/// Longest wait of a client for an export that is being opened, as a multiple of the handshake
/// timeout.
const WAITS_MAX: u64 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPhase {
    Handshake,
    Transmission,
    /// The server takes no more requests, and ends the connection once earlier requests are
    /// answered.
    Draining,
    /// The socket is shut down in both directions, and the server sends no more replies.
    Dead,
}

#[derive(Debug, Default)]
pub(crate) struct Negotiation {
    /// Index of the listener that accepted the connection. The listener determines the exports that
    /// the client may use.
    pub(crate) listener: usize,
    pub(crate) handshake: Handshake,
    pub(crate) out: Vec<u8>,
    pub(crate) sent: usize,
    pub(crate) starts_tls: bool,
    pub(crate) demand: OnDemandState,
    /// Time, in nanoseconds, of the client's last request for an on-demand export, or of the answer
    /// to that request.
    pub(crate) asked_ns: Option<u64>,
    /// Outcome of the negotiation, applied once all answers are sent:
    /// - `None`: the negotiation continues.
    /// - `Some(None)`: the client ended the negotiation.
    /// - `Some(Some(..))`: the negotiated session and its export.
    pub(crate) then: Option<Option<(Session, Arc<Export>)>>,
    pub(crate) counted: Option<NegotiationCount>,
}

impl Negotiation {
    pub(crate) fn waits(&self) -> bool {
        matches!(self.demand, OnDemandState::Waiting { .. })
    }

    /// Returns the negotiated export or, without one, the export that was opened at the client's
    /// request.
    pub(crate) fn export(&self) -> Option<&Arc<Export>> {
        match (&self.then, &self.demand) {
            (Some(Some((_, export))), _) => Some(export),
            (_, OnDemandState::ExportSession(_, granted)) => Some(&granted.0),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct IncomingPayload {
    /// ID of the write in the table of requests; `None` if the request was refused.
    pub(crate) ticket: Option<u32>,
    /// Reply to a refused write, sent after the whole payload was received. A client need not read
    /// replies while it is still sending a request.
    pub(crate) refused: Option<RefusedRequest>,
    pub(crate) filled: u64,
    pub(crate) total: u64,
}

impl IncomingPayload {
    /// Returns the part of the write's buffer for the rest of the payload; `None` if the payload is
    /// discarded.
    pub(crate) fn room<'a>(&self, tickets: &'a mut Tickets) -> Option<&'a mut [u8]> {
        let ticket = tickets.get(self.ticket?);
        let TicketMemory::Buffer(buffer) = &mut ticket.memory else { return None };
        let (start, len) = (u64::from(ticket.head_bytes) + self.filled, self.total - self.filled);
        Some(&mut buffer.bytes_mut()[start as usize..(start + len) as usize])
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedRequest {
    pub(crate) reply: Reply,
    pub(crate) errno: Errno,
    pub(crate) why: &'static str,
}

/// Amount of work that a connection has done in the current iteration of the I/O thread's event
/// loop.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TurnUsage {
    read_bytes: usize,
    pub(crate) has_more: bool,
    /// True if the client has read no replies for a while. The server then stops waiting for it to
    /// read, because the client may have to send more before it reads.
    pub(crate) reads_late: bool,
}

impl TurnUsage {
    #[inline]
    pub(crate) fn note_read(&mut self, len_bytes: usize) {
        self.read_bytes += len_bytes;
    }

    /// Returns true if the connection has started [`TURN_BYTES`] of reads in this iteration of the
    /// event loop. Further requests then wait for the next iteration.
    #[inline]
    pub(crate) fn is_full(&mut self) -> bool {
        self.has_more = self.read_bytes >= TURN_BYTES;
        self.has_more
    }

    /// Ends the iteration of the event loop. Returns true if requests are left for the next one.
    #[inline]
    pub(crate) fn end(&mut self) -> bool {
        self.read_bytes = 0;
        self.has_more
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ExportSession {
    pub(crate) session: Session,
    pub(crate) rules: RequestLimits,
    /// Index of the I/O thread's lane (its channel to the volume and the requests that use it).
    pub(crate) lane: u32,
    /// True if the volume's drives never touch payload (null drives).
    pub(crate) no_payload: bool,
    pub(crate) block_bytes: u32,
    pub(crate) group: GroupId,
}

impl ExportSession {
    #[inline]
    pub(crate) fn is_unaligned(&self, request: &Request) -> bool {
        let within = (request.offset | request.length) & u64::from(self.block_bytes - 1);
        self.rules.block_min < self.block_bytes && within != 0
    }
}

#[derive(Debug, Default)]
pub(crate) struct ClientHistory {
    /// Number of the client in logs and reports (see [`client_number`](super::server_state)).
    pub(crate) number: u16,
    pub(crate) holes: HoleSearch,
    pub(crate) progress: Progress,
    /// Time, in nanoseconds, at which the server stopped taking requests of the client; 0 while the
    /// server takes requests.
    pub(crate) stopped_ns: u64,
    /// True if the I/O thread will check the connection before the next iteration of its event
    /// loop.
    pub(crate) touched: bool,
    /// True if a timer checks the socket for a disconnect. The timer is needed only while no send
    /// or receive is outstanding, because a completion would report the disconnect.
    pub(crate) unwatched: bool,
    pub(crate) connected_ns: u64,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) export: Option<(Arc<Export>, GroupMembership)>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) fd: RawFd,
    pub(crate) index: usize,
    /// Serial number of the connection. Unlike `index`, serial numbers are never used again.
    pub(crate) serial: u64,
    pub(crate) phase: ConnectionPhase,
    pub(crate) negotiation: Option<Box<Negotiation>>,
    pub(crate) granted: Option<ExportSession>,
    /// TLS session; `None` while the connection is in plaintext.
    pub(crate) tls: Option<Box<TlsSession>>,
    pub(crate) input: ReceiveBuffer,
    pub(crate) incoming: Option<IncomingPayload>,
    pub(crate) out: ReplyQueue,
    /// Number of requests in the block layer plus unsent replies.
    pub(crate) in_flight: u32,
    pub(crate) memory_wait: MemoryWait,
    pub(crate) held_bytes: usize,
    pub(crate) turn: TurnUsage,
    pub(crate) history: ClientHistory,
}

impl Connection {
    pub(crate) fn new(fd: RawFd, index: usize, serial: u64, listener: usize) -> Box<Connection> {
        let mut handshake = Handshake::new();
        let mut out = Vec::new();
        handshake.greeting(&mut out);
        let negotiation = Negotiation { listener, handshake, out, ..Negotiation::default() };
        Box::new(Connection {
            fd,
            index,
            serial,
            phase: ConnectionPhase::Handshake,
            negotiation: Some(Box::new(negotiation)),
            granted: None,
            tls: None,
            input: ReceiveBuffer::new(),
            incoming: None,
            out: ReplyQueue::new(fd),
            in_flight: 0,
            memory_wait: MemoryWait::None,
            held_bytes: 0,
            turn: TurnUsage::default(),
            history: ClientHistory { connected_ns: Native::now(), ..ClientHistory::default() },
        })
    }

    /// Sets the TLS policy of the handshake, before any byte is received. The connection counts as
    /// negotiating until `counted` is dropped.
    pub(crate) fn expect(&mut self, mode: TlsMode, counted: NegotiationCount) {
        if let Some(negotiation) = &mut self.negotiation {
            negotiation.handshake = Handshake::with_tls(mode);
            negotiation.counted = Some(counted);
        }
    }

    /// Returns the extended deadline of the negotiation, or `None` if the deadline is not extended.
    /// The deadline is extended while the server opens an export for the client, but not once the
    /// client has waited for `WAITS_MAX` times `timeout_ns` nanoseconds. After the answer, the
    /// client gets another `timeout_ns` nanoseconds.
    pub(crate) fn negotiates_until(&self, now_ns: u64, timeout_ns: u64) -> Option<u64> {
        let negotiation = self.negotiation.as_ref()?;
        let since_ns = negotiation.asked_ns?;
        let until_ns = match negotiation.waits() {
            true if now_ns < since_ns.saturating_add(timeout_ns.saturating_mul(WAITS_MAX)) => {
                now_ns.saturating_add(timeout_ns)
            }
            true => 0,
            false => since_ns.saturating_add(timeout_ns),
        };
        (until_ns > now_ns).then_some(until_ns)
    }

    /// Makes the I/O thread check the connection before the next iteration of its event loop.
    #[inline]
    pub(crate) fn touch(&mut self, touched: &mut Vec<usize>) {
        if !std::mem::replace(&mut self.history.touched, true) {
            touched.push(self.index);
        }
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        (self.in_flight as usize) < BATCH_REPLIES
            && (self.turn.reads_late || self.out.unsent_bytes() < UNSENT_BYTES)
    }

    /// Records the time at which the server stopped taking the client's requests. A stop because
    /// the client does not read its replies is not recorded.
    #[cold]
    pub(crate) fn stop_taking(&mut self) {
        // A large backlog of unsent replies means that the client does not read.
        if self.history.stopped_ns == 0 && self.out.unsent_bytes() < UNSENT_BYTES {
            self.history.stopped_ns = Native::now();
        }
    }

    #[inline]
    pub(crate) fn waits_to_send(&self) -> bool {
        let listens = self.phase == ConnectionPhase::Transmission && !self.input.busy;
        listens && !self.turn.reads_late && self.out.unsent_bytes() >= UNSENT_BYTES
    }

    #[inline]
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.history.progress.moved(bytes);
        self.turn.reads_late = false;
        if !self.input.busy {
            self.out.catching_ns = 0;
        }
    }

    /// Stops taking requests. Abandons a write whose payload is incomplete.
    pub(crate) fn drain(&mut self, tickets: &mut Tickets, pool: &mut BufferPool) {
        if matches!(self.phase, ConnectionPhase::Draining | ConnectionPhase::Dead) {
            return;
        }
        if self.phase == ConnectionPhase::Handshake {
            return self.kill(tickets, pool);
        }
        self.phase = ConnectionPhase::Draining;
        self.abandon_input(tickets, pool);
    }

    /// Shuts the socket down in both directions. The server sends no more replies, and outstanding
    /// socket operations complete.
    pub(crate) fn kill(&mut self, tickets: &mut Tickets, pool: &mut BufferPool) {
        if self.phase == ConnectionPhase::Dead {
            return;
        }
        self.phase = ConnectionPhase::Dead;
        self.abandon_input(tickets, pool);
        shut_down(self.fd);
    }

    /// Discards received bytes, and a write whose payload is incomplete. Keeps both while a receive
    /// is outstanding, because the kernel may still write to the buffers.
    pub(crate) fn abandon_input(&mut self, tickets: &mut Tickets, pool: &mut BufferPool) {
        self.stop_waiting(pool);
        if self.input.busy {
            return;
        }
        self.input.clear();
        if let Some(id) = self.incoming.take().and_then(|incoming| incoming.ticket) {
            self.in_flight -= 1;
            self.give_back(tickets.remove(id).memory, pool);
        }
    }

    #[inline]
    pub(crate) fn give_back(&mut self, memory: TicketMemory, pool: &mut BufferPool) {
        if let TicketMemory::Buffer(buffer) = memory {
            self.held_bytes -= buffer.len();
            pool.give(buffer);
        }
    }

    pub(crate) fn stop_waiting(&mut self, pool: &mut BufferPool) {
        if std::mem::replace(&mut self.memory_wait, MemoryWait::None) == MemoryWait::Queued {
            let thread = pool.thread;
            pool.budget.change_line(|line| line.leave(thread, self.serial));
        }
    }

    #[cold]
    pub(crate) fn note_fault(&self, status: Status) {
        if let Some((export, _)) = &self.history.export {
            export.faults.note(status);
        }
    }

    #[inline]
    pub(crate) fn freed(&mut self, freed: SentReplies) {
        self.in_flight -= freed.replies;
        self.held_bytes -= freed.bytes;
    }

    /// Returns true if the server waits for the client to read replies or to send the rest of a
    /// payload.
    pub(crate) fn waits_for_client(&self) -> bool {
        let in_service =
            matches!(self.phase, ConnectionPhase::Transmission | ConnectionPhase::Draining);
        in_service && (self.out.busy || (self.input.busy && self.incoming.is_some()))
    }

    /// Returns true if the connection is shutting down and waits only for its client to read the
    /// last replies.
    pub(crate) fn waits_for_reader(&self) -> bool {
        let (has_input, replies) = (self.incoming.is_some(), self.out.replies());
        self.phase == ConnectionPhase::Draining
            && self.out.busy
            && !has_input
            && self.in_flight == replies
    }

    pub(crate) fn pump(&mut self, ring: &SocketRing, tickets: &mut Tickets, pool: &mut BufferPool) {
        match self.phase {
            ConnectionPhase::Handshake => self.pump_negotiation(ring),
            ConnectionPhase::Transmission => {
                self.pump_send(ring, pool);
                self.pump_receive(ring, tickets);
            }
            ConnectionPhase::Draining => {
                self.pump_send(ring, pool);
                if self.in_flight == 0 && self.has_said_goodbye(ring) {
                    self.kill(tickets, pool);
                }
            }
            ConnectionPhase::Dead => {
                let freed = self.out.discard(pool);
                self.freed(freed);
            }
        }
    }

    fn pump_negotiation(&mut self, ring: &SocketRing) {
        if self.tls.is_some() {
            return self.pump_secure_negotiation(ring);
        }
        let Some(negotiation) = &self.negotiation else { return };
        let rest = &negotiation.out[negotiation.sent..];
        if !rest.is_empty() {
            if !self.out.busy {
                self.out.busy = true;
                ring.send(self.index, self.fd, rest);
            }
        } else if !self.input.busy {
            let waits = negotiation.waits();
            // While a client waits until its export is opened, it may fill the buffer with further
            // options. Once the buffer is full, the server receives nothing until the export is
            // opened.
            self.input.busy = !waits || !self.input.room().is_empty();
            if self.input.busy {
                ring.receive(self.index, self.fd, self.input.room());
            }
        }
    }

    #[inline]
    pub(crate) fn pump_send(&mut self, ring: &SocketRing, pool: &mut BufferPool) {
        if self.tls.is_some() {
            return self.pump_secure_send(ring, pool);
        }
        if !self.out.busy && (self.out.has_gathered() || self.out.has_rest()) {
            self.history.progress.note();
            ring.send_message(self.index, self.fd, self.out.start());
        }
    }

    #[inline]
    fn pump_receive(&mut self, ring: &SocketRing, tickets: &mut Tickets) {
        let waits = self.memory_wait != MemoryWait::None || self.turn.has_more;
        if self.input.busy || waits || !self.has_room() {
            return;
        }
        self.input.busy = true;
        if self.incoming.is_none()
            && self.out.backlog_bytes >= BACKLOG_BYTES
            && self.out.backlog_replies >= BACKLOG_REPLIES
            && let Some(backlog) = &self.out.backlog
        {
            self.out.catching_ns = Native::now();
            return ring.catch_up(self.index, backlog);
        }
        if self.tls.is_some() {
            self.input.busy = false;
            return self.receive_secure(ring);
        }
        if let Some(payload) = self.incoming.and_then(|incoming| incoming.room(tickets)) {
            let message = self.input.message(payload);
            return ring.receive_message(self.index, self.fd, message);
        }
        ring.receive(self.index, self.fd, self.input.room());
    }

    pub(crate) fn refuse(&mut self, refusal: &RefusedRequest) {
        self.in_flight += 1;
        let RefusedRequest { reply, errno, why } = *refusal;
        self.out.push(|buffer| reply.failure(buffer, errno, why));
    }

    /// Returns true if the open connection's socket has no outstanding operation, so that a
    /// disconnect of the client would go unnoticed.
    #[inline]
    pub(crate) fn is_unwatched(&self) -> bool {
        !self.input.busy && !self.out.busy && self.phase != ConnectionPhase::Dead
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == ConnectionPhase::Dead && !self.input.busy && !self.out.busy
    }
}

mod tls_io;

#[cfg(test)]
mod tests;
