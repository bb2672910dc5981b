//! Timers of an I/O thread for its clients: delayed receives, stalls and disconnects.
//!
//! - A connection may delay a receive until its client has read most replies. The delay lasts at
//!   most [`CATCH_UP_NS`], because the client may have to send a long write before it reads.
//! - A connection is closed if a send, or the receive of a payload, makes no progress during the
//!   stall timeout.
//! - While other connections wait for memory, a connection with more than its reserved memory needs
//!   a minimum transfer rate. If the rate is too low, the connection is closed (progress.rs).
//! - A socket without an outstanding operation is checked for a disconnect regularly.
//!
//! Invariant: delayed receives are listed in order of time. Entries that are no longer valid are
//! skipped.

use std::collections::VecDeque;

use millrace_machine::RunningClock;

use super::Worker;
use crate::nbd::connection::Connection;
use crate::nbd::connection::client_log;
use crate::nbd::connection::progress::LOOKS;
use crate::nbd::execute::WorkerContext;
use crate::nbd::memory::BufferPool;
use crate::nbd::ring::is_gone;

/// Maximum time, in nanoseconds, for which the server delays its next receive so that the client
/// can read replies first.
const CATCH_UP_NS: u64 = 2_000_000;
/// Maximum time, in nanoseconds, over which a client's transfer rate is measured. A shorter stall
/// timeout shortens the measurement.
const PRESSED_NS: u64 = 4_000_000_000;
const UNWATCHED_NS: u64 = 500_000_000;
/// Interval, in nanoseconds, at which a thread checks if a volume without clients has completed its
/// last requests and can be closed.
const LANE_LOOK_NS: u64 = 100_000_000;
const IDLE_NS: u64 = 2_000_000_000;
pub(crate) const LANE_IDLE_NS: u64 = 2_000_000_000;

#[derive(Default)]
pub(crate) struct ClientTimers {
    /// Detects pauses of the whole thread, which do not count against clients and drives.
    pub(super) clock: RunningClock,
    /// Connections whose receive is delayed, with the start of the delay, oldest first.
    catching: VecDeque<(u64, usize)>,
    look_ns: u64,
    rates_ns: u64,
    /// Time at which connections began to wait for memory, in nanoseconds; 0 if none waits.
    pressed_ns: u64,
    idle_ns: u64,
    lanes_ns: Option<u64>,
    /// Connections without an outstanding socket operation, whose clients may leave unnoticed.
    unwatched: Vec<usize>,
    unwatched_ns: u64,
}

impl ClientTimers {
    #[inline]
    pub(crate) fn watch(&mut self, conn: &Connection) {
        if conn.out.catching_ns != 0 {
            self.catching.push_back((conn.out.catching_ns, conn.index));
        }
    }

    #[cold]
    pub(crate) fn watch_unwatched(&mut self, conn: &mut Connection) {
        if !std::mem::replace(&mut conn.history.unwatched, true) {
            self.unwatched.push(conn.index);
        }
    }

    fn deadline(&mut self, conns: &[Option<Box<Connection>>], connections: u64) -> Option<u64> {
        while let Some((since_ns, index)) = self.catching.front().copied() {
            if conns[index].as_ref().is_some_and(|conn| conn.out.catching_ns == since_ns) {
                return Some(self.look_ns.min(since_ns + CATCH_UP_NS));
            }
            self.catching.pop_front();
        }
        (connections > 0).then_some(self.look_ns)
    }

    /// Postpones the check for stalled clients by `pause_ns`, for which the thread did not run, and
    /// restarts the measurements of transfer rates.
    pub(crate) fn forgive(&mut self, pause_ns: u64) {
        self.look_ns = self.look_ns.saturating_add(pause_ns);
        self.pressed_ns = 0;
    }

    #[cold]
    pub(crate) fn expect_unused_lane(&mut self, at_ns: u64) {
        self.lanes_ns = Some(self.lanes_ns.map_or(at_ns, |known_ns| known_ns.min(at_ns)));
    }

