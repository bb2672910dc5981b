//! Locks on a drive's file, so that no one else serves the file meanwhile.
//!
//! There are two kinds: flock, which other instances of this program take, and the byte locks that
//! QEMU takes on disk images, so that neither program opens what the other one writes. Both kinds
//! of locks last as long as the file is open. A list of the files that this process has locked
//! makes a second drive on the same file fail at once. Source: block/file-posix.c of QEMU
//! (`RAW_LOCK_PERM_BASE`, `RAW_LOCK_SHARED_BASE`) and docs/system/images.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use millrace_block::{Error, ErrorKind};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::FileConfig;
use crate::common::dry_run::DryRun;
use crate::common::place::HeldData;
use crate::common::procfs::flock_holder;

/// Maximum time to wait for another process to unlock a file.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(25);
const USED_HERE: &str = "another drive of this process uses this file; name another file";

/// Offsets of QEMU's lock bytes. A program locks byte `DOES` + operation for an operation that it
/// performs on the image, and byte `FORBIDS` + operation for one that it forbids to others.
const DOES: i64 = 100;
const FORBIDS: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Locks the open file: exclusively, or shared with other readers. Returns `Busy` if a drive of
/// this process has locked the file, or if another process keeps it locked for three seconds.
pub(super) fn lock(
    file: &File,
    config: &FileConfig,
    dry_run: Option<&DryRun>,
) -> Result<HeldData, Error> {
    let meta = file.metadata().map_err(|error| config.system("stat", &error))?;
    let identity = (meta.dev(), meta.ino());
    // After a process is killed, its io_uring keeps files open longer than the process itself:
    // usually 30 to 50 ms, but more on a busy machine, because the kernel tears rings down in the
    // background.
    let until = match (dry_run, &config.opened_at) {
        (Some(dry_run), _) => dry_run.until,
        // `opened_at` is set for exports that are opened when a client asks for them. The client
        // must not wait, so a file that another process has locked is refused at once.
        (None, Some(_)) => Instant::now(),
        (None, None) => Instant::now() + PATIENCE,
    };
    loop {
        let found = match attempt(file, FileAccess::of(config)) {
            Ok(None) => return Ok(HeldData::shared(identity)),
            Ok(Some(found)) => found,
            Err(error) => return Err(config.system("lock", &error)),
        };
        // Another drive of this process has locked the file, so waiting is useless.
        if HeldData::exists(identity) {
            return Err(config.error(ErrorKind::Busy, USED_HERE));
        }
        if Instant::now() >= until || config.cancel.sleep(PAUSE) {
            return Err(config.error(ErrorKind::Busy, text(file, found)));
        }
    }
}

/// Access of a drive to its file, which decides the locks that the drive takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileAccess {
    /// The drive only reads; other processes may read, too.
    ReadOnly,
    /// The drive reads and writes, and no other process may use the file.
    ReadWrite,
}

impl FileAccess {
    fn of(config: &FileConfig) -> FileAccess {
        if config.read_only { FileAccess::ReadOnly } else { FileAccess::ReadWrite }
    }
}

#[derive(Clone, Copy)]
enum HeldLock {
    Flock,
    Bytes,
}

/// Tries to lock the file with flock(2) and QEMU's byte locks. If another process holds a
/// conflicting lock, returns the kind of that lock.
fn attempt(file: &File, access: FileAccess) -> io::Result<Option<HeldLock>> {
    let kind = match access {
        FileAccess::ReadOnly => FlockOperation::NonBlockingLockShared,
        FileAccess::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(file, kind) {
        Err(Errno::WOULDBLOCK) => return Ok(Some(HeldLock::Flock)),
        locked => locked?,
    }
    let does: &[i64] = match access {
        FileAccess::ReadOnly => &[READ],
        FileAccess::ReadWrite => &[READ, WRITE, RESIZE],
    };
    let forbids = [WRITE, RESIZE];
    // A process takes its own locks before it checks those of other processes. So if two processes
    // start at once, at least one of them finds the other's locks.
    let own = does.iter().map(|byte| DOES + byte).chain(forbids.map(|byte| FORBIDS + byte));
    for byte in own {
        if !share(file, byte)? {
            return Ok(Some(HeldLock::Bytes));
        }
    }
    let others = does.iter().map(|byte| FORBIDS + byte).chain(forbids.map(|byte| DOES + byte));
    for byte in others {
        if is_shared(file, byte)? {
            return Ok(Some(HeldLock::Bytes));
        }
    }
    Ok(None)
}

/// Takes a shared lock on a byte. Returns false if another process has locked it exclusively.
fn share(file: &File, byte: i64) -> io::Result<bool> {
    match byte_lock(file, libc::F_OFD_SETLK, byte, libc::F_RDLCK) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        taken => taken.map(|_| true),
    }
}

