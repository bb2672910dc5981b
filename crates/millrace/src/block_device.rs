//! `BlockDevice`: a volume as bytes at offsets, for a program that does one I/O after another.
//!
//! `BlockDevice` copies between the caller's memory and buffers of its own, in pieces of which
//! several are in flight at a time. A range must consist of whole logical blocks: for any other
//! range the device would have to read, change and write back a block, and could overwrite a
//! concurrent write of another thread. Kernel counterpart: an open block device with `O_DIRECT`.

use std::sync::Arc;
use std::{fmt, io};

use millrace_block::{Bio, Buffer, ChannelConfig, Error, Layout, Op, Reject, SECTOR_SHIFT, Status};

use crate::config::StartError;
use crate::io_error::IoRange;
use crate::stripe::STRIPED;
use crate::{Channel, Volume, stripe};

/// Maximum length of one bio of a transfer, in bytes.
const PIECE_BYTES: usize = 256 << 10;
const PIECES_MAX: usize = 8;

/// A volume as bytes at offsets.
///
/// Offsets and lengths must be multiples of [`BlockDevice::block_bytes`]; others are refused with
/// `InvalidInput`, as are ranges beyond the end. A write is durable after [`BlockDevice::flush`]. A
/// device stays with the thread that opened it: it is not `Send`. For several threads, open one on
/// each with [`BlockDevice::open`]. Its methods panic if the thread's ring fails, as
/// [`Channel::wait`] does.
///
/// # Example
///
/// ```
/// let mut disk = millrace::BlockDevice::stripe(&["ram:size=1m", "ram:size=1m"])?;
/// disk.write_at(65_536, &[7; 4096])?;
/// disk.flush()?;
/// let mut bytes = [0; 4096];
/// disk.read_at(65_536, &mut bytes)?;
/// assert_eq!((bytes, disk.size_bytes()), ([7; 4096], 2 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BlockDevice {
    channel: Channel,
    free: Vec<Buffer>,
    warnings: Vec<String>,
}

impl fmt::Debug for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockDevice").field("volume", self.volume()).finish_non_exhaustive()
    }
}

impl BlockDevice {
    /// Opens a device on a volume for the calling thread. Other threads may use the volume at the
    /// same time.
    ///
    /// # Errors
    /// Returns `Busy` if a drive of the volume needs a queue for each thread, as file drives do,
    /// and has none left. The error text states the number of the drive's queues. Also fails as
    /// [`Channel::open`] does.
    pub fn open(volume: &Arc<Volume>) -> Result<BlockDevice, Error> {
        let config = ChannelConfig { depth: PIECES_MAX as u32, ..ChannelConfig::default() };
        let channel = Channel::open(volume, config)?;
        Ok(BlockDevice { channel, free: Vec::new(), warnings: Vec::new() })
    }

    /// Opens drives and creates a volume that stripes over them in chunks of 64 KiB. Drives are
    /// written as specs, such as `ram:size=1g` or `file:path=/x/d0`. [`Spec`](crate::Spec) has a
    /// table of all drivers and keys.
    ///
    /// If a drive is a file, an NBD export or a Ceph image, at most
    /// [`STRIPE_THREADS`](crate::STRIPE_THREADS) threads may have a device open on
    /// [`BlockDevice::volume`] at a time. The calling thread is one of them. For more threads, open
    /// the drives with [`build_volume`](crate::build_volume). With other drives, the number of
    /// threads is not limited.
    ///
    /// # Errors
    /// Fails if a spec is invalid or its drive cannot be opened. Files that this call created are
    /// removed.
    pub fn stripe(specs: &[impl AsRef<str>]) -> Result<BlockDevice, StartError> {
        BlockDevice::over(STRIPED, specs)
    }

    /// Opens drives as [`BlockDevice::stripe`] does, but as a linear volume: one drive after the
    /// other.
    ///
    /// # Errors
    /// Fails as [`BlockDevice::stripe`] does.
    pub fn linear(specs: &[impl AsRef<str>]) -> Result<BlockDevice, StartError> {
        BlockDevice::over(Layout::Linear, specs)
    }

    /// Opens one drive as [`BlockDevice::linear`] does.
    ///
    /// # Errors
    /// Fails as [`BlockDevice::stripe`] does.
    pub fn open_drive(spec: impl AsRef<str>) -> Result<BlockDevice, StartError> {
        BlockDevice::linear(&[spec])
    }

    fn over(layout: Layout, specs: &[impl AsRef<str>]) -> Result<BlockDevice, StartError> {
        let (device, warnings) = stripe::open(layout, specs, BlockDevice::open)?;
        Ok(BlockDevice { warnings, ..device })
    }

