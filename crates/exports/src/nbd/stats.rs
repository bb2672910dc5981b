//! Counters of the server, declared in one table.
//!
//! Each I/O thread has its own counters and publishes them (counters.rs); `Server::stats` adds them
//! up. Reports and metrics are generated from the rows of that table.

crate::counter_table! {
/// Counters of a server since its start, and gauges of its present state.
pub struct ServerStats {
    connections_accepted counter "connections_accepted" "/connections/accepted"
        "Connections accepted.",
    connections_refused counter "connections_refused" "/connections/refused"
        "Connections refused: a limit was reached, or the client is not allowed to connect.",
    protocol_errors counter "protocol_errors" "/connections/protocol_errors"
        "Connections closed for a protocol violation.",
    handshake_timeouts counter "handshake_timeouts" "/connections/handshake_timeouts"
        "Connections closed because the negotiation took too long.",
    stalled counter "stalled" "/connections/stalled"
        "Connections closed because the client stalled.",
    requests counter "requests" "/requests" "Requests received.",
    errors counter "errors" "/errors" "Requests answered with an error.",
    copied_bytes counter "copied_bytes" "/copied_bytes" "Bytes of write payload that were copied.",
    bounced counter "bounced" "/bounced"
        "Reads, writes and zeroings that were not aligned to the block size.",
    memory_waits counter "memory_waits" "/memory_waits"
        "Requests that had to wait for payload memory.",
    receives counter "receives" "/receives" "Receives completed.",
    sends counter "sends" "/sends" "Sends completed.",
    system_calls counter "system_calls" "/system_calls"
        "System calls that the I/O threads made for I/O.",
    connections gauge "connections" "/connections/open" "Connections open now.",
    requests_in_flight gauge "requests_in_flight" "/requests_in_flight" "Requests in flight now.",
    buffers_in_use gauge "buffers_in_use" "/buffers_in_use" "Payload buffers in use now.",
    memory_waiting gauge "memory_waiting" "/memory_waiting"
        "Connections that wait for payload memory now.",
    buffer_bytes gauge "buffer_bytes" "/buffer_bytes" "Memory mapped for payload now.",
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::CounterTable;

    #[test]
    fn counters_of_all_threads_are_summed_field_by_field() {
        let mut counts = ServerStats::default();
        for (number, field) in (1..).zip(counts.fields()) {
            *field = number;
        }
        assert_eq!(
            (counts.connections_accepted, counts.copied_bytes, counts.buffer_bytes),
            (1, 8, 18)
        );
        let published = crate::counters::PublishedCounters::default();
        published.publish(counts);
        let mut total: ServerStats = published.read();
        assert_eq!(total, counts);
        total.add(published.read());
        assert_eq!(
            total.values(),
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].map(|one| 2 * one)
        );
    }
}
