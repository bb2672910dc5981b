//! Counters of the server: written by each I/O thread for itself, summed by whoever asks.
//!
//! A thread counts in plain numbers and publishes them once per turn of its loop. Owned by the
//! shared state; called by the workers and by `Server::stats`.
//!
//! Invariant: one writer per [`Published`]; a reader may see counters of different turns.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a server did so far and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections turned away because there were too many.
    pub refused: u64,
    /// Connections closed because the client broke the protocol.
    pub protocol_errors: u64,
    /// Connections closed because the negotiation took too long.
    pub handshake_timeouts: u64,
    /// Connections closed because the client neither read its replies nor sent its payload.
    pub stalled: u64,
    /// Requests received.
    pub requests: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// What was copied.
    pub copied: Copied,
    /// Receives completed.
    pub receives: u64,
    /// Sends completed.
    pub sends: u64,
    /// System calls of the I/O threads on the data path.
    pub system_calls: u64,
    /// Requests in flight now.
    pub requests_in_flight: u64,
    /// Payload buffers in use now.
    pub buffers_in_use: u64,
    /// Bytes of memory mapped for payload now.
    pub buffer_bytes: u64,
}

/// What a server copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of write payload copied once, out of a receive buffer.
    pub bytes: u64,
    /// Requests that began or ended within a block.
    pub bounced: u64,
}

const FIELDS: usize = 15;

impl ServerStats {
    /// The fields that are summed over threads.
    fn fields(&mut self) -> [&mut u64; FIELDS] {
        [
            &mut self.connections,
            &mut self.accepted,
            &mut self.refused,
            &mut self.protocol_errors,
            &mut self.handshake_timeouts,
            &mut self.stalled,
            &mut self.requests,
            &mut self.errors,
            &mut self.copied.bytes,
            &mut self.copied.bounced,
            &mut self.receives,
            &mut self.sends,
            &mut self.system_calls,
            &mut self.requests_in_flight,
            &mut self.buffers_in_use,
        ]
    }
}

/// The counters of one thread, for other threads to read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Published([AtomicU64; FIELDS]);

impl Published {
    pub(crate) fn publish(&self, mut counts: ServerStats) {
        for (cell, value) in self.0.iter().zip(counts.fields()) {
            // Relaxed: statistics, which order nothing.
            cell.store(*value, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_to(&self, total: &mut ServerStats) {
        for (cell, sum) in self.0.iter().zip(total.fields()) {
            // Relaxed: as above.
            *sum += cell.load(Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_threads_are_summed_field_by_field() {
        let mut counts = ServerStats::default();
        for (number, field) in (1..).zip(counts.fields()) {
            *field = number;
        }
        assert_eq!((counts.connections, counts.copied.bytes, counts.buffers_in_use), (1, 9, 15));
        let (published, mut total) = (Published::default(), ServerStats::default());
        published.publish(counts);
        published.add_to(&mut total);
        assert_eq!(total, counts);
        published.add_to(&mut total);
        assert_eq!(
            total.fields().map(|field| *field),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|one| 2 * one)
        );
    }
}
