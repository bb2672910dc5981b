//! Unix sockets: bound before any thread starts, removed when their server ends.
//!
//! A socket file that a dead server left is replaced. Connections to such a file are refused,
//! because no process accepts there. A file whose server answers is not touched.
//!
//! A lock file `PATH.lock` protects the socket file `PATH`:
//! - While a process checks, replaces or binds `PATH`, it holds a lock on `PATH.lock`. After
//!   locking, the process checks that the path still leads to the locked file, or else tries again.
//!   So the lock file can be removed.
//! - While a process listens, and until it has removed `PATH`, `PATH.lock` contains the mark of the
//!   process instead. To keep the lock, the process would have to keep a descriptor open. Marks of
//!   dead processes are ignored.
//!
//! Invariants: two servers never own a path at the same time. Apart from files that dead servers
//! left, a process removes only socket files that it created, and only while the path still leads
//! to them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use millrace_block::{Error, ErrorKind};
use millrace_drives::{Holder, flock_holder, marked_process, open_store, process_mark};
use rustix::fs::{Access, FlockOperation, Mode, access, fchmod, flock};
use rustix::net;

use crate::SocketAccess;
use crate::mailbox::lock as lock_list;

static FILES: Mutex<BTreeMap<PathBuf, OwnFileId>> = Mutex::new(BTreeMap::new());

/// Removes the files of all sockets that this process listens on. Called before the process exits
/// without waiting for the threads of its servers.
pub fn remove_socket_files() {
    for (path, file) in std::mem::take(&mut *lock_list(&FILES)) {
        file.remove_at(&path);
    }
}

/// Identity of a file that this process created, used to notice that another file has replaced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnFileId {
    /// A socket, identified by device and inode. Both stay the same while the socket is open.
    Socket((u64, u64)),
    /// Lock file (`PATH.lock`) with the mark of this process. The file is identified by device,
    /// inode and contents: it is closed, so another file may get its inode number later.
    Mark((u64, u64)),
}

impl OwnFileId {
    fn is_at(self, path: &Path) -> bool {
        let (OwnFileId::Socket(id) | OwnFileId::Mark(id)) = self;
        let has_mark = || std::fs::read(path).is_ok_and(|text| text == process_mark().as_bytes());
        identity(path) == Some(id) && (matches!(self, OwnFileId::Socket(_)) || has_mark())
    }

    fn remove_at(self, path: &Path) {
        if self.is_at(path) {
            // A socket file that cannot be removed does no harm: the next server finds that
            // connections to it are refused, and replaces the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[derive(Debug)]
struct OwnFile {
    path: PathBuf,
    id: Option<OwnFileId>,
}

impl OwnFile {
    fn at(path: &Path, kind: fn((u64, u64)) -> OwnFileId) -> OwnFile {
        let id = identity(path).map(kind);
        lock_list(&FILES).extend(id.map(|id| (path.to_owned(), id)));
        OwnFile { path: path.to_owned(), id }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        self.id.iter().for_each(|id| id.remove_at(&self.path));
        lock_list(&FILES).remove(&self.path);
    }
}

const MARK_BYTES_MAX: u64 = 100;
const BACKLOG: i32 = 1024;

/// A listening Unix socket. Dropping it removes its file.
#[derive(Debug)]
pub struct UnixSocket {
    /// Socket file, declared first so that the file is removed before the socket is closed.
    file: OwnFile,
    socket: UnixListener,
    /// Lock file with the mark of this process, which keeps other servers from the path. Declared
    /// last, so that the lock file is removed after the socket file.
    _mark: OwnFile,
}

/// Lock file of a socket's path, which names this process. The file is locked while the socket is
/// created.
#[derive(Debug)]
struct LockFile {
    /// Declared first, so that the file is removed while its lock is held.
    own: OwnFile,
    _file: File,
}

impl UnixSocket {
    /// Listens at a path. The file is created with the configured mode, and gets owner and group
    /// before any client can connect. The caller checks the peers that it accepts.
    ///
    /// # Errors
    /// `Busy` if another server uses the path, `NotFound`, `PermissionDenied` or `System` if the
    /// kernel refuses. The message names the path.
    pub fn bind_with(path: &Path, access: &SocketAccess) -> Result<UnixSocket, Error> {
        Self::bind(path, access).map_err(|error| cannot_listen(path, &error))
    }

    /// Returns the listening socket.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    fn bind(path: &Path, access: &SocketAccess) -> io::Result<UnixSocket> {
        let bind = || match access.is_of_a_file() {
            true => listen_with(path, access),
            false => UnixListener::bind(path),
        };
        let lock = lock(path)?;
        let socket = match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                std::fs::remove_file(path)?;
                bind()?
            }
            other => other?,
        };
        let file = OwnFile::at(path, OwnFileId::Socket);
        // The lock on the lock file is released here. From now on the mark of this process in that
        // file keeps other servers from the path.
        Ok(UnixSocket { file, socket, _mark: lock.own })
    }
}

