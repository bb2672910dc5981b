//! An I/O thread of the server: its connections, its channels and its event loop.
//!
//! One iteration of the loop has these steps:
//! - Submit operations to the ring and reap completions.
//! - Turn received bytes into requests, and requests into bios.
//! - Poll the channels, and turn completed bios into replies.
//! - Start one send and one receive for each connection concerned.
//!
//! Other threads communicate with an I/O thread only through [`ServerState`] and the thread's
//! doorbell.
//!
//! Invariant: when the thread ends, the channels are dropped first, then the ring, then connections
//! and pool. Memory that the kernel or a drive may still access is leaked.

mod admission;
pub(crate) mod client_timers;
pub(crate) mod drain;
mod flush;
mod memory_retry;
pub(crate) mod overdue;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use millrace_block::Error;
use millrace_machine::{LOOK_NS, Machine, Native};
use millrace_reactor::Completion;
use millrace_runtime::{IoConfig, IoContext};

use self::client_timers::{ClientTimers, LANE_IDLE_NS};
use super::clients;
use super::connection::client_log;
use super::connection::{Connection, ConnectionPhase};
use super::execute::WorkerContext;
use super::execute::tls::TlsTurnLimits;
use super::memory::{BufferPool, trim_heap};
use super::ring::{SocketEvent, SocketRing, close_now, set_send_buffer, set_tcp_options};
use super::server_state::{FlushPart, NegotiationCount, ServerState, ThreadMessage, client_number};
use super::stats::ServerStats;
use super::submit::Submitter;
use super::submit::ticket::{Ticket, TicketMemory, TicketState};
use crate::descriptors;
use crate::nbd::memory::waiting_line::MemoryWait;

/// Number of ended connections after which the heap is trimmed: `CLOSED_FEW` if no connection is
/// open, else `CLOSED_MANY`. Each connection used about 200 KiB of heap.
const CLOSED_FEW: u32 = 16;
const CLOSED_MANY: u32 = 256;
const ACCEPT_RETRY_NS: u64 = 100_000_000;

pub(crate) struct Worker {
    pub(crate) core: WorkerContext,
    pub(crate) ring: SocketRing,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) number: usize,
    pub(crate) conns: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    unfinished: Vec<usize>,
    completions: Vec<Completion>,
    /// Deadline, index and serial number of negotiating connections, oldest first.
    handshakes: VecDeque<(u64, usize, u64)>,
    pub(crate) client_timers: ClientTimers,
    pub(crate) seen_changes: u64,
    accepting: AcceptState,
    pub(crate) flush_part: Option<FlushPart>,
}

#[derive(Default)]
struct AcceptState {
    /// Number of connections that ended since the heap was last trimmed.
    closed: u32,
    serial: u64,
    /// Counter of connections. The next connection goes to the thread whose index is this counter
    /// modulo the number of threads.
    next_thread: usize,
    /// Listeners whose `accept` failed, and the time at which to accept again.
    failed: Vec<usize>,
    again_ns: Option<u64>,
}

impl Worker {
    /// Makes the calling thread an I/O thread of the server.
    pub(crate) fn new(shared: &Arc<ServerState>, number: usize) -> Result<Worker, Error> {
        let flush_part = Some(FlushPart(Arc::clone(shared)));
        let config = IoConfig { number: number as u16, reactor: shared.reactor };
        let mut ctx = IoContext::new(config)?;
        shared.mailboxes[number].set_bell(Arc::clone(ctx.bell()));
        let handle = ctx.reactor().handle();
        let budget = Arc::clone(&shared.budget);
        let pool = BufferPool::new(budget, handle.clone(), shared.idle_bytes_max, number);
        let (exports, zeroes) = (shared.exports(), Arc::clone(&shared.zeroes));
        let submitter = Submitter::new(Arc::clone(&zeroes), number);
        let mut core = WorkerContext {
            ctx,
            exports,
            submitter,
            pool,
            zeroes,
            counts: ServerStats::default(),
            threads: shared.mailboxes.len(),
            shared: Arc::clone(shared),
            secure: TlsTurnLimits::default(),
            touched: Vec::new(),
        };
        let place = (number, shared.mailboxes.len());
        core.submitter.lanes.open_early(&mut core.ctx, place, &core.exports.volumes)?;
        Ok(Worker {
            core,
            ring: SocketRing::new(handle),
            shared: Arc::clone(shared),
            number,
            conns: Vec::new(),
            free: Vec::new(),
            unfinished: Vec::new(),
            completions: Vec::with_capacity(256),
            handshakes: VecDeque::new(),
            client_timers: ClientTimers::default(),
            seen_changes: 0,
            accepting: AcceptState::default(),
            flush_part,
        })
    }

