//! An NBD client for measuring and testing servers: one connection, many requests in flight.
//!
//! [`Client::connect`] negotiates; [`Client::submit`] queues a request; [`Client::flush`] sends all
//! queued requests with one system call; [`Client::wait`] returns completions, many of them from
//! one receive. A client is used by one thread. A buffer belongs to the client while its request is
//! in flight, and to the caller otherwise. The benchmark and tests call the client, which calls
//! `millrace-nbd`.
//!
//! Invariants: a request completes once. While the client sends, it also receives replies, so that
//! a server that waits for its replies to be read never waits forever. Lengths that a server
//! announces are checked against the request before anything is written.

mod replies;
mod socket;

use std::io;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use millrace_nbd::client::{Address, ClientHandshake, ClientProgress, ClientSession, NbdUri};
use millrace_nbd::status::Extent;
use millrace_nbd::wire::EXTENDED_REQUEST_BYTES;
use millrace_nbd::{Command, Errno, ReplyStyle, Request, encode_request};

use self::replies::Replies;
use self::socket::{Ready, Socket};

const RECEIVE_BYTES: usize = 256 * 1024;
/// Number of queued bytes above which `submit` sends the queue without a call of `flush`.
const SEND_BYTES: usize = 256 * 1024;

/// Result of a request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// Number by which the caller identifies the request: the cookie passed to `submit`.
    pub user_data: u64,
    /// Error that the server replied with; `None` after success.
    pub errno: Option<Errno>,
    /// Buffer that the caller passed to `submit`. After a read, the buffer contains the data.
    pub buffer: Vec<u8>,
    /// Extents from the request's offset on, for a block status request; empty for other commands.
    pub extents: Vec<Extent>,
}

#[derive(Debug)]
pub(crate) struct SentRequest {
    user_data: u64,
    command: Command,
    offset: u64,
    length: u64,
    received: u64,
    errno: Option<Errno>,
    buffer: Vec<u8>,
    extents: Vec<Extent>,
}

/// Connection to an NBD server.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    session: ClientSession,
    out: Vec<u8>,
    pending: Vec<Option<SentRequest>>,
    free: Vec<u32>,
    replies: Replies,
    done: Vec<Completion>,
}

impl Client {
    /// Connects and negotiates structured replies, or simple replies if the server has no others.
    ///
    /// # Errors
    /// Returns errors of the system, or `InvalidData` if the server refuses or violates the
    /// protocol.
    pub fn connect(uri: &NbdUri) -> io::Result<Client> {
        Client::connect_as(uri, ReplyStyle::Structured)
    }

