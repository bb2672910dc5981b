//! Finds out why a socket cannot be created or a port cannot be used, without creating anything.
//!
//! `--check` must report everything that a start would report but change nothing. After a failed
//! start, the same functions find the socket at fault or the process that locked a drive. A check
//! releases each lock at once after trying it; a daemon that starts at that moment retries.

use std::fs::OpenOptions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use millrace_drives::{Spec, flock_holder, open_store};
use millrace_exports::{socket_holder, socket_refusal};

const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(25);

/// Returns the deadline until which a check waits for locks of other processes to be released. A
/// process that was just killed releases its locks only a little later.
pub fn deadline() -> Instant {
    Instant::now() + LOCK_WAIT_MAX
}

/// Calls `held`, which returns the current holder, until nobody holds the resource or the deadline
/// has passed. Returns the remaining holder.
fn wait_for<T>(deadline: Instant, held: impl Fn() -> Option<T>) -> Option<T> {
    loop {
        let found = held()?;
        if Instant::now() >= deadline {
            return Some(found);
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the reason why no socket can be created at a path, with a remedy. Returns `None` if a
/// socket can be created.
pub fn socket(path: &Path, deadline: Instant) -> Option<String> {
    wait_for(deadline, || socket_holder(path));
    socket_refusal(path)
}

/// Returns the reason why a server cannot listen at a TCP address, with a remedy. Returns `None` if
/// a server can listen. Port 0 is always free.
pub fn tcp(address: SocketAddr, deadline: Instant) -> Option<String> {
    let refused = || TcpListener::bind(address).err();
    let in_use = || refused().filter(|error| error.kind() == io::ErrorKind::AddrInUse);
    wait_for(deadline, in_use).or_else(refused).map(|error| no_tcp(&error))
}

pub fn no_tcp(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "in use by another server; choose another port".to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have this address; choose one that it has".to_owned()
        }
        _ => format!("cannot listen: {error}"),
    }
}

/// Describes what opening a drive may wait for: another process that has locked its file, or the
/// Ceph cluster of its image.
pub fn awaited(spec: &Spec) -> Option<String> {
    let spec = &spec.innermost();
    if let Some(image) = spec.get("image") {
        return Some(format!(
            "for the Ceph cluster, or for the client that has the lock of {image}"
        ));
    }
    let path = Path::new(spec.get("path")?);
    let file = open_store(path, OpenOptions::new().read(true), 0).ok()?;
    let holder = flock_holder(&file).filter(|holder| !holder.is_this())?;
    Some(format!("some seconds for {holder} to release {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn nothing_speaks_against_what_can_be_made_or_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        drop(UnixListener::bind(at("stale")).unwrap());
        let socket = |name| socket(&at(name), Instant::now());
        assert_eq!((socket("new"), socket("stale")), (None, None));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
    }

    #[test]
    fn a_port_that_is_taken_and_an_address_of_others_are_refused() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let tcp = |address| tcp(address, Instant::now());
        let said = |address: &str| tcp(address.parse().unwrap());
        assert_eq!(said("127.0.0.1:0"), None);
        let why = tcp(taken);
        assert_eq!(why, None, "it was let go");
        let holder = TcpListener::bind(taken).unwrap();
        let why = tcp(holder.local_addr().unwrap()).unwrap();
        assert_eq!(why, "in use by another server; choose another port");
        // A network for documents, which nobody has (RFC 5737).
        let why = said("192.0.2.1:0").unwrap();
        assert_eq!(why, "this machine does not have this address; choose one that it has");
    }

    #[test]
    fn locks_freed_within_a_second_are_awaited_and_others_refused() {
        let dir = tempfile::tempdir().unwrap();
        let lock = || {
            let file = File::create(dir.path().join("s.lock")).unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            file
        };
        let look = |patience| socket(&dir.path().join("s"), patience);
        let file = lock();
        assert!(look(Instant::now()).is_some());
        // As a process that was killed does.
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(200));
                drop(file);
            });
            assert_eq!(look(deadline()), None);
        });
        let began = Instant::now();
        let _file = lock();
        assert!(look(deadline()).is_some());
        assert!(began.elapsed() >= LOCK_WAIT_MAX);
    }
}
