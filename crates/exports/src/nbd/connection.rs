//! One client's connection: its negotiation, its session, its bytes in and out.
//!
//! Owned, boxed, by the worker of one I/O thread; the receive path (receive.rs) and the request
//! path (execute.rs) change it. Calls the reactor through [`Ring`] to receive and to send.
//!
//! Phases: `Handshake` -> `Transmission` -> `Draining` (no more requests are taken; those in flight
//! are answered) -> `Dead` (nothing is answered any more). From every phase a broken connection
//! goes to `Dead`. It is freed when dead and without an outstanding operation, whatever drives
//! still have of it: memory and tickets of those requests are the thread's.
//!
//! Invariants: at most one receive and one send are outstanding; requests in flight plus replies
//! not sent are at most [`BATCH_REPLIES`]; above that nothing is received. `held_bytes` is the sum
//! of the pool's buffers that its tickets and its batches have.

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
use self::input::Input;
use self::progress::Progress;
use self::replies::{BATCH_REPLIES, ReplyQueue, SentReplies};
use super::exports::Export;
use super::memory::Pool;
use super::memory::waiting_line::MemoryWait;
use super::on_demand::Demand;
use super::ring::{Ring, shut_down, shut_down_input};
use super::server_state::Negotiating;
use super::submit::ticket::{Memory, Ticket, Tickets};
use super::tls::TlsSession;
use crate::Seat;
use millrace_nbd::{Errno, Handshake, Reply, Request, Rules, Session, TlsMode};

/// After this many bytes of replies a connection receives only when its client has caught up. Until
/// then the client has replies to read before it could see those of new requests, so waiting costs
/// it nothing, and the requests it sends meanwhile come in one receive and not one by one. A hint
/// only: a client may send before it reads, so client_timers.rs ends the wait.
const BACKLOG_BYTES: usize = 32 * 1024;
/// It receives then only after this many replies, too: long ones are few at a time in the socket,
/// and a client that has to wait for the next ones to be made gains nothing from requests taken
/// together.
const BACKLOG_REPLIES: u32 = 8;
/// Bytes of reads that a connection may take in one turn, and one request at least: what a turn has
/// copied is still in the cache when it is sent, and the client gets the first of it soon.
const TURN_BYTES: usize = 256 * 1024;
/// With this many bytes of replies waiting for the socket a connection takes no more requests. Like
/// [`BACKLOG_BYTES`] it is a hint only, and client_timers.rs ends the wait.
const UNSENT_BYTES: usize = 512 * 1024;

/// Handshake timeouts that a client may wait for an export that is being opened.
const WAITS_MAX: u64 = 6;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Options are negotiated.
    Handshake,
    /// Requests are served.
    Transmission,
    /// What is in flight is answered, then it ends.
    Draining,
    /// Nothing is answered.
    Dead,
}

/// What the negotiation needs.
#[derive(Debug)]
pub(crate) struct Negotiation {
    /// The listener that accepted the connection, which decides what it may be granted.
    pub(crate) listener: usize,
    pub(crate) handshake: Handshake,
    pub(crate) out: Vec<u8>,
    pub(crate) sent: usize,
    /// The client was told to go on with TLS.
    pub(crate) starts_tls: bool,
    /// The export or list on demand that it asked for.
    pub(crate) demand: Demand,
    /// When it last asked for one, or was last answered.
    pub(crate) asked_ns: Option<u64>,
    /// The session and its export, or none for a client that ended it, once the answers are sent.
    pub(crate) then: Option<Option<(Session, Arc<Export>)>>,
    /// Counts the connection among those that negotiate.
    pub(crate) counted: Option<Negotiating>,
}

impl Negotiation {
    /// Returns true while an export is being opened for the client.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.demand, Demand::Waiting { .. })
    }

    /// The export that the client gets, or may get.
    pub(crate) fn export(&self) -> Option<&Arc<Export>> {
        match (&self.then, &self.demand) {
            (Some(Some((_, export))), _) => Some(export),
            (_, Demand::Granted(_, granted)) => Some(granted.export()),
            _ => None,
        }
    }
}

