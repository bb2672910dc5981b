//! Probes a file or block device: size, alignment, direct I/O, discard.
//!
//! Alignment comes from statx (STATX_DIOALIGN, Linux 6.1) or from trial reads; properties of
//! devices come from the BLK* ioctls and sysfs. Kernel counterparts: bdev_limits and `struct
//! kstat`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use millrace_block::Buffer;
use millrace_machine::lock_unpoisoned;
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags, fallocate, fstatvfs, seek, statx};
use rustix::io::Errno;

// ioctl numbers of linux/fs.h, because the libc crate lacks some of them. The values belong to the
// generic ABI (x86, Arm, RISC-V, s390).
const BLKROGET: u64 = 0x125e;
const BLKSSZGET: u64 = 0x1268;
const BLKPBSZGET: u64 = 0x127b;
const BLKIOMIN: u64 = 0x1278;
const BLKIOOPT: u64 = 0x1279;
const BLKGETSIZE64: u64 = 0x8008_1272;

/// Maximum length of merged requests, in bytes, on a device that states no preferred length. Most
/// devices spend 50 to 100 us of overhead on each request, about as long as they need to transfer
/// this many bytes. Longer requests save little overhead, and leave the device idle while they
/// complete.
const MERGE_BYTES: u64 = 128 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectAlign {
    pub(crate) memory: u32,
    pub(crate) offset: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileGeometry {
    pub(crate) is_block: bool,
    pub(crate) size_bytes: u64,
    /// Size of the file or device in bytes; a drive may use only its first part.
    pub(crate) store_bytes: u64,
    pub(crate) logical: u32,
    pub(crate) physical: u32,
    pub(crate) io_min: u32,
    pub(crate) io_opt: u32,
    /// Length in bytes up to which merging smaller requests improves throughput.
    pub(crate) merge_bytes: u32,
    pub(crate) discard_granularity: u32,
    pub(crate) max_discard_bytes: u64,
    pub(crate) read_only: bool,
    /// Number of requests that a block device accepts before the kernel waits for a completion.
    pub(crate) tags: Option<u32>,
    /// Identity: (device, inode) of a file, (device number, 0) of a block device.
    pub(crate) identity: (u64, u64),
}

pub(crate) fn geometry(file: &File) -> io::Result<FileGeometry> {
    let meta = file.metadata()?;
    if meta.file_type().is_block_device() {
        return device(file, meta.rdev());
    }
    if !meta.is_file() {
        return Err(io::Error::other(
            "this is neither a regular file nor a block device; name one of these",
        ));
    }
    let block = u32::try_from(meta.blksize()).unwrap_or(4096).clamp(512, 65_536);
    Ok(FileGeometry {
        is_block: false,
        size_bytes: meta.len(),
        store_bytes: meta.len(),
        logical: 512,
        physical: block.max(4096).next_power_of_two().min(65_536),
        io_min: 512,
        io_opt: 0,
        merge_bytes: merge_bytes_of(meta.dev()),
        discard_granularity: block,
        max_discard_bytes: u64::MAX,
        read_only: false,
        tags: None,
        identity: (meta.dev(), meta.ino()),
    })
}

fn device(file: &File, rdev: u64) -> io::Result<FileGeometry> {
    let size_bytes: u64 = ask(file, BLKGETSIZE64)?;
    let logical: u32 = ask(file, BLKSSZGET)?;
    let number = |name| queue_number(rdev, name).unwrap_or(0);
    Ok(FileGeometry {
        is_block: true,
        size_bytes,
        store_bytes: size_bytes,
        logical,
        physical: ask(file, BLKPBSZGET).unwrap_or(logical).max(logical),
        io_min: ask(file, BLKIOMIN).unwrap_or(logical),
        io_opt: ask(file, BLKIOOPT).unwrap_or(0),
        merge_bytes: merge_bytes_of(rdev),
        discard_granularity: u32::try_from(number("discard_granularity")).unwrap_or(logical),
        max_discard_bytes: number("discard_max_bytes"),
        read_only: ask::<u32>(file, BLKROGET).unwrap_or(0) != 0,
        tags: tags(rdev),
        identity: (rdev, 0),
    })
}

/// Returns the maximum length of merged requests for a device, or for the device below a file
/// system. File systems without a single block device (overlays, networks) get the default.
fn merge_bytes_of(dev: u64) -> u32 {
    static LAST: Mutex<Option<(u64, u32, Instant)>> = Mutex::new(None);
    /// Time for which a device's maximum length of merged requests is cached, because thousands of
    /// files on the device may be opened one after the other.
    const FRESH: Duration = Duration::from_secs(1);
    let mut last = lock_unpoisoned(&LAST);
    if let Some((known, bytes, asked)) = *last
        && known == dev
        && asked.elapsed() < FRESH
    {
        return bytes;
    }
    let number = |name| queue_number(dev, name).unwrap_or(0);
    let bytes = merge_bytes(number("optimal_io_size"), number("max_sectors_kb") << 10);
    *last = Some((dev, bytes, Instant::now()));
    bytes
}

/// Returns the maximum length of merged requests for a device, in bytes. `optimal` is the device's
/// optimal I/O size, where 0 means unknown. `longest` is its longest request, where 0 means no
/// limit.
fn merge_bytes(optimal: u64, longest: u64) -> u32 {
    let wanted = if optimal == 0 { MERGE_BYTES } else { optimal };
    let most = if longest == 0 { wanted } else { longest };
    u32::try_from(wanted.min(most)).unwrap_or(u32::MAX)
}

fn ask<T: Default>(file: &File, request: u64) -> io::Result<T> {
    let mut value = T::default();
    // SAFETY: the requests of this file write one number of the type that their callers name.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, &raw mut value) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Returns the total number of tags of a device's hardware queues, or `None` if the device has no
/// such queues, as with md and most of dm.
fn tags(rdev: u64) -> Option<u32> {
    let queues = of_disk(rdev, "mq", |path| std::fs::read_dir(path).ok().map(Iterator::count))?;
    let tags = queue_number(rdev, "nr_requests")?.saturating_mul(queues as u64);
    u32::try_from(tags).ok().filter(|tags| *tags > 0)
}

/// Reads a number from the queue directory of the device, or of the disk that it is a partition of.
fn queue_number(rdev: u64, name: &str) -> Option<u64> {
    of_disk(rdev, &format!("queue/{name}"), |path| {
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    })
}

fn of_disk<T>(rdev: u64, place: &str, read: impl Fn(String) -> Option<T>) -> Option<T> {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    ["", "../"].iter().find_map(|up| read(format!("/sys/dev/block/{major}:{minor}/{up}{place}")))
}

/// Returns the alignment of a file opened with `O_DIRECT`, or `None` if direct I/O does not work.
pub(crate) fn direct_align(file: &File) -> Option<DirectAlign> {
    match statx_align(file) {
        Some(align) => (align.offset != 0).then_some(align),
        None => probe_align(file),
    }
}

fn statx_align(file: &File) -> Option<DirectAlign> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_known = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let (memory, offset) = (found.stx_dio_mem_align, found.stx_dio_offset_align);
    is_known.then_some(DirectAlign { memory, offset })
}

fn probe_align(file: &File) -> Option<DirectAlign> {
    let mut buffer = Buffer::new(8192);
    [512u32, 4096].into_iter().find_map(|unit| {
        let (start, len) = (buffer.as_mut_ptr(), unit as usize);
        // SAFETY: reads at most `len` bytes into a live buffer of 8192, from byte `len` of it on.
        let read =
            unsafe { libc::pread(file.as_raw_fd(), start.add(len).cast(), len, i64::from(unit)) };
        (read >= 0).then_some(DirectAlign { memory: unit, offset: unit })
    })
}

/// Returns true if the file system supports `mode` of fallocate(2). `mode` must include
/// FALLOC_FL_KEEP_SIZE. The call is made for a range beyond the end of the file, so that it changes
/// no data. A range beyond the end of the drive could hold data, because the file may be longer
/// than the drive.
pub(crate) fn can_allocate(file: &File, mode: i32) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let behind = metadata.len().next_multiple_of(1 << 20);
    fallocate(file, FallocateFlags::from_bits_retain(mode as u32), behind, 4096).is_ok()
}

