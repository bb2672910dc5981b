//! Counters of vhost-user exports: what each I/O thread counts for itself, summed by whoever asks.
//!
//! Published by the threads (counters.rs); read by the server's observers.

use crate::counters::Counters;

/// What an export, or one of its threads, did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VhostStats {
    /// Requests taken off rings.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Kicks of the guest that were seen.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// System calls on the data path: turns of the ring that entered the kernel, and interrupts.
    pub system_calls: u64,
    /// Times requests were given to the drives together.
    pub batches: u64,
    /// Times it waited for more requests before.
    pub holds: u64,
    /// Polls that ended because something came.
    pub poll_hits: u64,
    /// Polls in vain.
    pub poll_misses: u64,
    /// Time spent polling, in nanoseconds.
    pub poll_ns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Rings that guests broke.
    pub broken: u64,
    /// Rings in service now.
    pub queues: u64,
}

/// Counters of a thread.
pub(crate) const FIELDS: usize = 14;

impl Counters<FIELDS> for VhostStats {
    fn fields(&mut self) -> [&mut u64; FIELDS] {
        [
            &mut self.requests,
            &mut self.errors,
            &mut self.in_flight,
            &mut self.kicks,
            &mut self.interrupts,
            &mut self.system_calls,
            &mut self.batches,
            &mut self.holds,
            &mut self.poll_hits,
            &mut self.poll_misses,
            &mut self.poll_ns,
            &mut self.sleeps,
            &mut self.broken,
            &mut self.queues,
        ]
    }
}

impl VhostStats {
    /// Adds another's counters to these.
    pub fn add(&mut self, other: VhostStats) {
        self.add_fields(other);
    }
}
