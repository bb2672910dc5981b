//! I/O errors of an export, for whoever watches a server.
//!
//! Written by the I/O threads of both servers where a request ends, read through their observers.
//! Invariant: only what a drive failed at counts, not what a client asked for in vain.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use millrace_block::Status;

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
        // Relaxed: statistics, which order nothing.
        let count = self.count.load(Ordering::Relaxed);
        let errno = self.last_errno.load(Ordering::Relaxed);
        let last = if errno == 0 { "" } else { Status::from_errno(errno).text() };
        ExportErrors { export: export.to_owned(), count, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