    /// Connects and negotiates replies of this style, or of a simpler style if the server lacks
    /// this one. Also negotiates block status, unless the replies are simple or the server does not
    /// offer it.
    ///
    /// # Errors
    /// Fails like [`Client::connect`].
    pub fn connect_as(uri: &NbdUri, style: ReplyStyle) -> io::Result<Client> {
        let socket = match &uri.address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port))?;
                stream.set_nodelay(true)?;
                Socket::new(stream)
            }
            Address::Unix { path } => Socket::new(connect_unix(path)?),
        };
        let handshake = ClientHandshake::new(&uri.name, style).map_err(invalid)?;
        let mut handshake = handshake.with_allocation();
        let (mut input, mut out) = (Vec::new(), Vec::new());
        let session = loop {
            let (used, progress) = handshake.feed(&input, &mut out).map_err(invalid)?;
            input.drain(..used);
            socket.send_all(&out)?;
            out.clear();
            match progress {
                ClientProgress::Ready(session) => break session,
                ClientProgress::NeedMore | ClientProgress::StartTls => {
                    socket.receive_some(&mut input).map_err(|error| {
                        // A server may close the connection after a refusal. The refusal explains
                        // the failure better than the receive error.
                        handshake.refusal().map_or(error, invalid)
                    })?
                }
            }
        };
        Ok(Client {
            socket,
            session,
            out: Vec::with_capacity(SEND_BYTES + EXTENDED_REQUEST_BYTES),
            pending: Vec::new(),
            free: Vec::new(),
            replies: Replies::new(RECEIVE_BYTES, &input),
            done: Vec::new(),
        })
    }

    /// Returns the negotiated session: the export's size, flags and block sizes.
    #[must_use]
    pub fn session(&self) -> &ClientSession {
        &self.session
    }

    /// Returns the number of requests whose completions were not returned yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len() + self.done.len()
    }

    /// Queues a request. A read fills `buffer` and a write sends it, so both need a buffer as long
    /// as the request. For other commands the buffer is kept and returned.
    ///
    /// # Errors
    /// Fails like [`Client::flush`], which is called if many bytes are queued.
    ///
    /// # Panics
    /// Panics if the `buffer` of a read or write does not have the length of the request.
    pub fn submit(&mut self, request: &Request, buffer: Vec<u8>) -> io::Result<()> {
        let &Request { cookie, command, offset, length, .. } = request;
        let has_data = matches!(command, Command::Read | Command::Write);
        assert!(
            !has_data || buffer.len() as u64 == length,
            "the buffer must have the length of the request"
        );
        let index = self.free.pop().unwrap_or(self.pending.len() as u32);
        if index as usize == self.pending.len() {
            self.pending.push(None);
        }
        let mut header = [0; EXTENDED_REQUEST_BYTES];
        let on_wire = Request { cookie: index.into(), ..*request };
        let bytes = encode_request(&on_wire, self.session.style, &mut header);
        self.out.extend_from_slice(&header[..bytes]);
        if command == Command::Write {
            self.out.extend_from_slice(&buffer);
        }
        self.pending[index as usize] = Some(SentRequest {
            user_data: cookie,
            command,
            offset,
            length,
            received: 0,
            errno: None,
            buffer,
            extents: Vec::new(),
        });
        if self.out.len() >= SEND_BYTES { self.flush() } else { Ok(()) }
    }

    /// Sends all queued requests. Replies that arrive meanwhile are kept for `poll` and `wait`.
    ///
    /// # Errors
    /// Returns errors of the system, or `InvalidData` if the server violates the protocol.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.socket.send(&self.out[sent..])? {
                Some(bytes) => sent += bytes,
                None => {
                    if self.socket.wait(Ready::Either)? {
                        self.receive()?;
                    }
                }
            }
        }
        self.out.clear();
        Ok(())
    }

    /// Sends queued requests and passes available completions to `take`, without waiting. Returns
    /// the number of completions.
    ///
    /// # Errors
    /// Fails like [`Client::flush`], or with `UnexpectedEof` if the server has closed the
    /// connection.
    pub fn poll(&mut self, take: impl FnMut(Completion)) -> io::Result<usize> {
        self.flush()?;
        self.receive()?;
        Ok(self.hand_out(take))
    }

    /// Sends queued requests, and waits until at least `min` completions were passed to `take`, or
    /// all if fewer are in flight. Returns the number of completions.
    ///
    /// # Errors
    /// Fails like [`Client::poll`].
    pub fn wait(&mut self, min: usize, mut take: impl FnMut(Completion)) -> io::Result<usize> {
        self.flush()?;
        let mut handed = self.hand_out(&mut take);
        while handed < min && self.in_flight() > 0 {
            if self.receive()? == 0 {
                self.socket.wait(Ready::ToReceive)?;
            }
            handed += self.hand_out(&mut take);
        }
        Ok(handed)
    }

    /// Executes one request and waits for its completion. No other request may be in flight.
    ///
    /// # Errors
    /// Fails like [`Client::poll`].
    pub fn call(&mut self, request: &Request, buffer: Vec<u8>) -> io::Result<Completion> {
        self.submit(request, buffer)?;
        let mut answer = None;
        self.wait(1, |done| answer = Some(done))?;
        answer.ok_or_else(|| invalid("no reply to the only request in flight"))
    }

    /// Ends the session with NBD's disconnect request.
    ///
    /// # Errors
    /// Returns errors of the system.
    pub fn disconnect(mut self) -> io::Result<()> {
        let (flags, offset, length) = (0, 0, 0);
        let request = Request { cookie: 0, flags, command: Command::Disc, offset, length };
        let mut header = [0; EXTENDED_REQUEST_BYTES];
        let bytes = encode_request(&request, self.session.style, &mut header);
        self.out.extend_from_slice(&header[..bytes]);
        self.flush()
    }

    /// Receives the bytes that have arrived; returns 0 if there are none.
    fn receive(&mut self) -> io::Result<usize> {
        let Client { socket, session, pending, free, replies, done, .. } = self;
        replies.receive(socket, session.style, pending, |index, pending| {
            free.push(index);
            let SentRequest { user_data, errno, buffer, extents, .. } = pending;
            done.push(Completion { user_data, errno, buffer, extents });
        })
    }

    fn hand_out(&mut self, take: impl FnMut(Completion)) -> usize {
        let count = self.done.len();
        self.done.drain(..).for_each(take);
        count
    }
}

/// Sleeps until one of several connections has bytes to receive, or until the time `most` has
/// passed. Bytes received earlier do not end the sleep, so call [`Client::poll`] of each connection
/// first.
///
/// # Errors
/// Returns errors of the system.
pub fn wait_any<'a>(
    clients: impl IntoIterator<Item = &'a Client>,
    most: Duration,
) -> io::Result<()> {
    let sockets: Vec<&Socket> = clients.into_iter().map(|client| &client.socket).collect();
    Socket::wait_any(&sockets, most)
}

fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    match path.as_os_str().as_bytes() {
        [0, name @ ..] => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
        _ => UnixStream::connect(path),
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
