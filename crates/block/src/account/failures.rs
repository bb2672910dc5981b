//! `FailureLog`: the last I/Os of a drive that failed, and how many there were.
//!
//! A person who looks after a drive needs the operation, the sectors and the reason, not a count
//! alone. The drive's `Disk` owns a log behind a lock of its own, taken once for each failed bio
//! and for nothing else; the lock is the last in the lock order. Called by complete.rs where a bio
//! ends with an error; read by whoever watches the drive. Kernel counterpart:
//! `blk_print_req_error`.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bio::status::Status;
use crate::bio::{Op, Sector, SectorCount};

/// Failed I/Os that a log keeps.
const KEPT: usize = 4;

/// One I/O that a drive failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What the drive was asked to do.
    pub op: Op,
    /// The drive's first sector of the I/O, in units of 512 bytes.
    pub sector: Sector,
    /// How many sectors the I/O has; 0 for a flush.
    pub nr_sectors: SectorCount,
    /// What came of it.
    pub status: Status,
}

/// What a drive has failed, and whether it is at fault now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failures {
    /// I/Os that failed since the drive was opened.
    pub count: u64,
    /// The last few of them, the oldest first.
    pub last: Vec<Failure>,
    /// The drive has lost its server and looks for it: its own time limit for that decides when
    /// requests fail, not a timeout.
    pub reconnecting: bool,
    /// Why the drive is not whole now, in words; see `Driver::trouble`.
    pub trouble: Option<String>,
    /// Why the last flush failed, in words; see `Driver::flush_trouble`.
    pub flush_trouble: Option<String>,
}

/// The log itself.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    count: u64,
    ring: [Option<Failure>; KEPT],
}

impl FailureLog {
    /// Notes a failed I/O.
    pub(crate) fn note(&mut self, failure: Failure) {
        // The remainder is below KEPT.
        self.ring[(self.count % KEPT as u64) as usize] = Some(failure);
        self.count += 1;
    }

    /// What it holds now.
    pub(crate) fn read(&self) -> Failures {
        let first = self.count.saturating_sub(KEPT as u64);
        let at = |number: u64| self.ring[(number % KEPT as u64) as usize];
        let last = (first..self.count).filter_map(at).collect();
        Failures { count: self.count, last, ..Failures::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(sector: Sector) -> Failure {
        Failure { op: Op::Read, sector, nr_sectors: 8, status: Status::IoError }
    }

    #[test]
    fn a_log_keeps_the_last_failures_in_order_and_counts_all() {
        let mut log = FailureLog::default();
        assert_eq!(log.read(), Failures::default());
        (0..2).for_each(|sector| log.note(failure(sector)));
        assert_eq!(
            log.read(),
            Failures { count: 2, last: [failure(0), failure(1)].into(), ..Failures::default() }
        );
        (2..11).for_each(|sector| log.note(failure(sector)));
        let last = (7..11).map(failure).collect();
        assert_eq!(log.read(), Failures { count: 11, last, ..Failures::default() });
    }
}