fn cannot_listen(path: &Path, error: &io::Error) -> Error {
    let text = |why: String| format!("unix:{}: {why}", path.display());
    match error.kind() {
        io::ErrorKind::AddrInUse => Error::new(ErrorKind::Busy, text(who_is_at(path))),
        _ => Error::system(text(why_not_at(path, error)), error.raw_os_error()),
    }
}

/// Returns the reason why no socket can be created at a path, with a remedy. Returns `None` if the
/// check finds no obstacle. The check creates no file and makes no connection, so it may miss some.
#[must_use]
pub fn socket_refusal(path: &Path) -> Option<String> {
    let refused = match std::fs::metadata(folder_of(path)) {
        Ok(folder) if folder.is_dir() => match std::fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => return Some(who_is_at(path)),
            _ if socket_holder(path).is_some() => return Some(who_is_at(path)),
            _ => access(folder_of(path), Access::WRITE_OK | Access::EXEC_OK).err()?.into(),
        },
        Ok(_) => io::ErrorKind::NotADirectory.into(),
        Err(error) => error,
    };
    Some(why_not_at(path, &refused))
}

fn who_is_at(path: &Path) -> String {
    let kind = std::fs::symlink_metadata(path).map(|meta| meta.file_type());
    if let Some(kind) = kind.ok().filter(|kind| !kind.is_socket()) {
        let what = if kind.is_dir() { "a directory" } else { "a file that is not a socket" };
        return format!("{what} exists at this path; move it away, or choose another path");
    }
    match socket_holder(path) {
        Some(holder) if holder.is_this() => {
            "in use by this process already; choose another path".to_owned()
        }
        Some(holder) => format!("in use by {holder}; stop that, or choose another path"),
        None => "in use by another server; choose another path".to_owned(),
    }
}

fn why_not_at(path: &Path, error: &io::Error) -> String {
    let shown = folder_of(path).display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("its directory {shown} does not exist; create it, or choose another path")
        }
        io::ErrorKind::NotADirectory => format!("{shown} is not a directory; choose another path"),
        io::ErrorKind::PermissionDenied => format!(
            "this user may not make files in the directory {shown}; change its mode, or choose \
             another path"
        ),
        io::ErrorKind::StorageFull => {
            format!("the file system of {shown} is full; free some space, or choose another path")
        }
        _ => format!("cannot listen: {error}"),
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Listens at a path with the given access. A socket file gets the mode of its socket, so the mode
/// is set before `bind` creates the file. The umask stays unchanged, because it also applies to
/// files that other threads create.
fn listen_with(path: &Path, access: &SocketAccess) -> io::Result<UnixListener> {
    let kind = (net::SocketType::STREAM, net::SocketFlags::CLOEXEC);
    let socket = net::socket_with(net::AddressFamily::UNIX, kind.0, kind.1, None)?;
    // Until the owner is set, only the present user may use the file.
    let first = if access.owner.or(access.group).is_some() { Some(0o600) } else { access.mode };
    if let Some(mode) = first {
        fchmod(&socket, Mode::from_bits_truncate(mode))?;
    }
    net::bind(&socket, &net::SocketAddrUnix::new(path)?)?;
    if access.owner.or(access.group).is_some() {
        std::os::unix::fs::lchown(path, access.owner, access.group).map_err(|error| {
            // The file is removed here. Otherwise it would stay until a server replaces it.
            let _ = std::fs::remove_file(path);
            io::Error::other(format!(
                "its owner or group cannot be set: {error}; only root may change a file's owner, and \
                 other users may only set groups they belong to"
            ))
        })?;
    }
    // The mode is set again, because the umask has removed bits. No client can connect before the
    // socket listens.
    let mode = access.mode.unwrap_or(0o660);
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    beside.into()
}

