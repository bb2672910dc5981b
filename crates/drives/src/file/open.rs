//! Opens a file drive: creates or extends the file, locks it, chooses direct I/O, and checks sizes.
//!
//! The lock is taken before anything is changed, so a drive in use elsewhere is not touched. A
//! created or extended file is made durable together with its directory entry, because later
//! flushes sync only data. If the opening fails, a created file is removed again. A dry run uses an
//! unnamed file in place of a file that would be created. Every error names the path.
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use millrace_block::{Buffer, Error, ErrorKind};
use millrace_reactor::{Backend, Config, PoolShare, Reactor};
use rustix::fs::{Access, OFlags, access, fadvise};

use super::lent_memory::LentMemory;
use super::locks::lock;
use super::probe::{self, DirectAlign, FileGeometry};
use super::queue::{PUNCH, ZERO_RANGE};
use super::{Advice, Aio, Direct, FileConfig, FileDriver, FileState, format};
use crate::common::dry_run::DryRun;
use crate::common::place::{DataPlace, HeldData, file_identity, folder_of};
use crate::common::store_file::{OTHER_KIND, clear_flag, open_store};
use crate::common::units::size_text;
use crate::null::NullDriver;
use crate::open::{DriveSettings, OpenOptions as DriveOptions, Opened};
use crate::spec::SpecError;

const FULL: &str = "its file system is full; free some space, or choose another file";
const ZEROES_BYTES: usize = 64 << 10;
static ZEROES: OnceLock<Buffer> = OnceLock::new();

/// A file that opening the drive has created, and that is removed again if the drive cannot be
/// opened. Its device and inode identify it, so that no other file is ever removed.
struct CreatedFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl CreatedFile {
    /// Creates an empty file that only its user may read. Returns `None` if the file exists.
    fn at(path: &Path) -> io::Result<Option<CreatedFile>> {
        // The file is created without O_DIRECT, because a refused O_DIRECT would leave the created
        // file behind.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            made => made?,
        };
        let meta = file.metadata()?;
        Ok(Some(CreatedFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()) }))
    }

    fn keep(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        let now = std::fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        if now.is_ok_and(|now| now == self.identity) {
            // If removing fails, an empty file stays behind.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

struct OpenedFile {
    file: File,
    created: Option<CreatedFile>,
    held: Option<HeldData>,
    geometry: FileGeometry,
    align: Option<DirectAlign>,
    notes: Vec<String>,
}

fn open_store_of(config: &FileConfig, dry_run: Option<&DryRun>) -> Result<OpenedFile, Error> {
    let mut notes = Vec::new();
    check_engine(config, &mut notes)?;
    let (file, direct, created) = open_file(config, dry_run)?;
    let held = if config.lock { Some(lock(&file, config, dry_run)?) } else { None };
    let mut geometry = geometry_of(&file, config, dry_run, &mut notes)?;
    let align = if direct { probe::direct_align(&file) } else { None };
    if direct && align.is_none() {
        clear_flag(&file, OFlags::DIRECT).map_err(|error| config.system("fcntl", &error))?;
    }
    match align {
        Some(align) => {
            geometry.logical = geometry.logical.max(align.offset);
            geometry.physical = geometry.physical.max(align.offset);
        }
        None if config.direct == Direct::On => {
            let text = "direct=on, but this file system does not support direct I/O";
            return Err(config.error(ErrorKind::NotSupported, text));
        }
        None if config.direct == Direct::Auto => notes.push(config.message(
            "this file system does not support direct I/O; data go through the page cache",
        )),
        None => {}
    }
    Ok(OpenedFile { file, created, held, geometry, align, notes })
}

pub(super) fn open(config: FileConfig) -> Result<FileDriver, Error> {
    let OpenedFile { file, created, held, geometry, align, notes } = open_store_of(&config, None)?;
    advise(&file, config.advice).map_err(|error| config.system("fadvise", &error))?;
    let no_punch = match geometry.is_block {
        true => geometry.max_discard_bytes == 0,
        false => !config.read_only && !probe::can_allocate(&file, PUNCH),
    };
    let writes_file = !geometry.is_block && !config.read_only;
    let no_zero_range = writes_file && !probe::can_allocate(&file, ZERO_RANGE);
    if writes_file {
        // Frees blocks that the ZERO_RANGE test above may have allocated after the end of the file.
        let _ = probe::can_allocate(&file, PUNCH);
    }
    let warnings = format::note(&config, geometry.store_bytes).into_iter().collect();
    let dma_alignment = align.map_or(0, |align| align.memory.max(1) - 1);
    let unit = align.map_or(1, |_| geometry.logical);
    let shared = FileState {
        file,
        _held: held,
        allocating: 0.into(),
        size_bytes: geometry.size_bytes.into(),
        geometry,
        memory_masks: (dma_alignment as usize, unit as usize - 1),
        transfer_unit: unit.into(),
        zeroes: ZEROES.get_or_init(|| Buffer::new(ZEROES_BYTES)),
        no_punch: no_punch.into(),
        no_zero_range: no_zero_range.into(),
        sync_failed: false.into(),
        counters: Arc::default(),
        lent: LentMemory::default(),
    };
    let (shared, share) = (Arc::new(shared), PoolShare::new());
    if let Some(created) = created {
        created.keep();
    }
    Ok(FileDriver { config, shared, share, notes, warnings })
}

/// Returns the reason why this process may not use io_uring, or `None` if io_uring works.
fn uring_refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        let config = Config { backend: Backend::Uring, entries: 1, ..Config::default() };
        Reactor::new(config).err().map(|error| error.to_string())
    };
    REFUSAL.get_or_init(ask).as_deref()
}

