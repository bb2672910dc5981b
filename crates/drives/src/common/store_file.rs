//! Opens a file or block device, and never blocks on a special file such as a pipe.
//!
//! Opening a named pipe waits for its other end, and opening a tape may rewind it. Therefore
//! everything is opened with `O_NONBLOCK` and checked before it is used. The flag is removed from
//! the files that are kept, because io_uring would return EAGAIN on them.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
pub(crate) const OTHER_KIND: &str = "neither a regular file nor a block device";

/// Opens a regular file or a block device, with `options` and these flags of open(2).
///
/// # Errors
/// Returns the system's error, or `InvalidInput` if the path is a pipe, a socket, a directory or
/// the like.
pub fn open_store(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    let opened = options.custom_flags(flags | libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        // open(2) fails with ENXIO for a socket, and for writing to a pipe that has no reader.
        Some(libc::ENXIO) => other_kind(),
        _ => error,
    })?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(other_kind());
    }
    clear_flag(&file, OFlags::NONBLOCK)?;
    Ok(file)
}

fn other_kind() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("this is {OTHER_KIND}"))
}

pub(crate) fn clear_flag(file: &File, flag: OFlags) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - flag)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_at_once_and_a_file_is_opened_to_block() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for options in [OpenOptions::new().read(true), OpenOptions::new().write(true)] {
            let error = open_store(&pipe, options, 0).unwrap_err().to_string();
            assert!(error.contains("neither a regular file nor"), "{error}");
        }
        assert!(open_store(dir.path(), OpenOptions::new().read(true), 0).is_err());
        let file = dir.path().join("file");
        let options = &mut OpenOptions::new();
        let made = open_store(&file, options.write(true).create(true), 0).unwrap();
        assert!(!fcntl_getfl(&made).unwrap().contains(OFlags::NONBLOCK));
    }
}
