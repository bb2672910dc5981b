//! How long an I/O thread waits for its clients: to catch up with replies, and to go on at all.
//!
//! A connection that receives only when its client has caught up, or when replies have left, does
//! so after [`CATCH_UP_NS`] anyway: the client may be one that reads nothing before it has sent a
//! long write. A connection whose send, or whose receive of a payload that has begun, moves nothing
//! for the stall timeout is closed. While others wait for memory, so is one that holds more than
//! its window and moves too little (progress.rs). One that waits for drives or memory has no
//! operation on its socket that would tell of a client that leaves, so it is asked now and then.
//! What nobody used for a while goes back to the system. Called by the worker's turn.
//!
//! Invariants: the list of those that catch up is in the order of time; an entry whose connection
//! waits no longer, or waits anew, is passed over. A stall is found by looking a few times per
//! timeout.

use std::collections::VecDeque;

use millrace_machine::RunningClock;

use super::Worker;
use crate::nbd::connection::Connection;
use crate::nbd::connection::client_log;
use crate::nbd::connection::progress::LOOKS;
use crate::nbd::execute::Core;
use crate::nbd::memory::Pool;
use crate::nbd::ring::is_gone;

/// Longest wait for a client to catch up before the next receive.
const CATCH_UP_NS: u64 = 2_000_000;
/// For how long the rate of a client that keeps memory from others is measured; the stall timeout
/// if that is shorter.
const PRESSED_NS: u64 = 4_000_000_000;
/// How often connections that wait for something else are asked whether their client is there.
const UNWATCHED_NS: u64 = 500_000_000;
/// Time between two looks at lanes without clients that have requests in flight.
const LANE_LOOK_NS: u64 = 100_000_000;
/// How long memory is kept that nobody uses.
const IDLE_NS: u64 = 2_000_000_000;
/// How long a lane without clients is kept for the next one.
pub(crate) const LANE_IDLE_NS: u64 = 2_000_000_000;

/// When an I/O thread looks at its clients again, and what for.
pub(crate) struct ClientTimers {
    /// Finds the time in which the thread did not run, which counts against no client and no drive.
    pub(super) clock: RunningClock,
    /// Connections that catch up, with the time since when.
    catching: VecDeque<(u64, usize)>,
    /// When to look for stalls again.
    look_ns: u64,
    /// When to look at rates again, and since when others wait for memory; 0: nobody does.
    rates_ns: u64,
    pressed_ns: u64,
    /// When to give unused memory back.
    idle_ns: u64,
    /// When to end lanes without clients, if there is one.
    lanes_ns: Option<u64>,
    /// Connections that may not hear of their clients' leaving, and when to ask.
    unwatched: Vec<usize>,
    unwatched_ns: u64,
}

impl ClientTimers {
    pub(crate) fn new() -> ClientTimers {
        ClientTimers {
            clock: RunningClock::new(),
            catching: VecDeque::with_capacity(256),
            look_ns: 0,
            rates_ns: 0,
            pressed_ns: 0,
            idle_ns: 0,
            lanes_ns: None,
            unwatched: Vec::with_capacity(256),
            unwatched_ns: 0,
        }
    }

    /// Remembers that a connection catches up.
    #[inline]
    pub(crate) fn watch(&mut self, conn: &Connection) {
        if conn.out.catching_ns != 0 {
            self.catching.push_back((conn.out.catching_ns, conn.index));
        }
    }

    /// Remembers that a connection has nothing outstanding on its socket.
    #[cold]
    pub(crate) fn watch_unwatched(&mut self, conn: &mut Connection) {
        if !std::mem::replace(&mut conn.history.lists.unwatched, true) {
            self.unwatched.push(conn.index);
        }
    }

    /// When to look again; `connections` are open.
    fn deadline(&mut self, conns: &[Option<Box<Connection>>], connections: u64) -> Option<u64> {
        while let Some((since_ns, index)) = self.catching.front().copied() {
            if conns[index].as_ref().is_some_and(|conn| conn.out.catching_ns == since_ns) {
                return Some(self.look_ns.min(since_ns + CATCH_UP_NS));
            }
            self.catching.pop_front();
        }
        (connections > 0).then_some(self.look_ns)
    }

    /// The thread did not run for so long: looks for stalls come later, rates are measured anew.
    pub(crate) fn forgive(&mut self, pause_ns: u64) {
        self.look_ns = self.look_ns.saturating_add(pause_ns);
        self.pressed_ns = 0;
    }

    /// The last client of a lane has left: lanes without clients end at this time.
    #[cold]
    pub(crate) fn expect_unused_lane(&mut self, at_ns: u64) {
        self.lanes_ns = Some(self.lanes_ns.map_or(at_ns, |known_ns| known_ns.min(at_ns)));
    }

    /// Ends lanes whose clients left a while ago.
    pub(crate) fn end_unused_lanes(&mut self, core: &mut Core, now_ns: u64) {
        if self.lanes_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            let ended = core.submitter.lanes.end_unused(&mut core.ctx);
            core.submitter.ranges_changed |= ended.ranges_changed;
            self.lanes_ns = ended.left.then_some(now_ns + LANE_LOOK_NS);
        }
    }

    /// Gives memory of the pool back that was not used for a while.
    pub(crate) fn give_back_unused(&mut self, pool: &mut Pool, now_ns: u64) {
        if pool.idle_bytes() > 0 && self.idle_ns <= now_ns {
            self.idle_ns = now_ns + IDLE_NS;
            pool.give_back_unneeded();
        }
    }
}

