//! Counters of the server: written by each I/O thread for itself, summed by whoever asks.
//!
//! A thread counts in plain numbers and publishes them once per turn of its loop. Owned by the
//! shared state; called by the workers and by `Server::stats`.
//!
//! Invariant: one writer per [`Published`]; a reader may see counters of different turns.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use millrace_block::Status;

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

/// I/O errors of one export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportErrors {
    /// The export's name.
    pub export: String,
    /// Requests that failed because of its drives.
    pub count: u64,
    /// The last of these failures, in words; empty without one.
    pub last: &'static str,
}

/// Counts the I/O errors of an export; written by all threads, as errors are rare.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    count: AtomicU64,
    last_errno: AtomicI32,
}

impl Faults {
    /// Counts a failed request, unless the client's request was at fault.
    pub(crate) fn note(&self, status: Status) {
        if matches!(
            status,
            Status::Ok
                | Status::NotSupported
                | Status::Invalid
                | Status::OutOfRange
                | Status::ReadOnly
                | Status::Aborted
        ) {
            return;
        }
        // Relaxed: statistics, which order nothing.
        self.last_errno.store(status.errno(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, export: &str) -> ExportErrors {
        // Relaxed: as above.
        let count = self.count.load(Ordering::Relaxed);
        let errno = self.last_errno.load(Ordering::Relaxed);
        let last = if errno == 0 { "" } else { Status::from_errno(errno).text() };
        ExportErrors { export: export.to_owned(), count, last }
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

    #[test]
    fn faults_of_drives_are_counted_with_the_last_in_words() {
        let faults = Faults::default();
        for status in [Status::Ok, Status::Invalid, Status::ReadOnly, Status::Aborted] {
            faults.note(status);
        }
        let none = ExportErrors { export: "x".to_owned(), count: 0, last: "" };
        assert_eq!(faults.report("x"), none);
        faults.note(Status::TimedOut);
        faults.note(Status::NoSpace);
        let two = ExportErrors { count: 2, last: Status::NoSpace.text(), ..none };
        assert_eq!(faults.report("x"), two);
    }
}
