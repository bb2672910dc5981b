//! Counters of the server, declared in one table.
//!
//! Each I/O thread counts for itself and publishes (counters.rs); `Server::stats` adds up. Reports
//! and metrics are made from [`ServerStats::ROWS`], so a new counter needs a row here and the line
//! that counts.

use crate::counters::Counters;

/// Declaration of one counter for reports and metrics.
#[derive(Debug, Clone, Copy)]
pub struct ServerCounter {
    /// Part of the metric's name.
    pub name: &'static str,
    /// `counter` if it only grows, else `gauge`.
    pub kind: &'static str,
    /// JSON pointer to its value in a report.
    pub pointer: &'static str,
    /// Help text of the metric.
    pub help: &'static str,
    /// Accessor of the counter's field.
    pub field: fn(&mut ServerStats) -> &mut u64,
}

/// Declares counters by rows of name, kind, JSON pointer and help.
macro_rules! server_counters {
    ($($name:ident $kind:ident $pointer:literal $help:literal,)*) => {
        /// Counters of a server since its start, and gauges of its present state.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct ServerStats {
            $(#[doc = $help] pub $name: u64,)*
        }

        impl ServerStats {
            /// All counters, in the order of the metrics.
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
    connections_refused counter "/connections/refused" "Connections refused because the limit was reached.",
    protocol_errors counter "/connections/protocol_errors"
        "Connections closed for a protocol violation.",
    handshake_timeouts counter "/connections/handshake_timeouts"
        "Connections closed because the negotiation took too long.",
    stalled counter "/connections/stalled" "Connections closed because the client stalled.",
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
