//! Making a connection: a socket to the server and the negotiation on it, with a time limit.
//!
//! Blocks, so it runs on whatever thread sets drives up or on a thread that does nothing else
//! (`redial.rs`). Gives a socket whose next byte is the first reply's. Called by `nbd.rs`,
//! `redial.rs` and `status_line.rs`. Every error names the server as the spec does. The negotiation
//! itself is the protocol crate's.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_block::{Error, ErrorKind};
use millrace_nbd::client::{Address, ClientHandshake, ClientProgress, ClientSession, NbdUri};
use millrace_nbd::{ProtocolError, ReplyStyle};

/// Bytes of the negotiation that are taken at a time.
const CHUNK_BYTES: usize = 4096;
/// Most bytes that a server may send before it is ready: as many as a long list of exports has.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// Which export of which server.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Where the server listens, and the export's name.
    pub(crate) uri: NbdUri,
    /// The URI as it was written.
    pub(crate) text: String,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Reads and writes.
    Transmit,
    /// Questions about what is allocated.
    Status,
    /// Only to learn what the export is.
    Ask,
}

/// A connection whose negotiation is over.
#[derive(Debug)]
pub(crate) struct Connected {
    /// Blocking, without time limits.
    pub(crate) socket: OwnedFd,
    /// What was agreed on.
    pub(crate) session: ClientSession,
    /// Tells the export apart from all others: two numbers of server and name.
    pub(crate) identity: (u64, u64),
}

/// Either kind of stream.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Target {
    /// Connects and negotiates within `limit`.
    ///
    /// # Errors
    /// `System` if the server cannot be reached or says nothing in time, `NotSupported` if it
    /// refuses or is not understood.
    pub(crate) fn dial(&self, purpose: Purpose, limit: Duration) -> Result<Connected, Error> {
        let deadline = Instant::now() + limit;
        let (mut stream, server) =
            self.connect(deadline).map_err(|error| self.unreachable(&error))?;
        let session = self.negotiate(&mut stream, purpose, deadline)?;
        let fresh = stream.set_timeout(None).and_then(|()| stream.prepare());
        fresh.map_err(|error| self.failed("set up the connection", &error))?;
        let identity = (server, hash(&(server, &self.uri.name)));
        Ok(Connected { socket: stream.into_fd(), session, identity })
    }

    fn connect(&self, deadline: Instant) -> io::Result<(Stream, u64)> {
        match &self.uri.address {
            Address::Tcp { host, port } => {
                let mut last = io::Error::other("the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, left(deadline)?) {
                        Ok(stream) => return Ok((Stream::Tcp(stream), hash(&address))),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Unix { path } => {
                let stream = connect_unix(path)?;
                // A listening socket is a file; two paths may lead to one.
                let file = std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
                Ok((Stream::Unix(stream), file.map_or_else(|_| hash(path), |file| hash(&file))))
            }
        }
    }

    fn negotiate(
        &self,
        stream: &mut Stream,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<ClientSession, Error> {
        let refused = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::NotSupported, format!("{}: {error}", self.text))
        };
        let want = match purpose {
            Purpose::Ask => ReplyStyle::Simple,
            _ => ReplyStyle::Extended,
        };
        let shake = ClientHandshake::new(&self.uri.name, want).map_err(|error| refused(&error))?;
        let mut shake = match purpose {
            Purpose::Transmit => shake,
            Purpose::Status => shake.with_allocation(),
            Purpose::Ask => shake.only_asking(),
        };
        let (mut input, mut out, mut total) = (Vec::new(), Vec::new(), 0);
        let ask = "negotiate";
        loop {
            let fed = shake.feed(&input, &mut out);
            let (used, progress) = fed.map_err(|error| refused(&explained(error)))?;
            input.drain(..used);
            let sent = stream.set_deadline(deadline).and_then(|()| stream.write_all(&out));
            sent.map_err(|error| self.failed(ask, &error))?;
            out.clear();
            if let ClientProgress::Ready(session) = progress {
                return match input.is_empty() {
                    true => Ok(session),
                    false => Err(refused(&"the server sent replies before it was asked")),
                };
            }
            let mut chunk = [0; CHUNK_BYTES];
            let got = stream.set_deadline(deadline).and_then(|()| read_once(stream, &mut chunk));
            let got = got.map_err(|error| self.failed(ask, &error))?;
            total += got;
            match got {
                0 => {
                    let why = shake.refusal().map(|error| error.to_string());
                    let why = why.unwrap_or_else(|| HUNG_UP.into());
                    return Err(refused(&why));
                }
                _ if total > REPLY_BYTES_MAX => return Err(refused(&"it talks without end")),
                got => input.extend_from_slice(&chunk[..got]),
            }
        }
    }

    fn unreachable(&self, error: &io::Error) -> Error {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "there is no such socket: start the server, or correct uri=",
            io::ErrorKind::ConnectionRefused => "nobody listens there: start the server",
            io::ErrorKind::TimedOut => "the server is silent: is it there, and can it be reached?",
            io::ErrorKind::PermissionDenied => "change the socket's mode, or run as its owner",
            _ => "is the server there, and can it be reached?",
        };
        Error::new(ErrorKind::System, format!("{}: connect: {error}; {advice}", self.text))
    }

    fn failed(&self, doing: &str, error: &io::Error) -> Error {
        let why = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "the server says nothing; does it take another client?".to_owned()
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => HUNG_UP.into(),
            _ => error.to_string(),
        };
        Error::new(ErrorKind::System, format!("{}: {doing}: {why}", self.text))
    }
}

const HUNG_UP: &str = "the server hung up; its log may say why";

/// What a person can do about an answer.
fn explained(error: ProtocolError) -> String {
    let advice = match &error {
        ProtocolError::BadMagic { .. } => "; is that an NBD server?",
        ProtocolError::NoExport { .. } => "; correct the name in uri=",
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

/// What is left until then.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Stream {
    fn set_deadline(&self, deadline: Instant) -> io::Result<()> {
        self.set_timeout(Some(left(deadline)?))
    }

    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
        }
    }

    /// Requests go out at once, and a server that is gone is noticed while nothing is sent.
    fn prepare(&self) -> io::Result<()> {
        let Stream::Tcp(stream) = self else { return Ok(()) };
        stream.set_nodelay(true)?;
        let fd = stream.as_raw_fd();
        set_option(fd, (libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1)?;
        // The first probe after 20 s of silence, and up when four of them, 5 s apart, are lost.
        set_option(fd, (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 20)?;
        set_option(fd, (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 5)?;
        set_option(fd, (libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 4)
    }

    fn into_fd(self) -> OwnedFd {
        match self {
            Stream::Tcp(stream) => stream.into(),
            Stream::Unix(stream) => stream.into(),
        }
    }
}

/// Reads once; a ring of the thread's may interrupt that.
pub(crate) fn read_once(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn set_option(fd: i32, (level, name): (i32, i32), value: i32) -> io::Result<()> {
    let (start, len) = ((&raw const value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: four bytes of a live number.
    match unsafe { libc::setsockopt(fd, level, name, start, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