    /// Returns remarks about the drives that were opened: a file holds an image format that writes
    /// would destroy, or a part of a drive is unused.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Accounts this device's I/O to the group `name`.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if the volume's drives have no such group.
    pub fn with_group(mut self, name: &str) -> Result<BlockDevice, Error> {
        self.channel = self.channel.with_group(name)?;
        Ok(self)
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        self.channel.volume()
    }

    /// Returns the current size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.volume().capacity() << SECTOR_SHIFT
    }

    /// Returns the logical block size in bytes. Offsets and lengths must be multiples of it.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.volume().limits().logical_block_size
    }

    /// Reads `into.len()` bytes at `offset_bytes`. After an error the contents of `into` are
    /// unspecified.
    ///
    /// # Errors
    /// Returns `InvalidInput` for a range that does not consist of whole blocks or exceeds the
    /// device, or an [`IoError`](crate::IoError) about the first part that failed.
    pub fn read_at(&mut self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        check_range(self.volume(), offset_bytes, into.len() as u64)?;
        let io = IoRange { op: Op::Read, offset_bytes, len_bytes: into.len() as u64 };
        self.transfer(
            io,
            |at, buffer| Bio::read(sector(offset_bytes, at), buffer),
            |at, buffer| into[at..at + buffer.len()].copy_from_slice(buffer),
        )
    }

    /// Writes `from` at `offset_bytes`. After an error, any of the blocks of the range may have
    /// been written.
    ///
    /// # Errors
    /// Fails as [`BlockDevice::read_at`] does.
    pub fn write_at(&mut self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        check_range(self.volume(), offset_bytes, from.len() as u64)?;
        let start = |at: usize, mut buffer: Buffer| {
            let end = at + buffer.len();
            buffer.copy_from_slice(&from[at..end]);
            Bio::write(sector(offset_bytes, at), buffer)
        };
        let io = IoRange { op: Op::Write, offset_bytes, len_bytes: from.len() as u64 };
        self.transfer(io, start, |_, _| ())
    }

    /// Makes all writes that have returned durable.
    ///
    /// # Errors
    /// Returns an [`IoError`](crate::IoError) about the first drive that failed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.run(IoRange::FLUSH)
    }

    /// Writes zeroes. No data is sent to drives that support writing zeroes. `len_bytes` must be
    /// below 2 TiB.
    ///
    /// # Errors
    /// Fails as [`BlockDevice::read_at`] does.
    pub fn write_zeroes_at(&mut self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.clear(IoRange { op: Op::WriteZeroes, offset_bytes, len_bytes })
    }

    /// Discards a range. Its contents are unspecified afterwards. `len_bytes` must be below 2 TiB.
    ///
    /// # Errors
    /// Fails as [`BlockDevice::read_at`] does.
    pub fn discard_at(&mut self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.clear(IoRange { op: Op::Discard, offset_bytes, len_bytes })
    }

    /// Transfers a range in pieces, one bio each. `start` creates a bio from its offset and a
    /// buffer. `end` gets the offset and data of each bio that succeeded.
    fn transfer(
        &mut self,
        io: IoRange,
        mut start: impl FnMut(usize, Buffer) -> Bio,
        mut end: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let len_bytes = io.len_bytes as usize;
        // `begun` is the number of bytes in bios submitted so far. `failed` is the offset and
        // status of the first bio that failed, if any.
        let (mut begun, mut failed) = (0, None);
        loop {
            let in_flight = self.channel.in_flight() as usize;
            let is_room = in_flight < PIECES_MAX && !self.channel.is_throttled();
            if begun < len_bytes && failed.is_none() && is_room {
                let buffer = self.buffer(PIECE_BYTES.min(len_bytes - begun));
                let (at, piece_bytes) = (begun, buffer.len());
                begun += piece_bytes;
                let bio = start(at, buffer).with_user_data(at as u64);
                let status = self.submit(bio);
                failed = (!status.is_ok()).then_some((at, status));
                continue;
            }
            if self.channel.in_flight() == 0 {
                break;
            }
            let free = &mut self.free;
            self.channel.wait(1, |completion| {
                let at = completion.user_data as usize;
                if !completion.status.is_ok() {
                    failed = failed.or(Some((at, completion.status)));
                }
                let Some(buffer) = completion.bio.into_buffer() else { return };
                if completion.status.is_ok() {
                    end(at, &buffer);
                }
                if buffer.len() == PIECE_BYTES {
                    free.push(buffer);
                }
            });
        }
        let Some((at, status)) = failed else { return Ok(()) };
        let (offset_bytes, len_bytes) = (io.offset_bytes + at as u64, io.len_bytes - at as u64);
        let piece = IoRange { offset_bytes, len_bytes: len_bytes.min(PIECE_BYTES as u64), ..io };
        piece.outcome(self.volume(), status)
    }

    fn clear(&mut self, io: IoRange) -> io::Result<()> {
        match check_range(self.volume(), io.offset_bytes, io.len_bytes)? {
            0 => Ok(()),
            _ => self.run(io),
        }
    }

    fn run(&mut self, io: IoRange) -> io::Result<()> {
        let mut outcome = self.submit(io.bio_without_data());
        self.channel.wait(1, |completion| outcome = outcome.or(completion.status));
        io.outcome(self.volume(), outcome)
    }

    /// Submits a bio, for which the channel must have room.
    fn submit(&mut self, bio: Bio) -> Status {
        match self.channel.submit(bio).map_err(|rejected| rejected.reason) {
            Ok(()) => Status::Ok,
            Err(Reject::Invalid(status)) => status,
            Err(Reject::Full) => {
                unreachable!("the channel has room for as many bios as there are pieces")
            }
        }
    }

    fn buffer(&mut self, len_bytes: usize) -> Buffer {
        let kept = if len_bytes == PIECE_BYTES { self.free.pop() } else { None };
        kept.unwrap_or_else(|| Buffer::new(len_bytes))
    }
}