/// Payload that is being received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    /// The write that it belongs to; none for payload of a refused request.
    pub(crate) ticket: Option<u32>,
    /// What that is answered with, once all of it came in: a client may still be sending it, and
    /// knows a request that was sent only.
    pub(crate) refused: Option<Refusal>,
    /// Bytes that came in already.
    pub(crate) filled: u64,
    /// Bytes in all.
    pub(crate) total: u64,
    /// The payload goes to the ticket's buffer, not nowhere.
    pub(crate) kept: bool,
}

/// The answer to a request that is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) reply: Reply,
    pub(crate) errno: Errno,
    pub(crate) why: &'static str,
}

/// What a connection did in the present turn of its thread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// Bytes of reads that it took.
    read_bytes: usize,
    /// The connection has received more requests, which are for the next turn.
    pub(crate) has_more: bool,
    /// The client has read nothing for a while, and may do so only after it has sent more.
    pub(crate) reads_late: bool,
}

impl Turn {
    /// Notes a read that was taken.
    #[inline]
    pub(crate) fn note_read(&mut self, len_bytes: usize) {
        self.read_bytes += len_bytes;
    }

    /// Whether the turn has taken its share; then the rest is for the next one.
    #[inline]
    pub(crate) fn is_full(&mut self) -> bool {
        self.has_more = self.read_bytes >= TURN_BYTES;
        self.has_more
    }

    /// Ends the turn; whether requests are left for the next one.
    #[inline]
    pub(crate) fn end(&mut self) -> bool {
        self.read_bytes = 0;
        self.has_more
    }
}

/// A granted export.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) session: Session,
    pub(crate) rules: Rules,
    /// The thread's lane of its volume.
    pub(crate) lane: u32,
    /// The volume's drives never touch payload.
    pub(crate) no_payload: bool,
    /// Bytes of a block of it.
    pub(crate) block_bytes: u32,
    /// The client's group.
    pub(crate) group: GroupId,
}

impl Granted {
    /// Whether a request begins or ends within a block, and may.
    #[inline]
    pub(crate) fn is_unaligned(&self, request: &Request) -> bool {
        let within = (request.offset | request.length) & u64::from(self.block_bytes - 1);
        self.rules.block_min < self.block_bytes && within != 0
    }
}

/// Lists of connections that an I/O thread keeps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lists {
    /// The connection is to be looked at before the next turn.
    pub(crate) touched: bool,
    /// Nothing is outstanding on the connection's socket that would tell of a client that leaves.
    pub(crate) unwatched: bool,
}

/// What a thread knows of a client while it serves it.
#[derive(Debug, Default)]
pub(crate) struct ClientHistory {
    /// When to look for holes.
    pub(crate) holes: HoleSearch,
    /// Whether the client moves.
    pub(crate) progress: Progress,
    /// Since when the server takes no request of the client, though one is there, in nanoseconds;
    /// 0 if it does.
    pub(crate) stopped_ns: u64,
    /// Which lists of the worker it is on.
    pub(crate) lists: Lists,
    /// When it connected, in nanoseconds.
    pub(crate) connected_ns: u64,
    /// Requests that were taken, and bytes that these read and wrote.
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// The export, and the client's place in its group, which is given up with the connection.
    pub(crate) export: Option<(Arc<Export>, Seat)>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) fd: RawFd,
    pub(crate) index: usize,
    /// Unlike that of any other connection of the thread.
    pub(crate) serial: u64,
    pub(crate) phase: Phase,
    pub(crate) negotiation: Option<Box<Negotiation>>,
    pub(crate) granted: Option<Granted>,
    /// TLS, from where it began; then all bytes of the socket are its.
    pub(crate) tls: Option<Box<TlsSession>>,
    pub(crate) input: Input,
    pub(crate) incoming: Option<Incoming>,
    pub(crate) out: ReplyQueue,
    /// Requests in the block layer and replies not sent yet.
    pub(crate) in_flight: u32,
    /// What its next request waits for.
    pub(crate) memory_wait: MemoryWait,
    /// Bytes of the pool's buffers that it has.
    pub(crate) held_bytes: usize,
    /// What it took in this turn of its thread.
    pub(crate) turn: Turn,
    /// What is known of its client.
    pub(crate) history: ClientHistory,
}

