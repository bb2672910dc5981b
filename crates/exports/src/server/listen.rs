//! Listening sockets: bound before any thread starts, unlinked when the server ends.
//!
//! Called by start-up. A Unix socket file that a dead server left behind is replaced: nobody
//! accepts on it, so connecting to it is refused. One that answers is left alone.
//!
//! Invariants: only a socket file made here is removed, and only while it is still the same file;
//! whoever checks, removes and binds `PATH` holds the lock of `PATH.lock` before and as long as it
//! listens. That file is empty and stays: one that were removed could be locked by two servers.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use millrace_block::{Error, ErrorKind};

use super::ring::{lock_file, refuses};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A TCP address; port 0 for one of the system's choice.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// A bound socket.
#[derive(Debug)]
pub(crate) enum Listener {
    /// With device and inode of its file, and the lock on its path.
    Unix {
        socket: UnixListener,
        path: PathBuf,
        file: Option<(u64, u64)>,
        _lock: File,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// # Errors
    /// `Busy` if somebody serves there, `System` if the system refuses; the message says where.
    pub(crate) fn bind(listen: &Listen) -> Result<Listener, Error> {
        let bound = match listen {
            Listen::Tcp(address) => TcpListener::bind(address).map(Listener::Tcp),
            Listen::Unix(path) => bind_unix(path),
        };
        bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                Error::new(ErrorKind::Busy, format!("{listen}: in use by another server"))
            }
            _ => Error::new(ErrorKind::System, format!("{listen}: cannot listen: {error}")),
        })
    }

    /// Where it listens, with the real port.
    pub(crate) fn address(&self) -> Listen {
        match self {
            Listener::Unix { path, .. } => Listen::Unix(path.clone()),
            Listener::Tcp(socket) => Listen::Tcp(
                socket.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0))),
            ),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Listener::Unix { socket, .. } => socket.as_raw_fd(),
            Listener::Tcp(socket) => socket.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix { path, file, .. } = self
            && file.is_some()
            && identity(path) == *file
        {
            // If it cannot be removed, the next server finds it refused and replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn bind_unix(path: &Path) -> io::Result<Listener> {
    let lock = lock(path)?;
    let socket = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    Ok(Listener::Unix { socket, path: path.to_owned(), file: identity(path), _lock: lock })
}

/// The open and locked file beside a socket's path; `AddrInUse` if another server has it.
fn lock(path: &Path) -> io::Result<File> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let locked = options.open(&beside).and_then(|file| lock_file(&file).map(|()| file));
    locked.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::AddrInUse.into(),
        kind => io::Error::new(kind, format!("lock file {}: {error}", beside.display())),
    })
}

/// Whether the file is a socket on which nobody accepts.
fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket && refuses(path)
}
