//! Listening sockets that the service manager (systemd) passes to this process.
//!
//! Invariant: each descriptor is handed out once, and is a listening socket.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use millrace_block::{Error, ErrorKind};
use rustix::net::{SocketAddrUnix, sockopt};

use super::Listen;
use crate::mailbox::lock;

/// Names of the sockets that systemd passed and that are not in use yet, with the sockets.
static SOCKETS: OnceLock<Mutex<Vec<(String, OwnedFd)>>> = OnceLock::new();
static ADDRESSES: OnceLock<Vec<(String, Listen)>> = OnceLock::new();

/// Takes the inherited socket `name`, as set by `FileDescriptorName=` in the unit. An error lists
/// the sockets that were passed.
pub(crate) fn take(name: &str) -> Result<OwnedFd, Error> {
    take_from(&mut lock(SOCKETS.get_or_init(|| Mutex::new(handed_over()))), name)
}

/// Returns the names of passed sockets that are not in use yet.
#[must_use]
pub fn handed_over_names() -> Vec<String> {
    let sockets = lock(SOCKETS.get_or_init(|| Mutex::new(handed_over())));
    sockets.iter().map(|(name, _)| name.clone()).collect()
}

/// Returns the address that the inherited socket `name` listens on. Returns `None` if there is no
/// such socket, or if its address is neither a file nor a TCP port.
#[must_use]
pub fn handed_over_address(name: &str) -> Option<&'static Listen> {
    ADDRESSES.get()?.iter().find(|(known, _)| known == name).map(|(_, address)| address)
}

fn address_of(socket: &OwnedFd) -> Option<Listen> {
    let address = rustix::net::getsockname(socket).ok()?;
    match SocketAddr::try_from(address.clone()) {
        Ok(tcp) => Some(Listen::Tcp(tcp)),
        Err(_) => {
            let unix = SocketAddrUnix::try_from(address).ok()?;
            Some(Listen::Unix(PathBuf::from(OsStr::from_bytes(unix.path_bytes()?))))
        }
    }
}

fn take_from(sockets: &mut Vec<(String, OwnedFd)>, name: &str) -> Result<OwnedFd, Error> {
    let wrong = |text: String| Error::new(ErrorKind::InvalidSetting, text);
    let Some(at) = sockets.iter().position(|(known, _)| known == name) else {
        let known: Vec<&str> = sockets.iter().map(|(name, _)| name.as_str()).collect();
        let text = match known.as_slice() {
            [] => "systemd passed no socket; start the socket unit, for example with systemctl \
                   start millrace.socket"
                .to_owned(),
            known => {
                format!("systemd passed no socket of this name; it passed {}", known.join(", "))
            }
        };
        return Err(wrong(format!("systemd:{name}: {text}")));
    };
    let (_, socket) = sockets.remove(at);
    let listens = sockopt::socket_acceptconn(socket.as_fd()).unwrap_or(false);
    if !listens || sockopt::socket_type(socket.as_fd()) != Ok(rustix::net::SocketType::STREAM) {
        let text = "systemd passed something other than a listening socket; use ListenStream= in its \
                    unit, and not Accept=yes";
        return Err(wrong(format!("systemd:{name}: {text}")));
    }
    Ok(socket)
}

/// Reads from the environment which sockets systemd passed to this process. Leaves the environment
/// unchanged.
fn handed_over() -> Vec<(String, OwnedFd)> {
    let Ok(all) = sd_notify::listen_fds_with_names(false) else { return Vec::new() };
    // SAFETY: systemd opened these descriptors for this process, and this function runs only once.
    let sockets: Vec<_> =
        all.map(|(fd, name)| (name, unsafe { OwnedFd::from_raw_fd(fd) })).collect();
    let addresses = sockets.iter().filter_map(|(name, fd)| Some((name.clone(), address_of(fd)?)));
    ADDRESSES.get_or_init(|| addresses.collect());
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_socket_is_its_port_or_its_file() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap();
        assert_eq!(address_of(&tcp.into()), Some(Listen::Tcp(port)));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(address_of(&unix.into()), Some(Listen::Unix(path)));
        let (nameless, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(address_of(&nameless.into()), None);
    }

    #[test]
    fn a_socket_is_taken_once_and_by_its_name() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut sockets =
            vec![("nbd".to_owned(), listener.into()), ("odd".to_owned(), stream.into())];
        let error = take_from(&mut sockets, "other").unwrap_err().to_string();
        assert!(error.contains("systemd:other: systemd passed no socket of this name"), "{error}");
        assert!(error.contains("it passed nbd, odd"), "{error}");
        assert!(take_from(&mut sockets, "nbd").is_ok());
        let error = take_from(&mut sockets, "odd").unwrap_err().to_string();
        assert!(error.contains("other than a listening socket"), "{error}");
        let error = take_from(&mut sockets, "nbd").unwrap_err().to_string();
        assert!(error.contains("systemd:nbd: systemd passed no socket"), "{error}");
    }
}
