//! `Status`: the outcome of one I/O, and its one table to errno and text.
//!
//! Produced by drivers and by the layer's own checks, carried by requests and bios to whoever
//! submitted. Set-up errors are another thing (`Error`), and so is flow control (`Dispatch`).
//! Kernel counterpart: `blk_status_t` and `blk_errors` in block/blk-core.c.

/// The outcome of one I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The medium or the path to it failed.
    IoError,
    /// No space left on the drive's store.
    NoSpace,
    /// No answer from the drive within the timeout.
    TimedOut,
    /// The drive cannot do this operation.
    NotSupported,
    /// Misaligned, malformed, or against the limits.
    Invalid,
    /// Reaches past the end.
    OutOfRange,
    /// A write to a read-only drive.
    ReadOnly,
    /// No memory or other resource for it.
    NoResource,
    /// The drive is gone.
    Offline,
    /// Given up because the layer is shutting down.
    Aborted,
}

/// One row a status: itself, errno, text.
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
    /// True for [`Status::Ok`].
    #[must_use]
    pub fn is_ok(self) -> bool {
        self == Status::Ok
    }

    /// The errno of Linux, positive; 0 for ok.
    #[must_use]
    pub fn errno(self) -> i32 {
        TABLE[self as usize].1
    }

    /// A few words.
    #[must_use]
    pub fn text(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// The status of a positive errno; unknown ones are I/O errors.
    #[must_use]
    pub fn from_errno(errno: i32) -> Status {
        match errno {
            // EFBIG is what a file system says past its largest file, EDQUOT past a quota.
            27 | 122 => Status::NoSpace,
            // ENXIO, ESHUTDOWN.
            6 | 108 => Status::Offline,
            // EPERM, EROFS.
            1 => Status::ReadOnly,
            _ => TABLE.iter().find(|row| row.1 == errno).map_or(Status::IoError, |row| row.0),
        }
    }

    /// This one unless it is ok, then `other`: the first error wins.
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
    fn numbers_of_the_same_meaning_have_one_status_and_unknown_ones_are_io_errors() {
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