impl Connection {
    pub(crate) fn new(fd: RawFd, index: usize, serial: u64, listener: usize) -> Box<Connection> {
        let mut handshake = Handshake::new();
        let mut out = Vec::new();
        handshake.greeting(&mut out);
        let negotiation = Negotiation {
            listener,
            handshake,
            out,
            sent: 0,
            starts_tls: false,
            demand: Demand::None,
            asked_ns: None,
            then: None,
            counted: None,
        };
        Box::new(Connection {
            fd,
            index,
            serial,
            phase: Phase::Handshake,
            negotiation: Some(Box::new(negotiation)),
            granted: None,
            tls: None,
            input: Input::new(),
            incoming: None,
            out: ReplyQueue::new(fd),
            in_flight: 0,
            memory_wait: MemoryWait::None,
            held_bytes: 0,
            turn: Turn::default(),
            history: ClientHistory { connected_ns: Native::now(), ..ClientHistory::default() },
        })
    }

    /// What the server does about TLS, to be said before anything was received, and what counts
    /// the connection until its negotiation is over.
    pub(crate) fn expect(&mut self, mode: TlsMode, counted: Negotiating) {
        if let Some(negotiation) = &mut self.negotiation {
            negotiation.handshake = Handshake::with_tls(mode);
            negotiation.counted = Some(counted);
        }
    }

    /// The time until which its negotiation may go on although this timeout is over, if there is
    /// one: while an export is opened for the client, and for another timeout from then on.
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

    /// Puts the connection on the list of those to look at before the next turn.
    #[inline]
    pub(crate) fn touch(&mut self, touched: &mut Vec<usize>) {
        if !self.history.lists.touched {
            self.history.lists.touched = true;
            touched.push(self.index);
        }
    }

