//! Sockets that the service manager listens on and hands to this process.
//!
//! Owns the descriptors from the moment they are first asked for. Called when a listener is bound
//! whose address is the name of one; calls sd-notify for what systemd says in the environment.
//!
//! Invariant: each descriptor is handed out once, and is a socket that listens.
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

/// The sockets that nobody has taken yet, by name.
static SOCKETS: OnceLock<Mutex<Vec<(String, OwnedFd)>>> = OnceLock::new();
/// Addresses of all that were handed over, by name.
static ADDRESSES: OnceLock<Vec<(String, Listen)>> = OnceLock::new();

/// Takes the inherited socket of a name, which the unit says: `FileDescriptorName=`, or the name of
/// the socket unit.
///
/// # Errors
/// `InvalidSetting` if there is none, or it is no socket that listens; the message says what there
/// is.
pub(crate) fn take(name: &str) -> Result<OwnedFd, Error> {
    take_from(&mut lock(SOCKETS.get_or_init(|| Mutex::new(handed_over()))), name)
}

/// Names of the sockets that were handed over and that nobody has taken yet.
#[must_use]
pub fn handed_over_names() -> Vec<String> {
    let sockets = lock(SOCKETS.get_or_init(|| Mutex::new(handed_over())));
    sockets.iter().map(|(name, _)| name.clone()).collect()
}

/// The address that the socket of this name listens on. `None` if there is no such socket, and for
/// addresses that no file or port stands for.
#[must_use]
pub fn handed_over_address(name: &str) -> Option<&'static Listen> {
    ADDRESSES.get()?.iter().find(|(known, _)| known == name).map(|(_, address)| address)
}

/// Where a socket listens, if that is a file or a port.
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
            [] => "no socket was handed over; start it by its socket unit, as with systemctl \
                   start millrace.socket"
                .to_owned(),
            known => {
                format!("no socket of this name was handed over; there is {}", known.join(", "))
            }
        };
        return Err(wrong(format!("systemd:{name}: {text}")));
    };
    let (_, socket) = sockets.remove(at);
    let listens = sockopt::socket_acceptconn(socket.as_fd()).unwrap_or(false);
    if !listens || sockopt::socket_type(socket.as_fd()) != Ok(rustix::net::SocketType::STREAM) {
        let text = "what was handed over is no socket that listens; write ListenStream= in its \
                    unit, and not Accept=yes";
        return Err(wrong(format!("systemd:{name}: {text}")));
    }
    Ok(socket)
}

/// What systemd hands over to this process, taken out of the environment only by reading it.
fn handed_over() -> Vec<(String, OwnedFd)> {
    let Ok(all) = sd_notify::listen_fds_with_names(false) else { return Vec::new() };
    // SAFETY: the descriptors were opened for this process before it began, as LISTEN_PID says,
    // and this runs once, so nobody else owns them.
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
        assert!(error.contains("systemd:other: no socket of this name"), "{error}");
        assert!(error.contains("there is nbd, odd"), "{error}");
        assert!(take_from(&mut sockets, "nbd").is_ok());
        let error = take_from(&mut sockets, "odd").unwrap_err().to_string();
        assert!(error.contains("no socket that listens"), "{error}");
        let error = take_from(&mut sockets, "nbd").unwrap_err().to_string();
        assert!(error.contains("systemd:nbd: no socket was handed over"), "{error}");
    }
}
