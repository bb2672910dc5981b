//! Connects to an NBD server: opens a socket and negotiates, with a time limit.
//!
//! Connecting blocks, so it runs on the thread that opens drives, or on a reconnecting thread.
//! Errors name the server by the text in the drive's spec.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_machine::Deadline;
use millrace_nbd::client::{Address, ClientHandshake, ClientProgress, ClientSession};
use millrace_nbd::wire::REP_ERR_TLS_REQD;
use millrace_nbd::{ProtocolError, ReplyStyle};
use millrace_tls::{ClientConfig, Session};

use super::wire::{TimeLimit, TimedConnection};
use super::{NbdConfig, NbdTls};

/// Maximum number of bytes that a server may send during the negotiation; enough for a long list of
/// exports.
const REPLY_BYTES_MAX: usize = 1 << 20;
const CONNECT: Duration = Duration::from_secs(5);
const HUNG_UP: &str = "the server hung up; its log may say why";

pub(crate) struct ServerTarget {
    pub(crate) config: NbdConfig,
    /// TLS configuration, and the host name that the server's certificate must have.
    tls: Option<(ClientConfig, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialPurpose {
    Transmit,
    Status,
    Ask,
}

pub(crate) struct NegotiatedConnection {
    pub(crate) wire: TimedConnection,
    pub(crate) session: ClientSession,
    pub(crate) identity: (u64, u64),
}

impl ServerTarget {
    pub(crate) fn new(config: NbdConfig) -> Result<ServerTarget, Error> {
        let load = |tls: &NbdTls| {
            let host = match (&tls.hostname, &config.uri.address) {
                (Some(name), _) => name,
                (None, Address::Tcp { host, .. }) => host,
                (None, Address::Unix { .. }) => "localhost",
            };
            let wrong = |error| config.error(ErrorKind::InvalidSetting, &format!("TLS: {error}"));
            Ok((ClientConfig::load(&tls.files).map_err(wrong)?, host.to_owned()))
        };
        let tls = config.tls.as_ref().map(load).transpose()?;
        Ok(ServerTarget { config, tls })
    }

    /// Connects and negotiates within `limit`. Returns `System` if the server does not answer, and
    /// `NotSupported` if it refuses.
    pub(crate) fn dial(
        &self,
        purpose: DialPurpose,
        limit: Duration,
    ) -> Result<NegotiatedConnection, Error> {
        self.dial_until(purpose, &mut Deadline::after(limit))
    }

    pub(crate) fn dial_until(
        &self,
        purpose: DialPurpose,
        limit: &mut TimeLimit,
    ) -> Result<NegotiatedConnection, Error> {
        let NbdConfig { uri, text, cancel, .. } = &self.config;
        cancel.check(text)?;
        let (socket, server) = self.connect(limit).map_err(|error| self.unreachable(&error))?;
        let mut wire = TimedConnection::new(socket, cancel.clone());
        let session = self.negotiate(&mut wire, purpose, limit)?;
        let identity = (server, hash(&(server, &uri.name)));
        Ok(NegotiatedConnection { wire, session, identity })
    }

    fn connect(&self, limit: &mut TimeLimit) -> io::Result<(OwnedFd, u64)> {
        match &self.config.uri.address {
            Address::Tcp { host, port } => {
                let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                let mut last = io::Error::other("the name has no address");
                // If the process is suspended during an attempt to connect, the attempt may time
                // out too early. So attempts that time out are repeated until `limit` has passed.
                loop {
                    for address in &addresses {
                        let attempt = |most| TcpStream::connect_timeout(address, most);
                        match limit.block(CONNECT, attempt) {
                            Some(Ok(stream)) => return Ok((stream.into(), hash(address))),
                            Some(Err(error)) => last = error,
                            None => return Err(io::ErrorKind::TimedOut.into()),
                        }
                    }
                    if last.kind() != io::ErrorKind::TimedOut {
                        return Err(last);
                    }
                }
            }
            Address::Unix { path } => {
                let stream = connect_unix(path)?;
                // A Unix socket is identified by device and inode, because two paths may lead to
                // one socket.
                let file = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
                Ok((stream.into(), file.map_or_else(|_| hash(path), |file| hash(&file))))
            }
        }
    }

    fn negotiate(
        &self,
        wire: &mut TimedConnection,
        purpose: DialPurpose,
        limit: &mut TimeLimit,
    ) -> Result<ClientSession, Error> {
        let mut shake = self.handshake(purpose)?;
        let (mut input, mut out, mut total) = (Vec::new(), Vec::new(), 0);
        loop {
            let fed = shake.feed(&input, &mut out);
            let (used, progress) = fed.map_err(|error| self.refused(&explained(error)))?;
            input.drain(..used);
            wire.say(&out, limit).map_err(|error| self.failed(&error))?;
            out.clear();
            match progress {
                ClientProgress::NeedMore => {}
                ClientProgress::StartTls => {
                    self.secure(wire, limit)?;
                    shake.secured(&mut out);
                    continue;
                }
                ClientProgress::Ready(_) if !input.is_empty() => {
                    return Err(self.refused("the server sent replies before any request"));
                }
                ClientProgress::Ready(session) => return Ok(session),
            }
            let got = wire.hear(&mut input, limit).map_err(|error| self.failed(&error))?;
            total += got;
            if got == 0 {
                let why = shake.refusal().map(|error| error.to_string());
                return Err(self.refused(&why.unwrap_or_else(|| HUNG_UP.into())));
            }
            if total > REPLY_BYTES_MAX {
                return Err(self.refused("the server sends more data than any negotiation needs"));
            }
        }
    }

    fn handshake(&self, purpose: DialPurpose) -> Result<ClientHandshake, Error> {
        let want = match purpose {
            DialPurpose::Ask => ReplyStyle::Simple,
            _ => ReplyStyle::Extended,
        };
        let shake = ClientHandshake::new(&self.config.uri.name, want);
        let shake = shake.map_err(|error| self.refused(&error.to_string()))?;
        let shake = if self.tls.is_some() { shake.with_tls() } else { shake };
        Ok(match purpose {
            DialPurpose::Transmit => shake,
            DialPurpose::Status => shake.with_allocation(),
            DialPurpose::Ask => shake.only_asking(),
        })
    }

    fn secure(&self, wire: &mut TimedConnection, limit: &mut TimeLimit) -> Result<(), Error> {
        let Some((config, host)) = &self.tls else { return Ok(()) };
        let session = Session::client(config, host);
        let session = session.map_err(|error| self.refused(&format!("TLS: {error}")))?;
        wire.secure(session, limit).map_err(|error| match error.kind() {
            io::ErrorKind::Other => self.refused(&format!("TLS: {error}")),
            _ => self.failed(&error),
        })
    }

    fn refused(&self, why: &str) -> Error {
        self.config.error(ErrorKind::NotSupported, why)
    }

    fn unreachable(&self, error: &io::Error) -> Error {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "there is no such socket: start the server, or correct uri=",
            io::ErrorKind::ConnectionRefused => {
                "no server listens at this address: start the server"
            }
            io::ErrorKind::TimedOut => {
                "the server does not answer: is it running, and can it be reached?"
            }
            io::ErrorKind::PermissionDenied => "change the socket's mode, or run as its owner",
            _ => "is the server running, and can it be reached?",
        };
        let text = format!("{}: connect: {error}; {advice}", self.config.text);
        Error::system(text, error.raw_os_error())
    }

    fn failed(&self, error: &io::Error) -> Error {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "the server does not answer; does it accept another client?".to_owned()
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => HUNG_UP.into(),
            _ => error.to_string(),
        };
        Error::system(format!("{}: negotiate: {why}", self.config.text), error.raw_os_error())
    }
}

/// Returns true if the server gave a reason for refusing the connection. A connection that the
/// server closes is not a refusal, because the server may just be starting.
pub(crate) fn is_refusal(error: &Error) -> bool {
    error.kind() == ErrorKind::NotSupported && !error.to_string().ends_with(HUNG_UP)
}

fn explained(error: ProtocolError) -> String {
    if let ProtocolError::NoExport { name, known } = &error
        && known.contains(name)
    {
        return format!(
            "the server lists export {name:?}, but does not open it; its log may say why"
        );
    }
    let advice = match &error {
        ProtocolError::BadMagic { .. } => "; is that an NBD server?",
        ProtocolError::NoExport { .. } => "; correct the name in uri=",
        ProtocolError::Refused { code: REP_ERR_TLS_REQD, .. } => {
            "; the server requires TLS: set tls-ca=, and write nbds: instead of nbd:"
        }
        _ => "",
    };
    format!("{error}{advice}")
}

fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    match path.as_os_str().as_bytes() {
        [0, name @ ..] => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
        _ => UnixStream::connect(path),
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
