//! Reads the size of a file drive again, because the file may have grown.
//!
//! The block layer reads the size on the thread of the resize request, while I/O is in flight. A
//! size that the spec fixes does not change, because a restart would restore it and cut off data.
//! Kernel counterpart: `loop_set_capacity`.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering;

use millrace_block::{Error, ErrorKind, Sector};

use super::open::system;
use super::{FileConfig, FileState, probe};
use crate::common::units::size_text;

pub(super) fn revalidate(config: &FileConfig, shared: &FileState) -> Result<Sector, Error> {
    let (opened, path) = (&shared.geometry, &config.path);
    let asked = probe::geometry(&shared.file);
    let now_bytes = asked.map_err(|error| system(path, "stat", &error))?.size_bytes;
    let Some(fixed_bytes) = config.size_bytes else {
        if now_bytes > opened.size_bytes && !opened.is_block && !config.read_only {
            make_durable(path, shared)?;
        }
        // Relaxed: the value is only shown to people.
        let before_bytes = shared.size_bytes.swap(now_bytes, Ordering::Relaxed);
        return match now_bytes > before_bytes {
            true => Ok(now_bytes >> 9),
            false => same_file(path, opened.identity).map(|()| now_bytes >> 9),
        };
    };
    if now_bytes > opened.store_bytes {
        let (has, fixed) = (size_text(now_bytes), size_text(fixed_bytes));
        let text = format!(
            "{}: it has {has} now, but size={fixed} keeps the drive at that; raise or remove size=, \
             and start again",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidSetting, text));
    }
    same_file(path, opened.identity)?;
    Ok(now_bytes.min(fixed_bytes) >> 9)
}

/// Returns an error if the path now names another file, which a user may have moved there instead
/// of growing the drive. A missing or unreadable path is no error.
fn same_file(path: &Path, opened: (u64, u64)) -> Result<(), Error> {
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    let now = match meta.file_type().is_block_device() {
        true => (meta.rdev(), 0),
        false => (meta.dev(), meta.ino()),
    };
    if now == opened {
        return Ok(());
    }
    let text = format!(
        "{}: another file has this name now; the drive still serves the file that it opened, which \
         has not grown; to serve the other file, restart the daemon; to grow this drive, extend \
         the opened file itself, for example with truncate",
        path.display()
    );
    Err(Error::new(ErrorKind::InvalidSetting, text))
}

fn make_durable(path: &Path, shared: &FileState) -> Result<(), Error> {
    shared.file.sync_all().map_err(|error: io::Error| {
        // Release pairs with the Acquire loads in queue.rs. The kernel reports a lost write only
        // once, and this sync consumed the report, so the queues must fail later flushes.
        shared.sync_failed.store(true, Ordering::Release);
        system(path, "sync", &error)
    })
}
