//! Reads the size of a file drive again, because the file may have grown.
//!
//! The block layer reads the size on the thread of the resize request, while I/O is in flight. A
//! size that the spec fixes does not change, because a restart would restore it and cut off data.
//! Kernel counterpart: `loop_set_capacity`.

use std::sync::atomic::Ordering;

use millrace_block::{Error, ErrorKind, Sector};

use super::{FileConfig, FileState, probe};
use crate::common::place::identity_of;
use crate::common::units::size_text;

pub(super) fn revalidate(config: &FileConfig, shared: &FileState) -> Result<Sector, Error> {
    let opened = &shared.geometry;
    let asked = probe::geometry(&shared.file);
    let now_bytes = asked.map_err(|error| config.system("stat", &error))?.size_bytes;
    let Some(fixed_bytes) = config.size_bytes else {
        if now_bytes > opened.size_bytes && !opened.is_block && !config.read_only {
            make_durable(config, shared)?;
        }
        // Relaxed: the value is only shown to people.
        let before_bytes = shared.size_bytes.swap(now_bytes, Ordering::Relaxed);
        return match now_bytes > before_bytes {
            true => Ok(now_bytes >> 9),
            false => check_path(config, opened.identity).map(|()| now_bytes >> 9),
        };
    };
    if now_bytes > opened.store_bytes {
        let (has, fixed) = (size_text(now_bytes), size_text(fixed_bytes));
        let text = format_args!(
            "it has {has} now, but size={fixed} keeps the drive at that; raise or remove size=, and \
             start again"
        );
        return Err(config.error(ErrorKind::InvalidSetting, text));
    }
    check_path(config, opened.identity)?;
    Ok(now_bytes.min(fixed_bytes) >> 9)
}

/// Returns an error if the path now names another file, which a user may have moved there instead
/// of growing the drive. A missing or unreadable path is no error.
fn check_path(config: &FileConfig, opened: (u64, u64)) -> Result<(), Error> {
    match std::fs::metadata(&config.path) {
        Ok(meta) if identity_of(&meta) != opened => {
            let text = "another file has this name now; the drive still serves the file that it \
                        opened, which has not grown; to serve the other file, restart the daemon; \
                        to grow this drive, extend the opened file itself, for example with \
                        truncate";
            Err(config.error(ErrorKind::InvalidSetting, text))
        }
        _ => Ok(()),
    }
}

fn make_durable(config: &FileConfig, shared: &FileState) -> Result<(), Error> {
    shared.file.sync_all().map_err(|error| {
        // The kernel reports a lost write to one sync only, and this sync has consumed the report,
        // so the queues must fail later flushes. Release pairs with the Acquire loads in queue.rs.
        shared.sync_failed.store(true, Ordering::Release);
        config.system("sync", &error)
    })
}
