//! Counts I/O errors of an export, for monitoring.
//!
//! The I/O threads of the NBD and vhost-user servers count the errors when requests complete;
//! observers read the counts. Invariant: only failures of drives count, never requests that were
//! invalid.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use millrace_block::Status;

/// I/O errors of one export since the server started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportErrors {
    /// Name of the export.
    pub export: String,
    /// Number of requests that failed at the export's drives.
    pub count: u64,
    /// Text of the last failure; empty if there was none.
    pub last: &'static str,
}

/// Counter of an export's I/O errors. All threads share it, because errors are rare.
#[derive(Debug, Default)]
pub(crate) struct IoErrorCounter {
    count: AtomicU64,
    last_errno: AtomicI32,
}

impl IoErrorCounter {
    /// Counts a failed request, unless the request itself was invalid.
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
        // Relaxed: these are statistics; no other memory access depends on them.
        self.last_errno.store(status.errno(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self, export: &str) -> ExportErrors {
        // Relaxed: these are statistics; no other memory access depends on them.
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
        let faults = IoErrorCounter::default();
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