    /// Runs one iteration of the loop. Sleeps until `limit_ns` at most if there is nothing to do.
    pub(crate) fn turn(&mut self, limit_ns: Option<u64>) -> Result<(), Error> {
        let deadline_ns = self.deadline(limit_ns);
        self.client_timers.clock.expect(deadline_ns);
        let WorkerContext { ctx, submitter, .. } = &mut self.core;
        let (shared, number) = (&self.shared, self.number);
        let (seen, unfinished) = (self.seen_changes, !self.unfinished.is_empty());
        let stopping = limit_ns.is_some();
        ctx.turn(deadline_ns, || {
            unfinished
                || submitter.lanes.iter().any(|lane| lane.channel.has_work())
                || !shared.mailboxes[number].is_empty()
                || shared.changes() != seen
                || (!stopping && shared.ending.stop.is_given())
        })?;
        self.follow_changes();
        follow_exports(self);
        self.core.secure.start_turn();
        self.take_unfinished();
        self.take_completions();
        self.take_messages();
        self.timers();
        loop {
            self.core.submitter.fresh = false;
            self.core.submitter.poll();
            self.answer();
            if self.core.submitter.ranges_changed {
                self.core.submitter.follow_ranges();
            }
            self.retry_memory_waits();
            if !self.core.submitter.fresh {
                break;
            }
        }
        self.pump();
        self.share_memory();
        if std::mem::take(&mut self.core.submitter.ranges_changed) {
            self.ring_others();
        }
        self.publish();
        Ok(())
    }

    fn deadline(&mut self, limit_ns: Option<u64>) -> Option<u64> {
        let client_timers = self.client_timer_deadline();
        // The thread wakes up at least every `LOOK_NS` to detect a pause of the whole process,
        // because a pause should not count as handshake time.
        let look = |(deadline_ns, _): (u64, usize)| deadline_ns.min(Native::now() + LOOK_NS);
        let handshake = self.oldest_handshake().map(look);
        let overdue = self.core.submitter.overdue_deadline();
        let channels =
            self.core.submitter.lanes.iter_mut().filter_map(|lane| lane.channel.sleep_until());
        let others = [limit_ns, handshake, self.accepting.again_ns, client_timers, overdue];
        channels.chain(others.into_iter().flatten()).min()
    }

    /// Returns deadline and index of the connection that has negotiated longest. Forgets
    /// connections that have ended their negotiation.
    fn oldest_handshake(&mut self) -> Option<(u64, usize)> {
        while let Some((deadline_ns, index, serial)) = self.handshakes.front().copied() {
            let conn = self.conns[index].as_ref().filter(|conn| conn.serial == serial);
            if conn.is_some_and(|conn| conn.phase == ConnectionPhase::Handshake) {
                return Some((deadline_ns, index));
            }
            self.handshakes.pop_front();
        }
        None
    }

    fn take_unfinished(&mut self) {
        for index in self.unfinished.drain(..) {
            if let Some(conn) = self.conns[index].as_mut() {
                self.core.take_input(conn);
            }
        }
    }