fn check_engine(config: &FileConfig, notes: &mut Vec<String>) -> Result<(), Error> {
    let Some(reason) = uring_refusal() else { return Ok(()) };
    match config.aio {
        Aio::Uring => {
            let text = format_args!("aio=uring: {reason}; use aio=auto or aio=threads");
            return Err(config.error(ErrorKind::NotSupported, text));
        }
        Aio::Auto => {
            notes.push(config.message(format_args!("file I/O uses threads because {reason}")));
        }
        Aio::Threads | Aio::Inline => {}
    }
    Ok(())
}

impl DriveSettings for FileConfig {
    fn open(self: Box<Self>, io_threads: u16, options: &DriveOptions) -> Result<Opened, SpecError> {
        let DriveOptions { cancel, file_at: opened_at, dry_run } = options.clone();
        let config = FileConfig { io_threads, cancel, opened_at, ..*self };
        if let Some(dry_run) = dry_run {
            return Ok(look(&config, &dry_run)?);
        }
        let file = open(config)?;
        let (notes, warnings) = (file.notes.clone(), file.warnings.clone());
        let identity = Some(file.identity());
        Ok(Opened { notes, warnings, identity, ..Opened::plain(file) })
    }

    fn file_place(&self) -> Option<DataPlace> {
        let identity = file_identity(&self.path)?;
        Some(DataPlace { identity, read_only: self.read_only })
    }
}

fn look(config: &FileConfig, dry_run: &DryRun) -> Result<Opened, Error> {
    let (mut notes, mut warnings) = (Vec::new(), Vec::new());
    let (size_bytes, block) = match (open_store_of(config, Some(dry_run)), config.size_bytes) {
        (Ok(found), _) => {
            let FileGeometry { size_bytes, store_bytes, logical, .. } = found.geometry;
            warnings.extend(format::note(config, store_bytes));
            notes = found.notes;
            (size_bytes, logical)
        }
        // The file does not exist, and its file system supports no unnamed file (O_TMPFILE) that
        // could be probed instead. So the dry run assumes a block size of 512 bytes.
        (Err(error), Some(size_bytes))
            if !config.path.exists()
                && matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EISDIR)) =>
        {
            (size_bytes, 512)
        }
        (Err(error), _) => return Err(error),
    };
    let read_only = config.read_only;
    let driver = NullDriver { read_only, ..NullDriver::stand_in(size_bytes, block) };
    let identity = config.file_place().map(|place| place.identity);
    Ok(Opened { notes, warnings, identity, ..Opened::plain(driver) })
}

/// Returns an error for pipes, tapes and the like, which must not even be opened.
fn refuse_other_kinds(config: &FileConfig, path: &Path) -> Result<(), Error> {
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    let kind = meta.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(());
    }
    let what = if kind.is_dir() { "a directory" } else { OTHER_KIND };
    let text = format_args!("this is {what}; name a file or a block device");
    Err(config.error(ErrorKind::InvalidSetting, text))
}

