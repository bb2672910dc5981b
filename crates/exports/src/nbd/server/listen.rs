//! Where the server listens: Unix sockets and TCP ports, bound before any thread starts.
//!
//! Called by start-up; calls the module of Unix sockets and std's TCP.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

use millrace_block::{Error, ErrorKind};

use crate::UnixSocket;

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
    Unix(UnixSocket),
    Tcp(TcpListener),
}

impl Listener {
    /// # Errors
    /// `Busy` if somebody serves there, `System` if the system refuses; the message says where.
    pub(crate) fn bind(listen: &Listen) -> Result<Listener, Error> {
        match listen {
            Listen::Unix(path) => UnixSocket::bind_with(path, None).map(Listener::Unix),
            Listen::Tcp(address) => TcpListener::bind(address)
                .map(Listener::Tcp)
                .map_err(|error| cannot_listen(listen, &error)),
        }
    }

    /// The address that the socket is bound to, with the real port.
    pub(crate) fn address(&self) -> Listen {
        match self {
            Listener::Unix(unix) => Listen::Unix(unix.path().to_owned()),
            Listener::Tcp(socket) => Listen::Tcp(
                socket.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0))),
            ),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Listener::Unix(unix) => unix.socket().as_raw_fd(),
            Listener::Tcp(socket) => socket.as_raw_fd(),
        }
    }
}

/// Why a TCP port cannot be listened on: the error for whoever configured it.
fn cannot_listen(listen: &Listen, error: &io::Error) -> Error {
    let (kind, why) = match error.kind() {
        io::ErrorKind::AddrInUse => {
            (ErrorKind::Busy, "in use by another server; choose another port".to_owned())
        }
        _ => (ErrorKind::System, format!("cannot listen: {error}")),
    };
    Error::new(kind, format!("{listen}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_not_to_listen_on_a_port_is_told_with_what_to_do() {
        let tcp = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 9)));
        let of = |kind: io::ErrorKind| {
            let error = cannot_listen(&tcp, &kind.into());
            (error.kind(), error.to_string())
        };
        let (kind, text) = of(io::ErrorKind::AddrInUse);
        assert_eq!(kind, ErrorKind::Busy);
        assert!(text.contains("tcp:127.0.0.1:9: in use by another server; choose another port"));
        let (kind, text) = of(io::ErrorKind::PermissionDenied);
        assert_eq!(kind, ErrorKind::System);
        assert!(text.contains("tcp:127.0.0.1:9: cannot listen: "), "{text}");
    }

    #[test]
    fn a_listener_says_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = Listen::Unix(dir.path().join("s"));
        assert_eq!(Listener::bind(&path).unwrap().address(), path);
        let tcp = Listener::bind(&Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
        assert!(matches!(tcp.address(), Listen::Tcp(address) if address.port() != 0));
        assert!(tcp.fd() > 0);
    }
}