    fn take_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.take(&mut completions);
        for Completion { user_data, result, .. } in completions.drain(..) {
            let event = SocketEvent::of(user_data);
            let index = match event {
                SocketEvent::Received(index)
                | SocketEvent::Caught(index)
                | SocketEvent::Sent(index) => index,
                SocketEvent::Accepted(listener) => {
                    self.accepted(listener, result);
                    continue;
                }
                SocketEvent::Other => continue,
            };
            let Some(conn) = self.conns[index].as_mut() else { continue };
            conn.touch(&mut self.core.touched);
            match event {
                SocketEvent::Received(_) => self.core.received(conn, result),
                SocketEvent::Caught(_) => self.core.caught_up(conn),
                _ => self.sent(index, result),
            }
        }
        self.completions = completions;
    }

    fn sent(&mut self, index: usize, result: i32) {
        let Some(conn) = self.conns[index].as_mut() else { return };
        self.core.counts.sends += 1;
        if conn.negotiation.is_some() {
            return self.core.sent_answers(conn, result);
        }
        let bytes = usize::try_from(result).unwrap_or(0);
        let mut has_rest = false;
        if let Some(tls) = &mut conn.tls {
            conn.out.busy = false;
            tls.session.sent(bytes);
            has_rest = !tls.session.output().is_empty();
        } else {
            let freed = conn.out.sent(bytes, &mut self.core.pool);
            conn.freed(freed);
        }
        if bytes == 0 {
            return self.core.kill(conn);
        }
        conn.moved(bytes);
        // Sends the rest of the replies before the thread takes further requests of the client, so
        // that the client can read replies while the thread processes these requests.
        if (has_rest || conn.out.has_rest()) && conn.phase == ConnectionPhase::Transmission {
            conn.turn.has_more = true;
            conn.pump_send(&self.ring, &mut self.core.pool);
        } else {
            self.core.take_input(conn);
        }
    }

    fn accept_all(&mut self) {
        if self.number == 0 {
            let exports = Arc::clone(&self.core.exports);
            exports.listeners().for_each(|listener| accept_on(self, listener));
        }
    }

    fn accepted(&mut self, listener: usize, result: i32) {
        if result == -libc::ECANCELED || self.shared.ending.stop.is_given() {
            if result >= 0 {
                close_now(result);
            }
            return;
        }
        let result = match result >= 0 && !descriptors::may_keep(result) {
            true => {
                close_now(result);
                self.core.counts.connections_refused += 1;
                -libc::EMFILE
            }
            false => result,
        };
        if result < 0 {
            self.accepting.again_ns = Some(Native::now() + ACCEPT_RETRY_NS);
            self.accepting.failed.push(listener);
            if let Some(catalog) = self.core.exports.catalog(listener) {
                self.core.secure.not_accepted(&catalog.address, -result);
            }
            return;
        }
        accept_on(self, listener);
        let exports = Arc::clone(&self.core.exports);
        let Some(catalog) = exports.catalog(listener) else { return close_now(result) };
        if let Some(Err(who)) = catalog.access.allow.as_ref().map(|allow| allow.check(result)) {
            self.core.counts.connections_refused += 1;
            self.core.secure.stranger(&catalog.address, &who);
            return close_now(result);
        }
        if !self.admit(result, listener) {
            self.core.counts.connections_refused += 1;
            return close_now(result);
        }
        self.core.counts.connections_accepted += 1;
        let thread = self.accepting.next_thread % self.shared.mailboxes.len();
        self.accepting.next_thread += 1;
        if thread == self.number {
            self.open(result, listener);
        } else {
            self.shared.mailboxes[thread].put(ThreadMessage::Connection(result, listener));
        }
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.shared.mailboxes[self.number].take() {
            match message {
                ThreadMessage::Connection(fd, _) if self.shared.ending.stop.is_given() => {
                    close_now(fd);
                    self.shared.dismiss();
                }
                ThreadMessage::Connection(fd, listener) => self.open(fd, listener),
                ThreadMessage::Report(to) => clients::report(self, &to),
                ThreadMessage::Disconnect(number, to) => clients::disconnect(self, number, &to),
                ThreadMessage::Answer { connection, serial, demand } => {
                    let conn = self.conns[connection].as_mut();
                    if let Some(conn) = conn.filter(|conn| conn.serial == serial) {
                        self.core.answered(conn, demand);
                    }
                }
            }
        }
    }

    fn open(&mut self, fd: RawFd, listener: usize) {
        let exports = Arc::clone(&self.core.exports);
        let Some(catalog) = exports.catalog(listener) else {
            // The listener was removed after it had accepted the connection.
            self.shared.dismiss();
            return close_now(fd);
        };
        set_tcp_options(fd);
        set_send_buffer(fd);
        let index = self.free.pop().unwrap_or(self.conns.len());
        if index == self.conns.len() {
            self.conns.push(None);
        }
        self.accepting.serial += 1;
        self.core.counts.connections += 1;
        let conn = Connection::new(fd, index, self.accepting.serial, listener);
        let conn = self.conns[index].insert(conn);
        conn.history.number = client_number(self.number, index);
        let mode = catalog.tls.as_ref().map(|tls| tls.mode).unwrap_or_default();
        conn.expect(mode, NegotiationCount::new(&self.shared));
        client_log::connected(conn, &catalog.address);
        let deadline_ns = Native::now().saturating_add(self.shared.handshake_timeout_ns);
        self.handshakes.push_back((deadline_ns, index, self.accepting.serial));
        conn.touch(&mut self.core.touched);
    }

    fn timers(&mut self) {
        for lane in self.core.submitter.lanes.iter_mut() {
            if lane.channel.in_flight() > 0 {
                lane.channel.tick();
            }
        }
        // Every time limit that `deadline` considers must be handled here. Otherwise a limit that
        // has passed would stay the earliest one, and the thread would never sleep again.
        let now_ns = Native::now();
        let pause_ns = self.client_timers.clock.look(now_ns, LOOK_NS);
        if pause_ns > 0 {
            self.forgive(pause_ns);
        }
        self.end_overdue();
        let client_timer_ns = self.client_timer_deadline();
        let is_due = client_timer_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let is_bare = self.core.counts.connections == 0 && !is_due;
        if is_bare && self.accepting.again_ns.is_none() {
            return;
        }
        self.client_timers.give_back_unused(&mut self.core.pool, now_ns);
        self.client_timers.end_unused_lanes(&mut self.core, now_ns);
        self.run_client_timers(now_ns);
        while let Some((_, index)) = self.oldest_handshake().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.handshakes.pop_front();
            let Some(conn) = self.conns[index].as_mut() else { continue };
            let timeout_ns = self.shared.handshake_timeout_ns;
            if let Some(until_ns) = conn.negotiates_until(now_ns, timeout_ns) {
                self.handshakes.push_back((until_ns, index, conn.serial));
                continue;
            }
            self.core.counts.handshake_timeouts += 1;
            client_log::ended(conn, "the handshake took longer than its timeout");
            self.core.kill(conn);
        }
        if self.accepting.again_ns.take_if(|at_ns| *at_ns <= now_ns).is_some() {
            let failed = std::mem::take(&mut self.accepting.failed);
            failed.into_iter().for_each(|listener| accept_on(self, listener));
        }
    }

    /// Extends all time limits by `pause_ns`, during which the thread did not run.
    #[cold]
    fn forgive(&mut self, pause_ns: u64) {
        for (deadline_ns, ..) in &mut self.handshakes {
            *deadline_ns = deadline_ns.saturating_add(pause_ns);
        }
        for lane in self.core.submitter.lanes.iter_mut() {
            lane.look_ns = lane.look_ns.saturating_add(pause_ns);
        }
        self.client_timers.forgive(pause_ns);
    }

    pub(crate) fn follow_changes(&mut self) {
        let changes = self.shared.changes();
        if changes != self.seen_changes {
            self.seen_changes = changes;
            self.core.submitter.follow_ranges();
        }
    }

    pub(crate) fn ring_others(&self) {
        // `note_change` also makes this thread run another loop iteration, because its own
        // connections may wait for memory that was freed.
        self.shared.note_change();
        let others = self.shared.mailboxes.iter().enumerate();
        others.filter(|(thread, _)| *thread != self.number).for_each(|(_, mailbox)| mailbox.ring());
    }

    fn answer(&mut self) {
        let mut done = std::mem::take(&mut self.core.submitter.done);
        for (id, status) in done.drain(..) {
            let Some(ticket) = self.core.submitter.advance(id, status) else { continue };
            let conn = self.conns[ticket.owner.conn as usize].as_mut();
            let Some(conn) = conn.filter(|conn| awaits(conn, &ticket)) else {
                if let TicketMemory::Buffer(buffer) = ticket.memory {
                    self.core.pool.give(buffer);
                }
                continue;
            };
            if conn.phase == ConnectionPhase::Dead {
                conn.in_flight -= 1;
                conn.give_back(ticket.memory, &mut self.core.pool);
            } else {
                self.core.answer(conn, ticket, status);
                if conn.memory_wait == MemoryWait::Buffers {
                    self.core.submitter.retry.push(conn.index);
                }
            }
            conn.touch(&mut self.core.touched);
        }
        // `submitter.done` may already contain new entries, for requests whose next bio was
        // rejected at once. The loop in `turn` answers these requests in its next pass. Each call
        // of `submit` causes another pass, even if the bio was rejected.
        done.append(&mut self.core.submitter.done);
        self.core.submitter.done = done;
    }

    fn pump(&mut self) {
        for at in 0..self.core.touched.len() {
            let index = self.core.touched[at];
            let Some(conn) = self.conns[index].as_mut() else { continue };
            conn.history.touched = false;
            let catching_ns = conn.out.catching_ns;
            conn.pump(&self.ring, &mut self.core.submitter.tickets, &mut self.core.pool);
            if conn.phase == ConnectionPhase::Dead {
                conn.pump(&self.ring, &mut self.core.submitter.tickets, &mut self.core.pool);
            }
            if conn.out.catching_ns == 0 && conn.waits_to_send() {
                conn.out.catching_ns = Native::now();
            }
            if conn.out.catching_ns != catching_ns {
                self.client_timers.watch(conn);
            }
            if conn.turn.end()
                && matches!(conn.phase, ConnectionPhase::Handshake | ConnectionPhase::Transmission)
            {
                self.unfinished.push(index);
            }
            if conn.is_over() {
                self.close(index);
            } else if conn.is_unwatched() {
                self.client_timers.watch_unwatched(conn);
            }
        }
        self.core.touched.clear();
    }

    fn close(&mut self, index: usize) {
        let Some(conn) = self.conns[index].take() else { return };
        client_log::left(&conn);
        self.ring.close(conn.fd);
        if let Some(granted) = &conn.granted {
            let lane = &mut self.core.submitter.lanes[granted.lane as usize];
            lane.clients -= 1;
            if lane.clients == 0 {
                let export = conn.history.export.as_ref();
                let stays = export.is_some_and(|(export, _)| self.core.exports.keeps(export));
                let at_ns = if stays { Native::now() + LANE_IDLE_NS } else { 0 };
                self.client_timers.expect_unused_lane(at_ns);
            }
        }
        if conn.in_flight > 0 {
            // Drops only requests that no drive processes yet. All other requests stay in the
            // request table, and their memory is freed when they complete.
            self.core.submitter.drop_waiting_of(conn.serial, &mut self.core.pool);
        }
        self.free.push(index);
        self.core.counts.connections -= 1;
        self.shared.dismiss();
        self.accepting.closed += 1;
        let is_last = self.free.len() == self.conns.len();
        if is_last {
            self.core.pool.trim();
        }
        if self.accepting.closed >= if is_last { CLOSED_FEW } else { CLOSED_MANY } {
            self.accepting.closed = 0;
            trim_heap();
        }
    }

    pub(crate) fn publish(&mut self) {
        self.core.counts.requests_in_flight = self.core.submitter.tickets.in_use() as u64;
        self.core.counts.buffers_in_use = self.core.pool.in_use() as u64;
        self.core.counts.system_calls = self.core.ctx.reactor().counters().system_calls;
        self.shared.published[self.number].publish(self.core.counts);
    }
}