/// Opens the file, creating it if a size is given. Returns the file, and true if `O_DIRECT` is in
/// use. Also returns a `CreatedFile` if the file was created. Unless `CreatedFile::keep` is called,
/// dropping the `CreatedFile` removes the file again.
fn open_file(
    config: &FileConfig,
    dry_run: Option<&DryRun>,
) -> Result<(File, bool, Option<CreatedFile>), Error> {
    let path = config.opened_at.as_ref().unwrap_or(&config.path);
    refuse_other_kinds(config, path)?;
    let is_block = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    let makes = !config.read_only && config.size_bytes.is_some() && !is_block;
    let is_missing = || std::fs::symlink_metadata(path).is_err();
    if makes && is_missing() && is_for_devices(path) {
        let text = config.message("there is no such device; correct the path");
        return Err(Error::system(text, Some(libc::ENOENT)));
    }
    let made = if makes && dry_run.is_none() { CreatedFile::at(path) } else { Ok(None) };
    let made = made.map_err(|error| open_error(config, &error))?;
    let try_open = |flags: i32| {
        // An exclusive open fails if the block device is mounted.
        let exclusive = is_block && config.lock && !config.read_only;
        let flags = if exclusive { flags | libc::O_EXCL } else { flags };
        let mut options = OpenOptions::new();
        match dry_run {
            Some(dry_run) if makes && is_missing() => {
                let folder = dry_run.folder_of(path);
                options.read(true).write(true).custom_flags(flags | libc::O_TMPFILE);
                match options.open(folder) {
                    // A dry run opens an unnamed file in place of a missing one. If the folder's
                    // file system has no unnamed files (O_TMPFILE), the file is opened in /dev/shm.
                    Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                        options.open("/dev/shm")
                    }
                    opened => opened,
                }
            }
            Some(_) if !config.read_only => {
                access(path, Access::WRITE_OK)?;
                open_store(path, options.read(true), flags)
            }
            _ => open_store(path, options.read(true).write(!config.read_only), flags),
        }
    };
    let mut direct = config.direct != Direct::Off;
    let mut opened = try_open(if direct { libc::O_DIRECT } else { 0 });
    let is_invalid = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    if direct && opened.as_ref().is_err_and(is_invalid) {
        (direct, opened) = (false, try_open(0));
    }
    let file = opened.map_err(|error| open_error(config, &error))?;
    Ok((file, direct, made))
}

