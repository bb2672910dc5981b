//! Opening a file drive: create or extend, lock, choose direct I/O and engine, check sizes.
//!
//! Runs once per drive, on whichever thread sets drives up. Order matters: the lock is taken before
//! anything is changed, so a drive in use elsewhere is left alone; a file that was made or extended
//! is made durable with its directory entry, since flushes later sync data only. Called by
//! `FileDriver::open`; asks `probe.rs`. Every error names the path.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_block::{Buffer, Error, ErrorKind};
use millrace_reactor::{Backend, Config, Reactor};

use super::pool::Pool;
use super::probe::{self, DirectAlign, Geometry};
use super::queue::{PUNCH, ZERO_RANGE};
use super::{Aio, Direct, FileConfig, FileDriver, MAX_SECTORS, Shared};
use crate::value::size_text;

/// How often, and how far apart, a locked file is tried again: for three seconds.
const LOCK_TRIES: u32 = 120;
const LOCK_PAUSE: Duration = Duration::from_millis(25);
/// Bytes of the shared zeroes.
const ZEROES_BYTES: usize = 64 << 10;

/// See [`FileDriver::open`].
pub(crate) fn open(config: FileConfig) -> Result<FileDriver, Error> {
    let mut notes = Vec::new();
    check_engine(&config, &mut notes)?;
    let (file, direct) = open_file(&config)?;
    if config.lock {
        lock(&file, &config)?;
    }
    let mut geometry = geometry_of(&file, &config, &mut notes)?;
    let align = match direct {
        true => probe::direct_align(&file),
        false => None,
    };
    if direct && align.is_none() {
        clear_direct(&file).map_err(|error| system(&config.path, "fcntl", &error))?;
    }
    note_direct(&config, align, &mut notes)?;
    if let Some(align) = align {
        geometry.logical = geometry.logical.max(align.offset);
        geometry.physical = geometry.physical.max(align.offset);
    }
    let no_punch = match geometry.is_block {
        true => geometry.max_discard_bytes == 0,
        false => !config.read_only && !probe::can_allocate(&file, PUNCH),
    };
    let writes_file = !geometry.is_block && !config.read_only;
    let no_zero_range = writes_file && !probe::can_allocate(&file, ZERO_RANGE);
    if writes_file {
        // What the trial may have allocated behind the end is given back.
        let _ = probe::can_allocate(&file, PUNCH);
    }
    let map = if geometry.is_block { None } else { File::open(&config.path).ok() };
    let dma_alignment = align.map_or(0, |align| align.memory.max(1) - 1);
    let unit = align.map_or(1, |_| geometry.logical);
    let shared = Shared {
        file,
        map,
        allocating: AtomicU64::new(0),
        geometry,
        memory_masks: (dma_alignment as usize, unit as usize - 1),
        transfer_unit: unit.into(),
        bounce_bytes: (MAX_SECTORS as usize) << 9,
        zeroes: Buffer::new(ZEROES_BYTES),
        no_punch: AtomicBool::new(no_punch),
        no_zero_range: AtomicBool::new(no_zero_range),
        sync_failed: AtomicBool::new(false),
        counters: Arc::default(),
    };
    let (shared, pool) = (Arc::new(shared), Pool::default());
    Ok(FileDriver { config, shared, pool, dma_alignment, notes })
}

pub(super) fn system(path: &Path, doing: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::System, format!("{}: {doing}: {error}", path.display()))
}

/// Why io_uring is refused in this process; none if it works.
fn uring_refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        let config = Config { backend: Backend::Uring, entries: 1, ..Config::default() };
        Reactor::new(config).err().map(|error| error.to_string())
    };
    REFUSAL.get_or_init(ask).as_deref()
}

fn check_engine(config: &FileConfig, notes: &mut Vec<String>) -> Result<(), Error> {
    let path = config.path.display();
    match (config.aio, uring_refusal()) {
        (Aio::Uring, Some(reason)) => {
            let text = format!("{path}: aio=uring: {reason}; use aio=auto or aio=threads");
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        (Aio::Auto, Some(reason)) => {
            notes.push(format!("{path}: file I/O goes through threads, {reason}"));
        }
        _ => {}
    }
    Ok(())
}

/// Opens the file, makes it if a size is given; says whether `O_DIRECT` was taken.
fn open_file(config: &FileConfig) -> Result<(File, bool), Error> {
    let path = &config.path;
    let is_block = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    let makes = !config.read_only && config.size_bytes.is_some() && !is_block;
    let try_open = |flags: i32| {
        // An exclusive open of a block device is refused while it is mounted.
        let exclusive = is_block && config.lock && !config.read_only;
        let flags = if exclusive { flags | libc::O_EXCL } else { flags };
        let mut options = OpenOptions::new();
        options.read(true).write(!config.read_only).create(makes).truncate(false);
        options.mode(0o600).custom_flags(flags).open(path)
    };
    let opened = match config.direct {
        Direct::Off => try_open(0).map(|file| (file, false)),
        _ => match try_open(libc::O_DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                try_open(0).map(|file| (file, false))
            }
            opened => opened.map(|file| (file, true)),
        },
    };
    opened.map_err(|error| open_error(config, &error))
}

