//! Whether a connection's client moves data: at all, and how much while others wait for memory.
//!
//! Belongs to a connection, which notes what moves; client_timers.rs looks a few times per timeout,
//! so progress costs an addition and no clock. Calls nothing.
//!
//! Invariant: a stall is never found early.

/// Looks at every connection per stall timeout, and per time of a measured rate.
pub(crate) const LOOKS: u32 = 4;
/// Fewest bytes a second of a client that keeps memory from others.
const PRESSED_BYTES_PER_S: u64 = 64 << 10;
/// Nanoseconds of a second.
const NS_PER_S: u128 = 1_000_000_000;

/// Whether a connection's client moves data.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Sends and receives that moved something, and sends that were started.
    moves: u32,
    /// `moves` at the last look.
    seen: u32,
    /// Looks in a row that found no move.
    still: u32,
    /// Bytes sent and received.
    bytes: u64,
    /// Since when the client's rate is measured, and `bytes` then; 0: it is not measured.
    since_ns: u64,
    since_bytes: u64,
}

impl Progress {
    /// Notes that something moved, or began to wait for the client.
    #[inline]
    pub(crate) fn note(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// Notes that this many bytes moved.
    #[inline]
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.note();
        self.bytes += bytes as u64;
    }

    /// Has the client's rate measured from now on: until now nothing waited for it.
    pub(crate) fn restart_rate(&mut self, now_ns: u64) {
        (self.since_ns, self.since_bytes) = (now_ns, self.bytes);
    }

    /// Looks at the rate of a client that is waited for; true if that lasts for `period_ns`,
    /// measured from `from_ns` on, and too little has moved.
    pub(crate) fn is_slow(&mut self, (from_ns, now_ns): (u64, u64), period_ns: u64) -> bool {
        if self.since_ns < from_ns {
            self.restart_rate(now_ns);
            return false;
        }
        let took_ns = now_ns - self.since_ns;
        if took_ns < period_ns {
            return false;
        }
        let moved = u128::from(self.bytes - self.since_bytes) * NS_PER_S;
        self.restart_rate(now_ns);
        moved < u128::from(PRESSED_BYTES_PER_S) * u128::from(took_ns)
    }

    /// Has looks counted from now on: until now nothing waited for the client.
    pub(crate) fn restart_looks(&mut self) {
        (self.seen, self.still) = (self.moves, 0);
    }

    /// Looks at a client that is waited for; true if nothing has moved for [`LOOKS`] whole periods.
    pub(crate) fn is_stalled(&mut self) -> bool {
        if self.moves != self.seen {
            self.restart_looks();
            return false;
        }
        self.still += 1;
        self.still >= LOOKS
    }
}

#[cfg(test)]
mod tests;