    /// Whether another request may be taken before more replies have left.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        (self.in_flight as usize) < BATCH_REPLIES
            && (self.turn.reads_late || self.out.unsent_bytes() < UNSENT_BYTES)
    }

    /// The server takes no more of its requests for now; its client is not to blame.
    #[cold]
    pub(crate) fn stop_taking(&mut self) {
        // Of replies that are not read there are many, too.
        if self.history.stopped_ns == 0 && self.out.unsent_bytes() < UNSENT_BYTES {
            self.history.stopped_ns = Native::now();
        }
    }

    /// Whether it takes no requests because replies wait for the socket.
    #[inline]
    pub(crate) fn waits_to_send(&self) -> bool {
        let listens = self.phase == Phase::Transmission && !self.input.busy;
        listens && !self.turn.reads_late && self.out.unsent_bytes() >= UNSENT_BYTES
    }

    /// Notes that this many bytes of replies have left.
    #[inline]
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.history.progress.moved(bytes);
        self.turn.reads_late = false;
        if !self.input.busy {
            self.out.catching_ns = 0;
        }
    }

    /// Takes no more requests; a write whose payload is incomplete is given up.
    pub(crate) fn drain(&mut self, tickets: &mut Tickets, pool: &mut Pool) {
        if matches!(self.phase, Phase::Draining | Phase::Dead) {
            return;
        }
        if self.phase == Phase::Handshake {
            return self.kill(tickets, pool);
        }
        self.phase = Phase::Draining;
        self.abandon_input(tickets, pool);
    }

    /// Takes no more requests, and ends when those in flight are answered.
    pub(crate) fn end_session(&mut self, tickets: &mut Tickets, pool: &mut Pool) {
        self.drain(tickets, pool);
        shut_down_input(self.fd);
    }

    /// Answers nothing any more and makes what is outstanding on the socket complete.
    pub(crate) fn kill(&mut self, tickets: &mut Tickets, pool: &mut Pool) {
        if self.phase == Phase::Dead {
            return;
        }
        self.phase = Phase::Dead;
        self.abandon_input(tickets, pool);
        shut_down(self.fd);
    }

    /// Forgets what was received, unless a receive into it is under way.
    fn abandon_input(&mut self, tickets: &mut Tickets, pool: &mut Pool) {
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

    /// Gives a buffer of the connection back to the pool.
    #[inline]
    pub(crate) fn give_back(&mut self, memory: Memory, pool: &mut Pool) {
        if let Memory::Buffer(buffer) = memory {
            self.held_bytes -= buffer.len();
            pool.give(buffer);
        }
    }

    /// The connection's request waits for memory no longer.
    pub(crate) fn stop_waiting(&mut self, pool: &mut Pool) {
        if std::mem::replace(&mut self.memory_wait, MemoryWait::None) == MemoryWait::Queued {
            let thread = pool.thread();
            pool.budget().change_line(|line| line.leave(thread, self.serial));
        }
    }

    /// Counts a drive's failure against the client's export.
    #[cold]
    pub(crate) fn note_fault(&self, status: Status) {
        if let Some((export, _)) = &self.history.export {
            export.faults.note(status);
        }
    }

    /// Notes replies that have left, and their buffers with them.
    #[inline]
    pub(crate) fn freed(&mut self, freed: SentReplies) {
        self.in_flight -= freed.replies;
        self.held_bytes -= freed.bytes;
    }

    /// Whether its client has to read replies, or to send the rest of a payload, before it goes on.
    pub(crate) fn waits_for_client(&self) -> bool {
        let in_service = matches!(self.phase, Phase::Transmission | Phase::Draining);
        in_service && (self.out.busy || (self.input.busy && self.incoming.is_some()))
    }

    /// Whether, as the server stops, nothing but replies is left, which its client has to read.
    pub(crate) fn waits_for_reader(&self) -> bool {
        let (has_input, replies) = (self.incoming.is_some(), self.out.replies());
        self.phase == Phase::Draining && self.out.busy && !has_input && self.in_flight == replies
    }

    /// A receive is over while no more requests are taken.
    pub(crate) fn receive_ended(&mut self, tickets: &mut Tickets, pool: &mut Pool) {
        self.abandon_input(tickets, pool);
    }

    /// Starts whatever send and receive this connection needs now.
    pub(crate) fn pump(&mut self, ring: &Ring, tickets: &mut Tickets, pool: &mut Pool) {
        match self.phase {
            Phase::Handshake => self.pump_negotiation(ring),
            Phase::Transmission => {
                self.pump_send(ring, pool);
                self.pump_receive(ring, tickets);
            }
            Phase::Draining => {
                self.pump_send(ring, pool);
                if self.in_flight == 0 && self.has_said_goodbye(ring) {
                    self.kill(tickets, pool);
                }
            }
            Phase::Dead => {
                let freed = self.out.discard(pool);
                self.freed(freed);
            }
        }
    }

    fn pump_negotiation(&mut self, ring: &Ring) {
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
            // Whoever waits may have sent as many options as there is room for.
            self.input.busy = !waits || !self.input.room().is_empty();
            if self.input.busy {
                ring.receive(self.index, self.fd, self.input.room());
            }
        }
    }

    #[inline]
    pub(crate) fn pump_send(&mut self, ring: &Ring, pool: &mut Pool) {
        if self.tls.is_some() {
            return self.pump_secure_send(ring, pool);
        }
        if !self.out.busy && (self.out.has_gathered() || self.out.has_rest()) {
            self.history.progress.note();
            ring.send_message(self.index, self.fd, self.out.start());
        }
    }

    #[inline]
    fn pump_receive(&mut self, ring: &Ring, tickets: &mut Tickets) {
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
        if let Some(Incoming { ticket: Some(id), filled, total, kept: true, .. }) = self.incoming
            && let Ticket { memory: Memory::Buffer(buffer), head_bytes, .. } = tickets.get(id)
        {
            let rest = buffer.start().wrapping_add(*head_bytes as usize + filled as usize);
            let message = self.input.message((rest, (total - filled) as usize));
            return ring.receive_message(self.index, self.fd, message);
        }
        ring.receive(self.index, self.fd, self.input.room());
    }

    /// Answers a request that is refused.
    pub(crate) fn refuse(&mut self, refusal: &Refusal) {
        self.in_flight += 1;
        let Refusal { reply, errno, why } = *refusal;
        self.out.push(|buffer| reply.failure(buffer, errno, why));
    }

    /// Whether nothing is outstanding on its socket, so that it does not hear of a client that
    /// leaves: it waits for drives or for memory.
    #[inline]
    pub(crate) fn is_unwatched(&self) -> bool {
        !self.input.busy && !self.out.busy && self.phase != Phase::Dead
    }

    /// Whether it can be freed.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Dead && !self.input.busy && !self.out.busy
    }
}

mod tls_io;

#[cfg(test)]
mod tests;
