//! Finds out why a socket could not be created or a drive's file could not be opened, without
//! changing anything.
//!
//! `--check` must report the problems of a start but change nothing: it creates no file and
//! connects to nobody. A start also uses this module to find the socket at fault. Locks are tried
//! and released at once; a daemon that starts at the same time retries by itself. findings.rs,
//! view_sockets.rs, start/images.rs and start/drives.rs call it.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use millrace_drives::{
    FileAccess, Holder, Spec, flock_holder, lock_refusal, open_store, size_bytes, size_text,
};
use millrace_exports::socket_holder;
use rustix::fs::{Access, Mode, OFlags, access, ftruncate, open};
use rustix::process::{Resource, getrlimit};

/// Longest time that a check waits for locks that other processes hold.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two attempts at a lock.
const PAUSE: Duration = Duration::from_millis(25);

/// Deadline for waiting for other processes. A killed process holds its locks for some time, and a
/// start waits for their release.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    until: Instant,
}

impl Patience {
    /// Allows one second from now on, for all waits together.
    pub fn new() -> Patience {
        Patience { until: Instant::now() + PATIENCE }
    }

    /// Allows no wait.
    pub fn none() -> Patience {
        Patience { until: Instant::now() }
    }

    /// Repeats `held` until it returns `None` or the deadline has passed. Returns its last value.
    fn wait_for<T>(self, held: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            let found = held()?;
            if Instant::now() >= self.until {
                return Some(found);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Returns why no socket can be created at a path, with a remedy; `None` if it can.
pub fn socket(path: &Path, patience: Patience) -> Option<String> {
    let folder = folder_of(path);
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!(
                "its directory {shown} does not exist; create it, or choose another path"
            ));
        }
        Err(error) if error.kind() != io::ErrorKind::NotADirectory => {
            return Some(format!("its directory {shown}: {error}; choose another path"));
        }
        _ => return Some(format!("{shown} is not a directory; choose another path")),
    }
    let kind = fs::symlink_metadata(path).map(|meta| meta.file_type());
    if let Some(kind) = kind.ok().filter(|kind| !kind.is_socket()) {
        let what = if kind.is_dir() { "a directory" } else { "a file that is not a socket" };
        return Some(format!("{what} exists at this path; move it away, or choose another path"));
    }
    if let Some(holder) = patience.wait_for(|| socket_holder(path)) {
        return Some(format!("in use by {holder}; stop that, or choose another path"));
    }
    (!may_make_files(folder)).then(|| {
        format!(
            "this user may not make files in the directory {shown}; change its mode, or choose \
             another path"
        )
    })
}

/// Returns why the file of a drive cannot be opened or created as its spec says; `None` if it can,
/// or if the drive has no file.
pub fn drive(spec: &Spec, patience: Patience) -> Option<String> {
    let spec = &spec.innermost();
    let path = Path::new(spec.get("path")?);
    let shown = path.display();
    let read_only = switch(spec, "read-only").unwrap_or(false);
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) && !path.exists() {
        return Some(format!(
            "{shown}: this symbolic link points to a file that does not exist; create that file"
        ));
    }
    if !path.exists() {
        let size = size_bytes(spec.get("size")?).ok()?;
        return match read_only {
            true => Some(format!(
                "{shown}: there is no such file, and a drive that is read-only \
                                  makes none"
            )),
            false => unmakeable(path, size),
        };
    }
    if let Some(why) = unreadable(path) {
        return Some(format!("{shown}: {why}"));
    }
    if !read_only && access(path, Access::WRITE_OK).is_err() {
        let what = "this user may not write to the file";
        return Some(format!(
            "{shown}: {what}; change its mode, or serve it read-only: \
             read-only=on, or `serve --read-only`"
        ));
    }
    if !locks(spec) {
        return None;
    }
    let access = if read_only { FileAccess::ReadOnly } else { FileAccess::ReadWrite };
    patience.wait_for(|| lock_refusal(path, access))
}

/// Returns why nobody can listen at a TCP address, with a remedy; `None` if somebody can. Port 0 is
/// always free.
pub fn tcp(address: SocketAddr, patience: Patience) -> Option<String> {
    let refused = || TcpListener::bind(address).err();
    let in_use = || refused().filter(|error| error.kind() == io::ErrorKind::AddrInUse);
    patience.wait_for(in_use).or_else(refused).map(|error| no_tcp(&error))
}

/// Returns the remedy for an error of listening at a TCP address.
pub fn no_tcp(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "in use by another server; choose another port".to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; choose one of its own".to_owned()
        }
        _ => format!("cannot listen: {error}"),
    }
}

/// Returns why a file cannot be read, with the remedy.
pub fn unreadable(path: &Path) -> Option<String> {
    let what = "this user may not read it; change its mode, or run this as its owner";
    (access(path, Access::READ_OK) == Err(rustix::io::Errno::ACCESS)).then(|| what.to_owned())
}