fn open_error(config: &FileConfig, error: &io::Error) -> Error {
    let path = config.path.display();
    match error.raw_os_error() {
        Some(libc::ENOENT) if config.size_bytes.is_none() => {
            let text = format!("{path}: there is no such file; give size= to make it");
            Error::new(ErrorKind::System, text)
        }
        Some(libc::ENOENT) => {
            let text = format!("{path}: its folder is not there; make it first");
            Error::new(ErrorKind::System, text)
        }
        Some(libc::EBUSY) => {
            let text = format!("{path}: in use, perhaps mounted; unmount it first");
            Error::new(ErrorKind::Busy, text)
        }
        Some(libc::EACCES | libc::EROFS) if !config.read_only => {
            let text = format!("{path}: {error}; change its mode or use read-only=on");
            Error::new(ErrorKind::System, text)
        }
        _ => system(&config.path, "open", error),
    }
}

/// Locks the open file: exclusively, or shared with other readers.
fn lock(file: &File, config: &FileConfig) -> Result<(), Error> {
    let kind = if config.read_only { libc::LOCK_SH } else { libc::LOCK_EX };
    for _ in 0..LOCK_TRIES {
        // SAFETY: no memory is involved.
        if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EWOULDBLOCK) {
            return Err(system(&config.path, "flock", &error));
        }
        // The ring of a process that was killed holds its files longer than the process itself:
        // mostly 30 to 50 ms, but the kernel tears rings down when it comes to it, and on a busy
        // machine later.
        std::thread::sleep(LOCK_PAUSE);
    }
    let text = format!(
        "{}: another process, or another drive of this one, uses this file; stop it, or name \
         another file",
        config.path.display()
    );
    Err(Error::new(ErrorKind::Busy, text))
}

/// Geometry at the size that was asked for; extends a file that is shorter.
fn geometry_of(
    file: &File,
    config: &FileConfig,
    notes: &mut Vec<String>,
) -> Result<Geometry, Error> {
    let path = config.path.display();
    let wrong = |text| Err(Error::new(ErrorKind::InvalidSetting, text));
    let ask = || probe::geometry(file).map_err(|error| system(&config.path, "stat", &error));
    let mut geometry = ask()?;
    let found = geometry.size_bytes;
    let size_bytes = config.size_bytes.unwrap_or(found);
    if size_bytes < 512 {
        return wrong(format!("{path}: {size_bytes} bytes are too few; give it a size"));
    }
    if geometry.read_only && !config.read_only {
        return wrong(format!("{path}: the device takes no writes; use read-only=on"));
    }
    if size_bytes > found {
        if geometry.is_block || config.read_only {
            let (has, asked) = (size_text(found), size_text(size_bytes));
            return wrong(format!("{path}: it has {has} and size={asked}; lower the size"));
        }
        extend(file, config, size_bytes).map_err(|e| system(&config.path, "extend", &e))?;
    } else if size_bytes < found {
        let (has, used) = (size_text(found), size_text(size_bytes));
        notes.push(format!("{path}: it has {has}, of which size={used} uses the first part"));
    }
    geometry.size_bytes = size_bytes;
    geometry.store_bytes = found.max(size_bytes);
    Ok(geometry)
}

/// Makes the file longer, sparsely, and makes that durable with its name.
fn extend(file: &File, config: &FileConfig, size_bytes: u64) -> io::Result<()> {
    file.set_len(size_bytes)?;
    file.sync_all()?;
    let parent = match config.path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

fn clear_direct(file: &File) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let done = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn note_direct(
    config: &FileConfig,
    align: Option<DirectAlign>,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let path = config.path.display();
    match (config.direct, align) {
        (Direct::On, None) => {
            let text = format!("{path}: direct=on, but this file system has no direct I/O");
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        (Direct::Auto, None) => notes.push(format!(
            "{path}: this file system has no direct I/O; data go through the page cache"
        )),
        _ => {}
    }
    Ok(())
}
