//! Counters of the server: what each I/O thread counts for itself, summed by whoever asks.
//!
//! Published by the threads (counters.rs); read by `Server::stats`.

use crate::counters::Counters;

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
    /// Payload of requests.
    pub payload: PayloadCounts,
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

/// How a server handled payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PayloadCounts {
    /// Bytes of write payload copied once, out of a receive buffer.
    pub copied_bytes: u64,
    /// Requests that began or ended within a block.
    pub bounced: u64,
    /// Times a request had to wait for memory.
    pub memory_waits: u64,
}

/// Counters that are summed over threads.
pub(crate) const FIELDS: usize = 16;

impl Counters<FIELDS> for ServerStats {
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
            &mut self.payload.copied_bytes,
            &mut self.payload.bounced,
            &mut self.payload.memory_waits,
            &mut self.receives,
            &mut self.sends,
            &mut self.system_calls,
            &mut self.requests_in_flight,
            &mut self.buffers_in_use,
        ]
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
        assert_eq!(
            (counts.connections, counts.payload.copied_bytes, counts.buffers_in_use),
            (1, 9, 16)
        );
        let published = crate::counters::PublishedCounters::default();
        published.publish(counts);
        let mut total: ServerStats = published.read();
        assert_eq!(total, counts);
        total.add_fields(published.read());
        assert_eq!(
            total.fields().map(|field| *field),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16].map(|one| 2 * one)
        );
    }
}