/// Returns true if this user cannot find out whether the file exists.
fn is_hidden(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn open_error(config: &FileConfig, error: &io::Error) -> Error {
    let errno = error.raw_os_error();
    let text = match errno {
        Some(libc::ENOENT) if std::fs::symlink_metadata(&config.path).is_ok() => {
            "this symbolic link points to a file that does not exist; create that file"
        }
        Some(libc::ENOENT) => match (folder_of(&config.path).is_dir(), config.size_bytes) {
            (true, _) if config.read_only => {
                "there is no such file; create it, or correct the path"
            }
            (true, None) => "there is no such file; give size= to create it",
            _ => "its directory does not exist; create it first",
        },
        Some(libc::ENOSPC) => FULL,
        Some(libc::EBUSY) => "in use, perhaps mounted; unmount it first",
        Some(libc::EACCES) if is_hidden(&config.path) => {
            "this user may not search a directory of its path; change that directory's mode, or run \
             as its owner"
        }
        Some(libc::EACCES | libc::EROFS) if config.path.symlink_metadata().is_err() => &format!(
            "cannot create it ({error}): no file can be created in its directory; change that, or \
             name another file"
        ),
        Some(libc::EACCES) if access(&config.path, Access::READ_OK).is_err() => {
            "this user may not read the file; change its mode, or run as its owner"
        }
        Some(libc::EACCES | libc::EROFS) if !config.read_only => {
            let why: &dyn Display = match errno {
                Some(libc::EACCES) => &"this user may not write to the file",
                _ => error,
            };
            &format!(
                "{why}; change its mode, or serve it read-only: read-only=on, or `serve \
                 --read-only`"
            )
        }
        _ => return config.system("open", error),
    };
    match errno {
        Some(libc::EBUSY) => config.error(ErrorKind::Busy, text),
        _ => Error::system(config.message(text), errno),
    }
}

/// Returns true if the path is in `/dev`, where files are lost at a reboot. A missing path there is
/// probably a misspelt device.
fn is_for_devices(path: &Path) -> bool {
    let folder = folder_of(path).canonicalize();
    folder.is_ok_and(|folder| folder.starts_with("/dev") && !folder.starts_with("/dev/shm"))
}

/// Returns the geometry of the drive's file, with the drive's size as `size_bytes`. Extends the
/// file if it is shorter than the drive.
fn geometry_of(
    file: &File,
    config: &FileConfig,
    dry_run: Option<&DryRun>,
    notes: &mut Vec<String>,
) -> Result<FileGeometry, Error> {
    let mut geometry = probe::geometry(file).map_err(|error| config.system("stat", &error))?;
    let found = geometry.size_bytes;
    let size_bytes = size_of(&geometry, config, notes)?;
    if geometry.read_only && !config.read_only {
        let text = "the device is read-only; serve it read-only: read-only=on, or `serve \
                    --read-only`";
        return Err(config.error(ErrorKind::InvalidSetting, text));
    }
    if size_bytes > found {
        let extended = match dry_run {
            None => extend(file, config, size_bytes),
            Some(_) => extend_unnamed(file, size_bytes),
        };
        extended.map_err(|error| extend_error(config, &error))?;
        notes.extend(too_full(file, config, size_bytes));
    }
    geometry.size_bytes = size_bytes;
    geometry.store_bytes = found.max(size_bytes);
    Ok(geometry)
}

fn size_of(
    geometry: &FileGeometry,
    config: &FileConfig,
    notes: &mut Vec<String>,
) -> Result<u64, Error> {
    let found = geometry.size_bytes;
    let size_bytes = config.size_bytes.unwrap_or(found);
    let (has, asked) = (size_text(found), size_text(size_bytes));
    let wrong = if size_bytes < 512 {
        format!("{size_bytes} bytes are too few; use a size of at least 512 bytes")
    } else if size_bytes > found && (geometry.is_block || config.read_only) {
        format!("its size is {has}, which is less than size={asked}; lower size=")
    } else if size_bytes > found && found > 0 && !config.grow {
        // An empty file may be extended without `grow`, because it has no data to lose.
        // Interrupted starts leave such files behind.
        format!(
            "it has {has} and size={asked}; lower or remove the size, or add grow=on to extend the \
             file"
        )
    } else {
        if size_bytes < found {
            let text = format!("its size is {has}, of which only the first size={asked} is used");
            notes.push(config.message(text));
        }
        return Ok(size_bytes);
    };
    Err(config.error(ErrorKind::InvalidSetting, wrong))
}

fn extend_error(config: &FileConfig, error: &io::Error) -> Error {
    let asked = size_text(config.size_bytes.unwrap_or(0));
    let why = match error.raw_os_error() {
        Some(libc::EFBIG) => "more than the maximum file size of its file system; lower the size",
        Some(libc::ENOSPC) => FULL,
        _ => {
            let doing = format_args!("cannot extend the file to size={asked}");
            return config.system(doing, error);
        }
    };
    let text = config.message(format_args!("size={asked}: {why}"));
    Error::system(text, error.raw_os_error())
}

fn too_full(file: &File, config: &FileConfig, size_bytes: u64) -> Option<String> {
    let free_bytes = probe::free_bytes(file).filter(|free_bytes| *free_bytes < size_bytes)?;
    let (asked, free) = (size_text(size_bytes), free_bytes >> 20);
    Some(config.message(format_args!(
        "size={asked}, but its file system has only {free} MiB left; writes fail when they are \
         used up"
    )))
}

fn extend(file: &File, config: &FileConfig, size_bytes: u64) -> io::Result<()> {
    file.set_len(size_bytes)?;
    file.sync_all()?;
    File::open(folder_of(&config.path))?.sync_all()
}

/// Extends the unnamed file of a dry run; leaves a user's file as it is.
fn extend_unnamed(file: &File, size_bytes: u64) -> io::Result<()> {
    if file.metadata()?.nlink() == 0 { file.set_len(size_bytes) } else { Ok(()) }
}

fn advise(file: &File, advice: Advice) -> io::Result<()> {
    let advice = match advice {
        Advice::Normal => return Ok(()),
        Advice::Random => rustix::fs::Advice::Random,
        Advice::Sequential => rustix::fs::Advice::Sequential,
    };
    Ok(fadvise(file, 0, None, advice)?)
}
