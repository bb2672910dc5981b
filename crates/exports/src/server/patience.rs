//! How long an I/O thread waits for its clients: to catch up with replies, and to go on at all.
//!
//! A connection that receives only when its client has caught up does so after [`CATCH_UP_NS`]
//! anyway: the client may be one that reads nothing before it has sent a long write. A connection
//! whose send, or whose receive of a payload that has begun, moves nothing for the stall timeout is
//! closed, as it keeps memory from others. Called by the worker's turn.
//!
//! Invariants: the list of those that catch up is in the order of time; an entry whose connection
//! waits no longer, or waits anew, is passed over. A stall is found by looking a few times per
//! timeout, so progress costs an addition and no clock; it is never found early.

use std::collections::VecDeque;

use super::connection::Connection;
use super::worker::{Worker, touch};

/// Longest wait for a client to catch up before the next receive.
const CATCH_UP_NS: u64 = 2_000_000;
/// Looks at every connection per stall timeout.
const LOOKS: u32 = 4;

/// Whether the client of a connection moves.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Sends and receives that moved something, and sends that were started.
    moves: u32,
    /// `moves` at the last look.
    seen: u32,
    /// Looks in a row that found no move.
    still: u32,
}

impl Progress {
    /// Something moved, or began to wait for its client.
    #[inline]
    pub(crate) fn note(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// Looks at it; true if it waits and nothing has moved for [`LOOKS`] whole periods.
    fn is_stalled(&mut self, waits: bool) -> bool {
        if !waits || self.moves != self.seen {
            (self.seen, self.still) = (self.moves, 0);
            return false;
        }
        self.still += 1;
        self.still >= LOOKS
    }
}

/// What an I/O thread is waiting for.
pub(crate) struct Patience {
    /// Since when which connections catch up.
    catching: VecDeque<(u64, usize)>,
    /// When to look for stalls again.
    look_ns: u64,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { catching: VecDeque::with_capacity(256), look_ns: 0 }
    }

    /// Remembers that a connection catches up.
    #[inline]
    pub(crate) fn watch(&mut self, conn: &Connection) {
        if conn.out.catching_ns != 0 {
            self.catching.push_back((conn.out.catching_ns, conn.index));
        }
    }

    /// When to look again; `connections` are open.
    pub(crate) fn deadline(
        &mut self,
        conns: &[Option<Box<Connection>>],
        connections: u64,
    ) -> Option<u64> {
        while let Some((since_ns, index)) = self.catching.front().copied() {
            if conns[index].as_ref().is_some_and(|conn| conn.out.catching_ns == since_ns) {
                return Some(self.look_ns.min(since_ns + CATCH_UP_NS));
            }
            self.catching.pop_front();
        }
        (connections > 0).then_some(self.look_ns)
    }
}

impl Worker {
    /// Receives from those that had their time to catch up, and ends those that stand still.
    pub(crate) fn lose_patience(&mut self, now_ns: u64) {
        while let Some((since_ns, index)) = self.patience.catching.front().copied() {
            if since_ns + CATCH_UP_NS > now_ns {
                break;
            }
            self.patience.catching.pop_front();
            let conn = self.conns[index].as_ref();
            if conn.is_some_and(|conn| conn.out.catching_ns == since_ns) {
                self.ring.cancel_catch_up(index);
            }
        }
        let timeout_ns = self.shared.stall_timeout();
        let period_ns = (timeout_ns / u64::from(LOOKS)).max(1);
        // The timeout may have become shorter since the last look.
        let at_ns = self.patience.look_ns.min(now_ns.saturating_add(period_ns));
        self.patience.look_ns = at_ns;
        if at_ns <= now_ns {
            self.patience.look_ns = now_ns.saturating_add(period_ns);
            self.end_stalled();
        }
    }

    fn end_stalled(&mut self) {
        for conn in self.conns.iter_mut().flatten() {
            let waits = conn.waits_for_client();
            if conn.progress.is_stalled(waits) {
                self.core.counts.stalled += 1;
                conn.kill(&mut self.core.tickets, &mut self.core.pool);
                touch(&mut self.touched, conn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_takes_as_many_looks_without_a_move_as_there_are_per_timeout() {
        let mut progress = Progress::default();
        progress.note();
        assert!(!progress.is_stalled(true), "it moved since the last look");
        assert!((1..LOOKS).all(|_| !progress.is_stalled(true)));
        progress.note();
        assert!((0..LOOKS).all(|_| !progress.is_stalled(true)));
        assert!(!progress.is_stalled(false), "idle");
        assert!((1..LOOKS).all(|_| !progress.is_stalled(true)));
        assert!(progress.is_stalled(true));
    }
}
