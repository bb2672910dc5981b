//! `Failures`: the last failed I/Os of a drive, and their total number.
//!
//! An operator needs the operation, the sectors and the reason, not only a count. The drive's
//! `Disk` owns its failures behind a lock of its own, taken once for each failed bio and by
//! readers. The lock is the last in the lock order. complete.rs adds an entry where a bio ends with
//! an error; drive monitors read them. Kernel counterpart: `blk_print_req_error`.

use alloc::string::String;
use alloc::vec::Vec;

use crate::bio::status::Status;
use crate::bio::{Op, Sector, SectorCount};

const KEPT: usize = 4;

/// One I/O that failed at a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The operation of the I/O.
    pub op: Op,
    /// First sector of the I/O on the drive, in units of 512 bytes.
    pub sector: Sector,
    /// Length in sectors; 0 for a flush.
    pub nr_sectors: SectorCount,
    /// The error that the I/O ended with.
    pub status: Status,
}

/// The failed I/Os of a drive, and the drive's present faults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failures {
    /// I/Os that failed since the drive was opened.
    pub count: u64,
    /// The last few failed I/Os, the oldest first.
    pub last: Vec<Failure>,
    /// True while the drive has lost its server and is reconnecting. Requests then fail after the
    /// drive's own time limit for reconnecting, not after the request timeout.
    pub reconnecting: bool,
    /// Description of the drive's present fault, if any; see `Driver::trouble`.
    pub trouble: Option<String>,
    /// Reason of the failure if the last flush failed; see `Driver::flush_trouble`.
    pub flush_trouble: Option<String>,
}

impl Failures {
    /// Counts a failed I/O, and keeps the last few.
    pub(crate) fn note(&mut self, failure: Failure) {
        if self.last.len() == KEPT {
            self.last.remove(0);
        }
        self.last.push(failure);
        self.count += 1;
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
        let mut log = Failures::default();
        assert_eq!(log, Failures::default());
        (0..2).for_each(|sector| log.note(failure(sector)));
        assert_eq!(
            log,
            Failures { count: 2, last: [failure(0), failure(1)].into(), ..Failures::default() }
        );
        (2..11).for_each(|sector| log.note(failure(sector)));
        let last = (7..11).map(failure).collect();
        assert_eq!(log, Failures { count: 11, last, ..Failures::default() });
    }
}