    pub(crate) fn end_unused_lanes(&mut self, core: &mut WorkerContext, now_ns: u64) {
        if self.lanes_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            let ended = core.submitter.lanes.end_unused(&mut core.ctx);
            core.submitter.ranges_changed |= ended.ranges_changed;
            self.lanes_ns = ended.left.then_some(now_ns + LANE_LOOK_NS);
        }
    }

    pub(crate) fn give_back_unused(&mut self, pool: &mut BufferPool, now_ns: u64) {
        if pool.idle_bytes() > 0 && self.idle_ns <= now_ns {
            self.idle_ns = now_ns + IDLE_NS;
            pool.give_back_unneeded();
        }
    }
}

impl Worker {
    pub(crate) fn client_timer_deadline(&mut self) -> Option<u64> {
        let clients = self.client_timers.deadline(&self.conns, self.core.counts.connections);
        let pool = &self.core.pool;
        let idle = (pool.idle_bytes() > 0).then_some(self.client_timers.idle_ns);
        let rates = pool.budget.has_waiters().then_some(self.client_timers.rates_ns);
        let unwatched =
            (!self.client_timers.unwatched.is_empty()).then_some(self.client_timers.unwatched_ns);
        let lanes = self.client_timers.lanes_ns;
        [clients, idle, rates, unwatched, lanes].into_iter().flatten().min()
    }

    /// While connections wait for memory, ends those that hold much memory and transfer little
    /// data.
    fn end_slow(&mut self, now_ns: u64) {
        let budget = &self.core.pool.budget;
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
                let why = "it reads or sends less than 64 KiB/s while other clients wait for \
                           memory; raise memory-max to serve more slow clients";
                client_log::broken(conn, why);
                self.core.kill(conn);
            }
        }
    }

    /// Resumes receiving from clients that have had [`CATCH_UP_NS`] to read their replies. Ends
    /// connections whose clients are stalled or have disconnected.
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
        }
        let timeout_ns = self.shared.stall_timeout();
        let period_ns = (timeout_ns / u64::from(LOOKS)).max(1);
        // Checks for stalled clients earlier than planned if the stall timeout was shortened.
        let at_ns = self.client_timers.look_ns.min(now_ns.saturating_add(period_ns));
        self.client_timers.look_ns = at_ns;
        if at_ns <= now_ns {
            self.client_timers.look_ns = now_ns.saturating_add(period_ns);
            self.end_stalled();
        }
        self.end_slow(now_ns);
        self.end_gone(now_ns);
    }

    fn end_gone(&mut self, now_ns: u64) {
        if self.client_timers.unwatched.is_empty() || self.client_timers.unwatched_ns > now_ns {
            return;
        }
        self.client_timers.unwatched_ns = now_ns + UNWATCHED_NS;
        let mut unwatched = std::mem::take(&mut self.client_timers.unwatched);
        unwatched.retain(|index| {
            let Some(conn) = self.conns[*index].as_mut().filter(|conn| conn.history.unwatched)
            else {
                return false;
            };
            conn.history.unwatched = conn.is_unwatched() && !is_gone(conn.fd);
            if conn.is_unwatched() && !conn.history.unwatched {
                self.core.kill(conn);
            }
            conn.history.unwatched
        });
        self.client_timers.unwatched = unwatched;
    }

    fn end_stalled(&mut self) {
        for conn in self.conns.iter_mut().flatten() {
            if !conn.waits_for_client() {
                conn.history.progress.restart_looks();
            } else if conn.history.progress.is_stalled() {
                self.core.counts.stalled += 1;
                client_log::ended(
                    conn,
                    "the client neither read nor sent anything during the stall timeout",
                );
                self.core.kill(conn);
            }
        }
    }
}

#[cfg(test)]
mod tests;