/// Returns the length of a range in sectors. Refuses a range that does not consist of whole blocks.
pub(crate) fn check_range(volume: &Volume, offset_bytes: u64, len_bytes: u64) -> io::Result<u32> {
    let (name, block) = (volume.name(), u64::from(volume.limits().logical_block_size));
    let wrong = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if !offset_bytes.is_multiple_of(block) || !len_bytes.is_multiple_of(block) {
        return wrong(format!(
            "volume {name}: {len_bytes} bytes at {offset_bytes}: offset and length must be \
             multiples of its logical block of {block} bytes"
        ));
    }
    let size_bytes = volume.capacity() << SECTOR_SHIFT;
    if offset_bytes.checked_add(len_bytes).is_none_or(|end_bytes| end_bytes > size_bytes) {
        return wrong(format!(
            "volume {name}: {len_bytes} bytes at {offset_bytes} extend beyond its end at \
             {size_bytes}"
        ));
    }
    u32::try_from(len_bytes >> SECTOR_SHIFT)
        .or_else(|_| wrong(format!("volume {name}: {len_bytes} bytes are too many for one call")))
}

fn sector(offset_bytes: u64, at: usize) -> u64 {
    (offset_bytes + at as u64) >> SECTOR_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigPart;

    #[test]
    fn long_ranges_come_back_as_they_were_written() {
        let mut disk = BlockDevice::stripe(&["ram:size=8m", "ram:size=8m"]).unwrap();
        // More pieces than are in flight at a time, and a short one at the end.
        let bytes: Vec<u8> = (0..3_000_320_u32).map(|at| (at >> 9) as u8 ^ at as u8).collect();
        disk.write_at(512, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        disk.read_at(512, &mut read).unwrap();
        assert!(read == bytes);
        disk.write_zeroes_at(512, 1024).unwrap();
        disk.read_at(512, &mut read).unwrap();
        assert!(read[..1024] == [0; 1024] && read[1024..] == bytes[1024..]);
        disk.read_at(0, &mut []).unwrap();
    }

    #[test]
    fn ranges_that_are_not_of_whole_blocks_are_refused_with_block() {
        let mut disk = BlockDevice::stripe(&["ram:size=1m,block=4k"]).unwrap();
        let text = |result: io::Result<()>| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            error.to_string()
        };
        let said = "volume stripe: 4096 bytes at 512: offset and length must be multiples of its \
                    logical block of 4096 bytes";
        assert_eq!(text(disk.write_at(512, &[0; 4096])), said);
        let said = "volume stripe: 8192 bytes at 1044480 extend beyond its end at 1048576";
        assert_eq!(text(disk.read_at((1 << 20) - 4096, &mut [0; 8192])), said);
        assert!(text(disk.discard_at(u64::MAX - 4095, 4096)).contains("beyond its end"));
    }

    #[test]
    fn error_of_drive_has_its_status_and_leaves_device_usable() {
        let faulty = "fault:drive=(ram:size=4m),dead=on";
        let mut disk = BlockDevice::stripe(&["ram:size=4m", faulty]).unwrap();
        let error = disk.write_at(0, &[1; 1 << 20]).unwrap_err();
        let why = error.get_ref().and_then(|why| why.downcast_ref::<crate::IoError>()).unwrap();
        assert_eq!((why.status, why.drive.as_deref()), (Status::Offline, Some("d1")));
        disk.write_at(0, &[1; 4096]).unwrap();
    }

    #[test]
    fn a_wrong_spec_names_its_drive() {
        let error = BlockDevice::stripe(&["ram:size=1m", "rom:"]).unwrap_err();
        assert_eq!(error.part, ConfigPart::Drive(1));
        let text = error.to_string();
        assert!(text.starts_with("cannot open drive d1: unknown driver \"rom\""), "{text}");
    }
}