/// Returns the process that listens at a path according to the lock file, without connecting.
#[must_use]
pub fn socket_holder(path: &Path) -> Option<Holder> {
    let file = open_store(&beside(path), OpenOptions::new().read(true), 0).ok()?;
    // Servers of older versions write no process mark into the lock file, and keep the lock file
    // locked instead.
    read_mark(&file).or_else(|| flock_holder(&file))
}

fn read_mark(file: &File) -> Option<Holder> {
    let mut mark = String::new();
    file.take(MARK_BYTES_MAX).read_to_string(&mut mark).ok()?;
    marked_process(&mark)
}

/// Opens and locks the lock file of a socket's path. Fails with `AddrInUse` if another server holds
/// the lock, or if the file names a process that still runs.
fn lock(path: &Path) -> io::Result<LockFile> {
    let path = beside(path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    loop {
        let opened = open_store(&path, &mut options, libc::O_NOFOLLOW);
        let locked = opened.and_then(|file| lock_file(&file).map(|()| file));
        let file = locked.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::AddrInUse.into(),
            kind => io::Error::new(kind, format!("lock file {}: {error}", path.display())),
        })?;
        let meta = file.metadata()?;
        if identity(&path) == Some((meta.dev(), meta.ino())) {
            if read_mark(&file).is_some() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            file.set_len(0)?;
            file.write_all_at(process_mark().as_bytes(), 0)?;
            return Ok(LockFile { own: OwnFile::at(&path, OwnFileId::Mark), _file: file });
        }
        // The file was removed between open and lock; try again.
    }
}

fn is_stale(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket && refuses(path)
}

