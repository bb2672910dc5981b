//! `IoError`: the error of a failed I/O on a device, with the range of the I/O.
//!
//! The error also names the drive that failed, if the failure log of exactly one drive has a
//! matching entry. An entry matches if it has the same operation and the same status, at a sector
//! in the range. For a flush, the sector does not matter.

use std::fmt;
use std::io;

use millrace_block::{Bio, Layout, Op, SECTOR_SHIFT, Status};

use crate::Volume;

/// Failure of an I/O of [`BlockDevice`](crate::BlockDevice) or [`AsyncDevice`](crate::AsyncDevice).
///
/// The error is wrapped in an [`io::Error`] whose kind follows from the status's errno.
///
/// # Example
///
/// ```
/// use millrace::{BlockDevice, IoError, Status};
///
/// let mut disk = BlockDevice::stripe(&["fault:drive=(ram:size=1m),dead=on"])?;
/// let error = disk.write_at(4096, &[0; 512]).unwrap_err();
/// let text = "volume stripe: write of 512 bytes at 4096 failed on drive d0: drive is offline";
/// assert_eq!(error.to_string(), text);
/// let why = error.get_ref().and_then(|why| why.downcast_ref::<IoError>());
/// assert_eq!(why.map(|why| why.status), Some(Status::Offline));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoError {
    /// Operation that failed.
    pub op: Op,
    /// Offset in the volume, in bytes; 0 for a flush. For a long transfer, the offset of the part
    /// that failed.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a flush.
    pub len_bytes: u64,
    /// Name of the volume.
    pub volume: String,
    /// Name of the drive that failed, if known.
    pub drive: Option<String>,
    /// Status of the I/O. [`Status::errno`] returns its Linux errno.
    pub status: Status,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {}: {}", self.volume, self.op.name())?;
        if self.op != Op::Flush {
            write!(f, " of {} bytes at {}", self.len_bytes, self.offset_bytes)?;
        }
        f.write_str(" failed")?;
        if let Some(drive) = &self.drive {
            write!(f, " on drive {drive}")?;
        }
        write!(f, ": {}", self.status)
    }
}

impl std::error::Error for IoError {}

impl From<IoError> for io::Error {
    fn from(error: IoError) -> io::Error {
        let kind = io::Error::from_raw_os_error(error.status.errno()).kind();
        io::Error::new(kind, error)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct IoRange {
    pub(crate) op: Op,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

impl IoRange {
    pub(crate) const FLUSH: IoRange = IoRange { op: Op::Flush, offset_bytes: 0, len_bytes: 0 };

    /// Makes the bio of a flush, discard or write of zeroes. The length must be below 2 TiB.
    pub(crate) fn bio_without_data(self) -> Bio {
        let (sector, count) = (self.offset_bytes >> SECTOR_SHIFT, self.len_bytes >> SECTOR_SHIFT);
        match self.op {
            Op::Discard => Bio::discard(sector, count as u32),
            Op::WriteZeroes => Bio::write_zeroes(sector, count as u32),
            _ => Bio::flush(),
        }
    }

    pub(crate) fn outcome(self, volume: &Volume, status: Status) -> io::Result<()> {
        if status.is_ok() { Ok(()) } else { Err(self.failed(volume, status).into()) }
    }

    #[cold]
    fn failed(self, volume: &Volume, status: Status) -> IoError {
        let IoRange { op, offset_bytes, len_bytes } = self;
        let (volume_name, drive) = (volume.name().to_owned(), self.drive(volume, status));
        IoError { op, offset_bytes, len_bytes, volume: volume_name, drive, status }
    }

    /// Returns the name of the drive that failed, according to the drives' failure logs. Returns
    /// `None` if no log, or more than one log, has an entry for this failure. For example, no log
    /// has an entry if the block layer itself refused the I/O.
    fn drive(self, volume: &Volume, status: Status) -> Option<String> {
        let range = self.offset_bytes..self.offset_bytes + self.len_bytes;
        let mut failed = (0..volume.disks().len()).filter(|number| {
            volume.disks()[*number].failures().last.iter().any(|failure| {
                let at = || place(volume, *number, failure.sector) << SECTOR_SHIFT;
                let is_there = self.op == Op::Flush || range.contains(&at());
                failure.op == self.op && failure.status == status && is_there
            })
        });
        let first = failed.next()?;
        failed.next().is_none().then(|| volume.disks()[first].name().to_owned())
    }
}

/// Converts a sector of one of the volume's drives to the sector of the volume that is stored
/// there.
fn place(volume: &Volume, drive: usize, sector: u64) -> u64 {
    match volume.layout() {
        Layout::Linear => {
            let block = u64::from(volume.limits().logical_block_size) >> SECTOR_SHIFT;
            let whole = |sectors: u64| sectors / block.max(1) * block.max(1);
            sector + volume.disks()[..drive].iter().map(|disk| whole(disk.capacity())).sum::<u64>()
        }
        Layout::Stripe { chunk_sectors } => {
            let (chunk, drives) = (u64::from(chunk_sectors), volume.disks().len() as u64);
            (sector / chunk * drives + drive as u64) * chunk + sector % chunk
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, VolumeOptions, build_volume};

    fn text(result: io::Result<()>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn the_drive_that_failed_is_named_with_the_place() {
        let bad = "fault:drive=(ram:size=4m),range=64k-128k,status=eio,op=write";
        let drives = ["ram:size=4m", bad];
        let mut disk = BlockDevice::stripe(&drives).unwrap();
        // The second chunk of the second drive is the fourth of the stripe.
        let said = "volume stripe: write of 4096 bytes at 200704 failed on drive d1: I/O error";
        assert_eq!(text(disk.write_at(200_704, &[1; 4096])), said);
        let error = disk.write_at(0, &[1; 1 << 20]).unwrap_err();
        let said = "volume stripe: write of 262144 bytes at 0 failed on drive d1: I/O error";
        assert_eq!((error.to_string().as_str(), error.raw_os_error()), (said, None));
        let drives = drives.map(|spec| spec.parse().unwrap());
        let options = VolumeOptions::default();
        let (volume, _) = build_volume("v", Layout::Linear, &drives, &options).unwrap();
        let mut disk = BlockDevice::open(&volume).unwrap();
        let said = "volume v: write of 512 bytes at 4259840 failed on drive d1: I/O error";
        assert_eq!(text(disk.write_at((4 << 20) + (64 << 10), &[1; 512])), said);
        disk.write_at(4 << 20, &[1; 512]).unwrap();
    }

    #[test]
    fn of_two_drives_that_may_be_meant_none_is_named() {
        let mut disk =
            BlockDevice::stripe(&["fault:drive=(ram:size=1m),op=flush,status=eio,volatile=on"; 2]);
        let said = text(disk.as_mut().unwrap().flush());
        assert!(said.starts_with("volume stripe: flush failed"), "{said}");
        let said = text(disk.unwrap().flush());
        assert_eq!(said, "volume stripe: flush failed: I/O error");
    }
}
