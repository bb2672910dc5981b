//! Listening sockets of the server: Unix, TCP, and sockets passed by the service manager. They are
//! bound before any thread starts.
//!
//! The start of a server calls this module, which uses unix_socket.rs and inherited_sockets.rs.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use millrace_block::{Error, ErrorKind};

use super::inherited_sockets;
use crate::{SocketAccess, UnixSocket};

/// Address that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Listen {
    /// Unix socket at this path.
    Unix(PathBuf),
    /// Abstract Unix socket, which has no file and which every process of this host may open.
    Abstract(String),
    /// TCP address; port 0 lets the kernel choose a port.
    Tcp(SocketAddr),
    /// Socket that the service manager passes under this name.
    Inherited(String),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Abstract(name) => write!(f, "unix:@{name}"),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
            Listen::Inherited(name) => write!(f, "systemd:{name}"),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixSocket),
    /// TCP, abstract Unix or inherited socket, and its address (TCP: with the actual port).
    Other(OwnedFd, Listen),
}

impl Listener {
    pub(crate) fn bind(listen: &Listen, access: &SocketAccess) -> Result<Listener, Error> {
        let wrong = |text: &str| Error::new(ErrorKind::InvalidSetting, format!("{listen}: {text}"));
        if access.is_of_a_file() && !matches!(listen, Listen::Unix(_)) {
            return Err(wrong("only a Unix socket with a path can have a mode, owner or group"));
        }
        if access.allow.is_some() && matches!(listen, Listen::Tcp(_)) {
            return Err(wrong(
                "clients cannot be allowed by user or group over TCP; use a Unix socket",
            ));
        }
        match listen {
            Listen::Unix(path) => UnixSocket::bind_with(path, access).map(Listener::Unix),
            Listen::Abstract(name) => std::os::unix::net::SocketAddr::from_abstract_name(name)
                .and_then(|address| UnixListener::bind_addr(&address))
                .map(|socket| Listener::Other(socket.into(), listen.clone()))
                .map_err(|error| cannot_listen(listen, &error)),
            Listen::Inherited(name) => {
                Ok(Listener::Other(inherited_sockets::take(name)?, listen.clone()))
            }
            Listen::Tcp(address) => TcpListener::bind(address)
                .and_then(|socket| Ok((Listen::Tcp(socket.local_addr()?), socket)))
                .map(|(address, socket)| Listener::Other(socket.into(), address))
                .map_err(|error| cannot_listen(listen, &error)),
        }
    }

    pub(crate) fn address(&self) -> Listen {
        match self {
            Listener::Unix(unix) => Listen::Unix(unix.path().to_owned()),
            Listener::Other(_, address) => address.clone(),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Listener::Unix(unix) => unix.socket().as_raw_fd(),
            Listener::Other(socket, _) => socket.as_raw_fd(),
        }
    }
}

fn cannot_listen(listen: &Listen, error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::AddrInUse {
        let what = if matches!(listen, Listen::Tcp(_)) { "port" } else { "name" };
        let text = format!("{listen}: in use by another server; choose another {what}");
        return Error::new(ErrorKind::Busy, text);
    }
    Error::system(format!("{listen}: cannot listen: {error}"), error.raw_os_error())
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
        assert_eq!(Listener::bind(&path, &SocketAccess::default()).unwrap().address(), path);
        let tcp = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let tcp = Listener::bind(&tcp, &SocketAccess::default()).unwrap();
        assert!(matches!(tcp.address(), Listen::Tcp(address) if address.port() != 0));
        assert!(tcp.fd() > 0);
    }
}
