//! `Status`: the outcome of one I/O, with a single table that maps it to an errno and a text.
//!
//! Drivers and the block layer's own checks produce a status; requests and bios carry it back to
//! the submitter. Set-up errors have another type (`Error`), and so does flow control (`Dispatch`).
//! Kernel counterpart: `blk_status_t` and `blk_errors` in block/blk-core.c.

/// The outcome of one I/O.
#[doc(alias = "blk_status_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// The I/O succeeded.
    Ok = 0,
    /// The medium or the path to it failed.
    IoError,
    /// The drive's backing store is out of space.
    NoSpace,
    /// The drive did not answer within the request timeout.
    TimedOut,
    /// The drive does not support this operation.
    NotSupported,
    /// The I/O is misaligned, malformed or exceeds the device's limits.
    Invalid,
    /// The I/O reaches past the end of the device.
    OutOfRange,
    /// A write was sent to a read-only drive.
    ReadOnly,
    /// Memory or another resource was short.
    NoResource,
    /// The drive is gone and accepts no I/O.
    Offline,
    /// The block layer ended the I/O early, usually because the program or the drive's queue stops.
    Aborted,
}

/// One row for each status, in the order of their numbers: status, errno, text.
const TABLE: [(Status, i32, &str); 11] = [
    (Status::Ok, 0, "ok"),
    (Status::IoError, 5, "I/O error"),
    (Status::NoSpace, 28, "no space left on the drive"),
    (Status::TimedOut, 110, "timed out"),
    (Status::NotSupported, 95, "operation not supported by the drive"),
    (Status::Invalid, 22, "invalid I/O"),
    (Status::OutOfRange, 22, "past the end of the device"),
    (Status::ReadOnly, 30, "read-only device"),
    (Status::NoResource, 12, "out of memory"),
    (Status::Offline, 19, "drive is offline"),
    (Status::Aborted, 125, "aborted by shutdown"),
];

impl Status {
    /// Returns true for [`Status::Ok`].
    #[must_use]
    pub fn is_ok(self) -> bool {
        self == Status::Ok
    }

    /// Returns the Linux errno as a positive number, or 0 for success.
    #[must_use]
    pub fn errno(self) -> i32 {
        TABLE[self as usize].1
    }

    /// Returns a short description in lower case, such as "timed out".
    #[must_use]
    pub fn text(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// Returns the status for a positive Linux errno; an unknown one maps to `IoError`.
    #[must_use]
    pub fn from_errno(errno: i32) -> Status {
        match errno {
            // EFBIG, EDQUOT: a file system does not let the file grow.
            27 | 122 => Status::NoSpace,
            // ENXIO, ESHUTDOWN.
            6 | 108 => Status::Offline,
            // EPERM, EROFS.
            1 => Status::ReadOnly,
            _ => TABLE.iter().find(|row| row.1 == errno).map_or(Status::IoError, |row| row.0),
        }
    }

    /// Returns `self` if it is an error, else `other`, so that the first error wins.
    #[must_use]
    pub fn or(self, other: Status) -> Status {
        if self.is_ok() { other } else { self }
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_stands_at_its_own_number() {
        for (number, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, number);
        }
    }

    #[test]
    fn errno_of_a_status_leads_back_to_it_or_to_its_elder() {
        for row in TABLE {
            assert_eq!(Status::from_errno(row.1).errno(), row.1);
        }
    }

    #[test]
    fn statuses_have_linuxs_numbers_and_each_words_of_its_own() {
        let errnos = TABLE.map(|(status, ..)| status.errno());
        assert_eq!(errnos, [0, 5, 28, 110, 95, 22, 22, 30, 12, 19, 125]);
        for (number, (status, _, text)) in TABLE.iter().enumerate() {
            assert_eq!(status.text(), *text);
            assert!(TABLE[..number].iter().all(|row| row.0.text() != *text && !text.is_empty()));
            assert_eq!(status.is_ok(), *status == Status::Ok);
        }
    }

    #[test]
    fn equal_numbers_have_one_status_and_unknown_ones_io_errors() {
        for (errno, status) in [
            (0, Status::Ok),
            (27, Status::NoSpace),
            (28, Status::NoSpace),
            (122, Status::NoSpace),
            (6, Status::Offline),
            (19, Status::Offline),
            (108, Status::Offline),
            (1, Status::ReadOnly),
            (30, Status::ReadOnly),
            (22, Status::Invalid),
            (12, Status::NoResource),
            (5, Status::IoError),
            (2, Status::IoError),
            (4095, Status::IoError),
        ] {
            assert_eq!(Status::from_errno(errno), status, "{errno}");
        }
    }

    #[test]
    fn first_error_wins() {
        assert_eq!(Status::Ok.or(Status::NoSpace), Status::NoSpace);
        assert_eq!(Status::TimedOut.or(Status::NoSpace), Status::TimedOut);
    }
}