/// Locks an open file without waiting. The lock lasts until the file is closed.
fn lock_file(file: &File) -> io::Result<()> {
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

/// Returns true if no process listens on a socket file. Never waits, so a listener with a full
/// queue counts as alive.
fn refuses(path: &Path) -> bool {
    // No socket can have a path that is too long for an address.
    let Ok(address) = net::SocketAddrUnix::new(path) else { return false };
    let flags = net::SocketFlags::NONBLOCK | net::SocketFlags::CLOEXEC;
    let socket = net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, flags, None);
    let outcome = socket.and_then(|socket| net::connect(&socket, &address));
    outcome == Err(rustix::io::Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use super::*;

    fn bind_private(path: &Path) -> Result<UnixSocket, Error> {
        UnixSocket::bind_with(path, &SocketAccess::with_mode(Some(0o600)))
    }

    #[test]
    fn a_private_socket_is_for_its_owner_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bind_private(&path).unwrap();
        let mode = std::fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let _client = UnixStream::connect(&path).unwrap();
        assert!(socket.socket().accept().is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_has_the_mode_that_was_asked_for_from_the_start() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join(format!("{mode:o}"));
            let _socket =
                UnixSocket::bind_with(&path, &SocketAccess::with_mode(Some(mode))).unwrap();
            let file = std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(file, mode, "whatever the umask is");
        }
    }

    #[test]
    fn socket_of_a_live_server_is_refused_and_a_dead_one_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let live = bind_private(&path).unwrap();
        let error = bind_private(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("in use by this process already"), "{error}");
        drop(live);
        // Closed without being unlinked, as by a crash.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        assert!(bind_private(&path).is_ok());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        let error = bind_private(&path).unwrap_err().to_string();
        assert!(error.contains("a file that is not a socket exists"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [path]);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = bind_private(&dir.path().join("no/s")).unwrap_err().to_string();
        let folder = format!("its directory {} does not exist", dir.path().join("no").display());
        assert!(error.contains(&folder), "{error}");
    }

    #[test]
    fn a_lock_goes_with_its_socket_and_is_never_had_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (bound, stop) = (std::sync::atomic::AtomicU32::new(0), Instant::now());
        // Whoever binds is alone until the socket is dropped, however often files come and go.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while stop.elapsed() < Duration::from_millis(300) {
                        let Ok(socket) = bind_private(&path) else { continue };
                        assert_eq!(bound.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(path.exists());
                        bound.fetch_sub(1, Ordering::SeqCst);
                        drop(socket);
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_is_no_socket_is_named_and_a_lock_of_nobody_is_somebodys() {
        let dir = tempfile::tempdir().unwrap();
        assert!(who_is_at(dir.path()).contains("a directory exists at this path"));
        let path = dir.path().join("s");
        let _live = UnixListener::bind(&path).unwrap();
        assert_eq!(who_is_at(&path), "in use by another server; choose another path");
        assert!(!is_stale(&path) && !is_stale(dir.path()));
        assert!(!is_stale(&dir.path().join("none")));
    }

    #[test]
    fn every_reason_not_to_listen_is_told_with_what_to_do() {
        let (folder, bare) = (Path::new("/run/x/s"), Path::new("s"));
        let said = |kind: io::ErrorKind, path| why_not_at(path, &kind.into());
        assert!(
            said(io::ErrorKind::NotFound, folder).contains("its directory /run/x does not exist")
        );
        assert!(said(io::ErrorKind::NotFound, bare).contains("its directory . does not exist"));
        assert!(said(io::ErrorKind::NotADirectory, folder).contains("/run/x is not a directory"));
        assert!(said(io::ErrorKind::PermissionDenied, folder).contains("may not make files"));
        assert!(said(io::ErrorKind::StorageFull, folder).contains("of /run/x is full"));
        assert!(said(io::ErrorKind::TimedOut, folder).contains("cannot listen: "));
        let error = cannot_listen(Path::new("/no/s"), &io::ErrorKind::NotFound.into());
        assert_eq!(error.kind(), ErrorKind::System);
        let text = error.to_string();
        assert!(text.contains("unix:/no/s: its directory /no does not exist"), "{text}");
    }

    #[test]
    fn only_a_socket_without_a_listener_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(!refuses(&path), "nothing is there");
        let listener = UnixListener::bind(&path).unwrap();
        // The queue becomes one long.
        net::listen(&listener, 0).unwrap();
        assert!((0..8).all(|_| !refuses(&path)), "a full queue is no refusal");
        drop(listener);
        assert!(refuses(&path));
        let other = dir.path().join("other");
        let _listener = UnixListener::bind(&other).unwrap();
        assert!(!refuses(&other), "whatever errno the last one left");
    }

    #[test]
    fn a_lock_is_one_open_files_until_that_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::create(dir.path().join("l")).unwrap();
        let (one, other) = (open(), open());
        assert!(lock_file(&one).is_ok());
        assert_eq!(lock_file(&other).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(one);
        assert!(lock_file(&other).is_ok());
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_refuses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let long = |len: usize| {
            let path = dir.path().to_str().unwrap().to_owned() + "/";
            path.clone() + &"s".repeat(len - path.len())
        };
        let longest = long(107);
        drop(UnixListener::bind(&longest).unwrap());
        assert!(refuses(Path::new(&longest)));
        assert!([108, 109, 200].into_iter().all(|len| !refuses(Path::new(&long(len)))));
    }

    #[test]
    fn a_file_that_took_the_place_of_a_socket_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = UnixSocket::bind_with(&path, &SocketAccess::default()).unwrap();
        assert_eq!(socket.path(), path);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another's").unwrap();
        let lock = beside(&path);
        std::fs::remove_file(&lock).unwrap();
        std::fs::write(&lock, "").unwrap();
        drop(socket);
        assert!(path.exists() && lock.exists());
    }
}