/// Describes the condition that opening a drive may wait for: another process that has locked its
/// file, or the Ceph cluster of its image.
pub fn awaited(spec: &Spec) -> Option<String> {
    let spec = &spec.innermost();
    if let Some(image) = spec.get("image") {
        return Some(format!(
            "for the Ceph cluster, or for the client that has the lock of {image}"
        ));
    }
    let path = PathBuf::from(spec.get("path").filter(|_| locks(spec))?);
    let holder = holder_of(&path).filter(|holder| !holder.is_this())?;
    Some(format!("some seconds for {holder} to release {}", path.display()))
}

/// Returns why no file of this size can be created at a path. Tries with an unnamed file, which
/// disappears when closed; skips file systems without unnamed files.
fn unmakeable(path: &Path, size_bytes: u64) -> Option<String> {
    let (shown, folder, asked) = (path.display(), folder_of(path), size_text(size_bytes));
    if !folder.is_dir() {
        return Some(format!("{shown}: its directory does not exist; create it first"));
    }
    if !may_make_files(folder) {
        return Some(format!(
            "{shown}: this user may not make files in the directory {}; change its mode, or name \
             another file",
            folder.display()
        ));
    }
    // A write beyond this limit would end the process by a signal.
    let limit = getrlimit(Resource::Fsize).current.is_some_and(|most| size_bytes > most);
    let refused = || {
        let file = open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR);
        file.is_ok_and(|file| ftruncate(file, size_bytes) == Err(rustix::io::Errno::FBIG))
    };
    (limit || refused()).then(|| {
        format!(
            "{shown}: size={asked}: more than the maximum file size of its file system; lower the \
             size"
        )
    })
}

/// Returns the value of a switch of a file drive, if the spec sets it.
fn switch(spec: &Spec, key: &str) -> Option<bool> {
    spec.get(key).map(|value| ["on", "true", "yes", "1"].contains(&value))
}

/// Returns true if the drive locks its file.
fn locks(spec: &Spec) -> bool {
    switch(spec, "lock").unwrap_or(true)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn may_make_files(folder: &Path) -> bool {
    access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

fn holder_of(path: &Path) -> Option<Holder> {
    open_store(path, OpenOptions::new().read(true), 0).ok().and_then(|file| flock_holder(&file))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    fn said(spec: &str) -> Option<String> {
        drive(&spec.parse().unwrap(), Patience::none())
    }

    #[test]
    fn nothing_speaks_against_what_can_be_made_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(at("stale")).unwrap());
        let socket = |name| socket(&at(name), Patience::none());
        assert_eq!((socket("new"), socket("stale")), (None, None));
        fs::write(at("d"), [0; 512]).unwrap();
        let (new, old) = (at("new").display().to_string(), at("d").display().to_string());
        assert_eq!(said(&format!("file:path={new},size=1m")), None);
        assert_eq!(said(&format!("fault:drive=(file:path={old})")), None);
        assert_eq!(said("null:size=1g"), None);
        assert!(!at("new").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing was made");
    }

    #[test]
    fn a_port_that_is_taken_and_an_address_of_others_are_refused() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let tcp = |address| tcp(address, Patience::none());
        let said = |address: &str| tcp(address.parse().unwrap());
        assert_eq!(said("127.0.0.1:0"), None);
        let why = tcp(taken);
        assert_eq!(why, None, "it was let go");
        let holder = TcpListener::bind(taken).unwrap();
        let why = tcp(holder.local_addr().unwrap()).unwrap();
        assert_eq!(why, "in use by another server; choose another port");
        // A network for documents, which nobody has (RFC 5737).
        let why = said("192.0.2.1:0").unwrap();
        assert_eq!(why, "this machine has no such address; choose one of its own");
    }

    #[test]
    fn locks_that_are_let_go_within_a_second_are_waited_for_and_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        fs::write(&path, [0; 512]).unwrap();
        fs::write(dir.path().join("s.lock"), "").unwrap();
        let files = [path.clone(), dir.path().join("s.lock")].map(|path| {
            let file = File::open(path).unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file
        });
        let spec: Spec = format!("file:path={}", path.display()).parse().unwrap();
        let look = |patience| (drive(&spec, patience), socket(&dir.path().join("s"), patience));
        let refused = look(Patience::none());
        assert!(refused.0.is_some() && refused.1.is_some());
        // As a process that was killed does.
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(200));
                drop(files);
            });
            assert_eq!(look(Patience::new()), (None, None));
        });
        let began = Instant::now();
        let _file = File::open(&path)
            .map(|file| flock(&file, FlockOperation::LockExclusive).map(|()| file));
        assert!(look(Patience::new()).0.is_some());
        assert!(began.elapsed() >= PATIENCE);
    }

    #[test]
    fn a_locked_file_is_refused_unless_the_lock_is_shared_or_not_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        fs::write(&path, [0; 512]).unwrap();
        let (file, path) = (File::open(&path).unwrap(), path.display());
        flock(&file, FlockOperation::LockShared).unwrap();
        let why = said(&format!("fault:drive=(file:path={path})")).unwrap();
        assert!(why.contains("uses this file"), "{why}");
        assert_eq!(said(&format!("file:path={path},read-only=on")), None);
        assert_eq!(said(&format!("file:path={path},lock=off")), None);
        flock(&file, FlockOperation::LockExclusive).unwrap();
        assert!(said(&format!("file:path={path},read-only=on")).is_some());
    }
}
