//! Detects clients that transfer no data, or that transfer data too slowly while other clients wait
//! for memory.
//!
//! Counting a transfer costs an addition and no clock read: client_timers.rs checks the counters a
//! few times per timeout. Invariant: a stall is never reported early.

/// Number of checks of a client per period. A period is the stall timeout, or the time for a
/// measurement of the client's transfer rate.
pub(crate) const LOOKS: u32 = 4;
/// Lowest rate, in bytes per second, at which a client may transfer data while other clients wait
/// for memory.
const PRESSED_BYTES_PER_S: u64 = 64 << 10;
const NS_PER_S: u128 = 1_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Count of all signs of progress: sends started, and sends or receives that transferred bytes.
    /// If the count is unchanged at the next check, the client made no progress.
    moves: u32,
    seen: u32,
    /// Number of consecutive checks that found no transfer by the client.
    still: u32,
    bytes: u64,
    /// Time at which the measurement of the client's transfer rate began, in ns; 0 if none.
    since_ns: u64,
    /// Number of bytes that the client had transferred when the rate measurement began.
    since_bytes: u64,
}

impl Progress {
    #[inline]
    pub(crate) fn note(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.note();
        self.bytes += bytes as u64;
    }

    pub(crate) fn restart_rate(&mut self, now_ns: u64) {
        (self.since_ns, self.since_bytes) = (now_ns, self.bytes);
    }

    /// Returns true if the client's mean transfer rate was too low. The rate is measured over at
    /// least `period_ns`, and only after `from_ns`, when other clients began to wait for memory. A
    /// measurement that began before `from_ns` is restarted.
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

    pub(crate) fn restart_looks(&mut self) {
        (self.seen, self.still) = (self.moves, 0);
    }

    /// Checks a client for which the server waits. Returns true once [`LOOKS`] consecutive checks
    /// have found that the client neither sent nor received bytes.
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