pub(crate) fn free_bytes(file: &File) -> Option<u64> {
    fstatvfs(file).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextData {
    /// Offset of the first data at or after the start of the search.
    Data(u64),
    /// There are no data at or after the start of the search. Contains the file's size in bytes.
    End(u64),
}

pub(crate) fn next_data(file: &File, offset: u64) -> io::Result<NextData> {
    match seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => Ok(NextData::End(seek(file, SeekFrom::End(0))?)),
        start => Ok(NextData::Data(start?)),
    }
}

pub(crate) fn data_end(file: &File, offset: u64) -> io::Result<u64> {
    Ok(seek(file, SeekFrom::Hole(offset))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_goes_as_far_as_the_device_likes_and_takes() {
        assert_eq!(merge_bytes(0, 0), 128 << 10, "nothing is known");
        assert_eq!(merge_bytes(0, 4 << 20), 128 << 10);
        assert_eq!(merge_bytes(512 << 10, 4 << 20), 512 << 10);
        assert_eq!(merge_bytes(16 << 10, 4 << 20), 16 << 10);
        assert_eq!(merge_bytes(512 << 10, 256 << 10), 256 << 10);
        assert_eq!(merge_bytes(0, 64 << 10), 64 << 10);
        assert_eq!(merge_bytes(u64::MAX, 0), u32::MAX);
    }

    #[test]
    fn every_disk_with_queues_has_tags_and_so_has_its_partition() {
        let Ok(devices) = std::fs::read_dir("/sys/dev/block") else { return };
        for device in devices.map(|device| device.unwrap().path()) {
            let name = device.file_name().unwrap().to_string_lossy().into_owned();
            let (major, minor) = name.split_once(':').unwrap();
            let rdev = libc::makedev(major.parse().unwrap(), minor.parse().unwrap());
            let has_queues = [device.join("mq"), device.join("../mq")].iter().any(|mq| mq.exists());
            assert_eq!(tags(rdev).is_some(), has_queues, "{name}");
        }
        assert_eq!(tags(libc::makedev(0, 0)), None);
    }
}