fn accept_on(worker: &Worker, listener: usize) {
    if let Some(socket) = worker.shared.socket(listener) {
        worker.ring.accept(listener, socket);
    }
}

fn follow_exports(worker: &mut Worker) {
    let Some((exports, version)) = worker.shared.served.newer(worker.number) else { return };
    let before = std::mem::replace(&mut worker.core.exports, Arc::clone(&exports));
    if worker.number == 0 {
        let is_gone = |listener: &usize| exports.catalog(*listener).is_none();
        before.listeners().filter(is_gone).for_each(|gone| worker.ring.cancel_accept(gone));
        let is_new = |listener: &usize| before.catalog(*listener).is_none();
        exports.listeners().filter(is_new).for_each(|listener| accept_on(worker, listener));
    }
    for conn in worker.conns.iter_mut().flatten() {
        let goes_on = match (&conn.history.export, &conn.negotiation) {
            (Some((export, _)), _) => exports.keeps(export),
            (None, Some(negotiation)) => {
                let has_listener = exports.catalog(negotiation.listener).is_some();
                has_listener && negotiation.export().is_none_or(|export| exports.keeps(export))
            }
            (None, None) => true,
        };
        if !goes_on {
            client_log::ended(conn, "its export was removed");
            worker.core.end_session(conn);
        }
    }
    worker.core.submitter.lanes.keep_only(&exports.volumes);
    // Removed volumes may have no client left. So the thread checks at once for volumes to close.
    worker.client_timers.expect_unused_lane(0);
    worker.shared.served.note_served(worker.number, version);
}

/// Returns true if the request came from this connection, and its client has not been answered yet.
#[inline]
fn awaits(conn: &Connection, ticket: &Ticket) -> bool {
    conn.serial == ticket.owner.serial && ticket.state != TicketState::Overdue
}

#[cfg(test)]
mod tests;