impl Worker {
    /// When to look again, whatever for.
    pub(crate) fn client_timer_deadline(&mut self) -> Option<u64> {
        let clients = self.client_timers.deadline(&self.conns, self.core.counts.connections);
        let pool = &self.core.pool;
        let idle = (pool.idle_bytes() > 0).then_some(self.client_timers.idle_ns);
        let rates = pool.budget().has_waiters().then_some(self.client_timers.rates_ns);
        let unwatched =
            (!self.client_timers.unwatched.is_empty()).then_some(self.client_timers.unwatched_ns);
        let lanes = self.client_timers.lanes_ns;
        [clients, idle, rates, unwatched, lanes].into_iter().flatten().min()
    }

    /// While others wait for memory: ends connections that hold much and whose clients hardly move.
    fn end_slow(&mut self, now_ns: u64) {
        let budget = self.core.pool.budget();
        if !budget.has_waiters() {
            self.client_timers.pressed_ns = 0;
            return;
        }
        if self.client_timers.rates_ns > now_ns {
            return;
        }
        let window_bytes = budget.window_bytes;
        let period_ns = PRESSED_NS.min(self.shared.stall_timeout());
        if self.client_timers.pressed_ns == 0 {
            self.client_timers.pressed_ns = now_ns;
        }
        self.client_timers.rates_ns = now_ns + (period_ns / u64::from(LOOKS)).max(1);
        let times = (self.client_timers.pressed_ns, now_ns);
        for conn in self.conns.iter_mut().flatten() {
            let is_watched = conn.waits_for_client() && conn.held_bytes > window_bytes;
            if !is_watched {
                conn.history.progress.restart_rate(now_ns);
            } else if conn.history.progress.is_slow(times, period_ns) {
                self.core.counts.stalled += 1;
                let why = "it reads or sends less than 64 KiB a second while other clients wait for \
                           memory; a larger memory-max leaves room for more such clients";
                client_log::too_slow(self.number, conn, why);
                conn.kill(&mut self.core.submitter.tickets, &mut self.core.pool);
                conn.touch(&mut self.touched);
            }
        }
    }

    /// Receives from those that had their time to catch up, and ends those that stand still.
    pub(crate) fn run_client_timers(&mut self, now_ns: u64) {
        while let Some((since_ns, index)) = self.client_timers.catching.front().copied() {
            if since_ns + CATCH_UP_NS > now_ns {
                break;
            }
            self.client_timers.catching.pop_front();
            let conn = self.conns[index].as_mut();
            let Some(conn) = conn.filter(|conn| conn.out.catching_ns == since_ns) else { continue };
            if conn.input.busy {
                self.ring.cancel_catch_up(index);
                continue;
            }
            conn.out.catching_ns = 0;
            conn.turn.reads_late = true;
            self.core.take_input(conn);
            conn.touch(&mut self.touched);
        }
        let timeout_ns = self.shared.stall_timeout();
        let period_ns = (timeout_ns / u64::from(LOOKS)).max(1);
        // The timeout may have become shorter since the last look.
        let at_ns = self.client_timers.look_ns.min(now_ns.saturating_add(period_ns));
        self.client_timers.look_ns = at_ns;
        if at_ns <= now_ns {
            self.client_timers.look_ns = now_ns.saturating_add(period_ns);
            self.end_stalled();
        }
        self.end_slow(now_ns);
        self.end_gone(now_ns);
    }

    /// Ends connections that wait for drives or memory and whose clients have left.
    fn end_gone(&mut self, now_ns: u64) {
        if self.client_timers.unwatched.is_empty() || self.client_timers.unwatched_ns > now_ns {
            return;
        }
        self.client_timers.unwatched_ns = now_ns + UNWATCHED_NS;
        let mut unwatched = std::mem::take(&mut self.client_timers.unwatched);
        unwatched.retain(|index| {
            let Some(conn) =
                self.conns[*index].as_mut().filter(|conn| conn.history.lists.unwatched)
            else {
                return false;
            };
            conn.history.lists.unwatched = conn.is_unwatched() && !is_gone(conn.fd);
            if conn.is_unwatched() && !conn.history.lists.unwatched {
                conn.kill(&mut self.core.submitter.tickets, &mut self.core.pool);
                conn.touch(&mut self.touched);
            }
            conn.history.lists.unwatched
        });
        self.client_timers.unwatched = unwatched;
    }

    fn end_stalled(&mut self) {
        for conn in self.conns.iter_mut().flatten() {
            if !conn.waits_for_client() {
                conn.history.progress.restart_looks();
            } else if conn.history.progress.is_stalled() {
                self.core.counts.stalled += 1;
                client_log::ended(self.number, conn, "it reads or sends nothing for too long");
                conn.kill(&mut self.core.submitter.tickets, &mut self.core.pool);
                conn.touch(&mut self.touched);
            }
        }
    }
}

#[cfg(test)]
mod tests;