fn is_shared(file: &File, byte: i64) -> io::Result<bool> {
    let found = byte_lock(file, libc::F_OFD_GETLK, byte, libc::F_WRLCK)?;
    Ok(found.is_some_and(|found| found.l_type != libc::F_UNLCK as libc::c_short))
}

/// Executes a lock command of fcntl(2) on one byte. Returns the lock as the kernel has filled it
/// in. Returns `None` if the file system does not support such locks, so that no process can hold
/// one.
fn byte_lock(
    file: &File,
    command: libc::c_int,
    byte: i64,
    kind: libc::c_int,
) -> io::Result<Option<libc::flock>> {
    // SAFETY: all-zero bytes are a lock from the start of the file, of no process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (byte, 1);
    // SAFETY: the lock is a live local, which the kernel reads, and fills for F_OFD_GETLK.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
        return Ok(Some(lock));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP) => Ok(None),
        _ => Err(error),
    }
}

fn text(file: &File, found: HeldLock) -> String {
    let holder = match found {
        HeldLock::Bytes => {
            return "another program has locked this file as QEMU locks the disks of virtual \
                    machines; stop that, or name another file"
                .to_owned();
        }
        HeldLock::Flock => flock_holder(file),
    };
    match holder {
        Some(holder) if holder.is_this() => USED_HERE.to_owned(),
        Some(holder) => {
            format!("{holder} has locked this file; stop that process, or name another file")
        }
        None => "another process uses this file; stop it, or name another file".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;
    use crate::file::FileDriver;

    fn open(path: &Path, writes: bool) -> File {
        OpenOptions::new().read(true).write(writes).open(path).unwrap()
    }

    #[test]
    fn image_that_somebody_writes_is_refused_and_readers_share_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 512]).unwrap();
        let is_refused = |access: FileAccess| {
            let file = open(&path, access == FileAccess::ReadWrite);
            attempt(&file, access).unwrap().is_some()
        };
        // Locks bytes of the image as QEMU does. `machine` stands for a virtual machine that writes
        // the disk; `reader` stands for one that only reads it.
        let locked = |bytes: &[i64]| {
            let image = open(&path, true);
            assert!(bytes.iter().all(|byte| share(&image, *byte).unwrap()));
            image
        };
        let machine = locked(&[100, 101, 201, 203]);
        let (read, write) = (FileAccess::ReadOnly, FileAccess::ReadWrite);
        assert!(is_refused(write) && is_refused(read));
        drop(machine);
        let reader = locked(&[100, 201, 203]);
        assert!(is_refused(write) && !is_refused(read));
        drop(reader);
        let ours = open(&path, true);
        assert!(attempt(&ours, FileAccess::ReadWrite).unwrap().is_none());
        let image = open(&path, true);
        let is_seen = |byte: i64| is_shared(&image, byte).unwrap();
        assert!([100, 101, 103, 201, 203].into_iter().all(is_seen));
        assert!(![102, 104, 200, 202].into_iter().any(is_seen));
    }

    #[test]
    fn own_drive_file_is_refused_at_once_and_others_are_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let config = |read_only| FileConfig {
            path: path.clone(),
            size_bytes: Some(1 << 20),
            read_only,
            ..FileConfig::default()
        };
        let first = FileDriver::open(config(false)).unwrap();
        for read_only in [false, true] {
            let began = Instant::now();
            let refused = FileDriver::open(config(read_only)).err().unwrap();
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
            assert_eq!(refused.kind(), ErrorKind::Busy);
            assert_eq!(refused.to_string(), format!("{}: {USED_HERE}", path.display()));
        }
        drop(first);
        let readers = [true, true].map(|read_only| FileDriver::open(config(read_only)).unwrap());
        assert!(FileDriver::open(config(false)).is_err(), "beside two readers");
        drop(readers);
        // The test locks the file as another process would, and unlocks it while the drive waits.
        let other = open(&path, true);
        other.lock().unwrap();
        let letting_go = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(other);
        });
        drop(FileDriver::open(config(false)).unwrap());
        letting_go.join().unwrap();
        assert!(!HeldData::exists(identity(&path)));
    }

    fn identity(path: &Path) -> (u64, u64) {
        let meta = std::fs::metadata(path).unwrap();
        (meta.dev(), meta.ino())
    }
}
