//! Counters of the server: one row each.
//!
//! Each I/O thread counts for itself and publishes (counters.rs); `Server::stats` adds up. Reports
//! and metrics list [`ServerStats::ROWS`], so that a new counter is a row here and the line that
//! counts.

use crate::counters::Counters;

/// A counter of the server, as reports and metrics have it.
#[derive(Debug, Clone, Copy)]
pub struct ServerCounter {
    /// A part of the metric's name.
    pub name: &'static str,
    /// `counter`, which only grows, or `gauge`.
    pub kind: &'static str,
    /// Its place in a report, as a JSON pointer.
    pub pointer: &'static str,
    /// A sentence for readers of the metric.
    pub help: &'static str,
    /// Its field.
    pub field: fn(&mut ServerStats) -> &mut u64,
}

/// A row: name, kind, place in reports, help.
macro_rules! server_counters {
    ($($name:ident $kind:ident $pointer:literal $help:literal,)*) => {
        /// What a server did so far and what it holds now.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct ServerStats {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl ServerStats {
            /// All its counters, in the order of metrics.
            pub const ROWS: [ServerCounter; [$($help),*].len()] = [$(ServerCounter {
                name: stringify!($name),
                kind: stringify!($kind),
                pointer: $pointer,
                help: $help,
                field: |stats| &mut stats.$name,
            }),*];
        }

        impl Counters<FIELDS> for ServerStats {
            fn fields(&mut self) -> [&mut u64; FIELDS] {
                [$(&mut self.$name),*]
            }
        }
    };
}

pub(crate) const FIELDS: usize = ServerStats::ROWS.len();

server_counters! {
    connections_accepted counter "/connections/accepted" "Connections accepted.",
    connections_refused counter "/connections/refused" "Connections refused as too many.",
    protocol_errors counter "/connections/protocol_errors"
        "Connections closed for a breach of the protocol.",
    handshake_timeouts counter "/connections/handshake_timeouts"
        "Connections closed as their negotiation took too long.",
    stalled counter "/connections/stalled" "Connections closed as their client stood still.",
    requests counter "/requests" "Requests received.",
    errors counter "/errors" "Requests answered with an error.",
    copied_bytes counter "/copied_bytes" "Bytes of write payload that were copied.",
    bounced counter "/bounced" "Requests that began or ended within a block.",
    memory_waits counter "/memory_waits" "Times a request had to wait for payload memory.",
    receives counter "/receives" "Receives completed.",
    sends counter "/sends" "Sends completed.",
    system_calls counter "/system_calls" "System calls of the I/O threads for data.",
    connections gauge "/connections/open" "Connections open now.",
    requests_in_flight gauge "/requests_in_flight" "Requests in flight now.",
    buffers_in_use gauge "/buffers_in_use" "Payload buffers in use now.",
    buffer_bytes gauge "/buffer_bytes" "Memory mapped for payload now.",
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
            (counts.connections_accepted, counts.copied_bytes, counts.buffer_bytes),
            (1, 8, 17)
        );
        let published = crate::counters::PublishedCounters::default();
        published.publish(counts);
        let mut total: ServerStats = published.read();
        assert_eq!(total, counts);
        total.add_fields(published.read());
        assert_eq!(
            total.fields().map(|field| *field),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17].map(|one| 2 * one)
        );
    }
}
