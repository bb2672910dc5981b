//! `TimedConnection`: a TCP or Unix socket with blocking calls and time limits, optionally with
//! TLS.
//!
//! A `TimedConnection` is used while a connection is negotiated, and for single queries. After the
//! negotiation, an `NbdLink` takes the socket and the TLS session, and sends requests on them.
use millrace_machine::{Deadline, Native};
use millrace_tls::Session;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SendFlags, send};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::common::cancel::{Cancel, LOOK};

pub(crate) type TimeLimit = Deadline<Native>;

const CHUNK_BYTES: usize = 16 << 10;

struct CancellableSocket {
    socket: OwnedFd,
    cancel: Cancel,
}

pub(crate) struct TimedConnection {
    stream: CancellableSocket,
    tls: Option<Box<Session>>,
}

impl TimedConnection {
    /// Creates a connection without TLS. Waits end early once `cancel` is set.
    pub(crate) fn new(socket: OwnedFd, cancel: Cancel) -> TimedConnection {
        TimedConnection { stream: CancellableSocket { socket, cancel }, tls: None }
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        self.tls.as_deref()
    }

    /// Starts TLS. Returns after the server's certificate was verified.
    pub(crate) fn secure(&mut self, mut session: Session, limit: &mut TimeLimit) -> io::Result<()> {
        while !session.is_established() {
            self.stream.send(&mut session, limit)?;
            if session.is_established() {
                break;
            }
            if self.stream.receive(&mut session, limit)? == 0 {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let gone_on = session.read(&mut []);
            // The failed handshake leaves an alert in the session, which is sent to the peer.
            let told = self.stream.send(&mut session, limit);
            gone_on.map_err(io::Error::other).and(told)?;
        }
        self.tls = Some(Box::new(session));
        Ok(())
    }

    pub(crate) fn say(&mut self, bytes: &[u8], limit: &mut TimeLimit) -> io::Result<()> {
        let Some(session) = &mut self.tls else {
            return self.stream.write_all(bytes, limit);
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = session.write(rest).map_err(io::Error::other)?;
            rest = &rest[taken..];
            self.stream.send(session, limit)?;
        }
        session.finish().map_err(io::Error::other)?;
        self.stream.send(session, limit)
    }

    /// Receives some bytes and appends them. Returns their number: 0 at the end of the stream.
    pub(crate) fn hear(&mut self, input: &mut Vec<u8>, limit: &mut TimeLimit) -> io::Result<usize> {
        let mut chunk = [0; CHUNK_BYTES];
        let bytes = match &mut self.tls {
            None => self.stream.read(&mut chunk, limit)?,
            Some(session) => loop {
                match session.read(&mut chunk).map_err(io::Error::other)? {
                    0 if session.peer_closed() => return Ok(0),
                    0 if self.stream.receive(session, limit)? == 0 => return Ok(0),
                    0 => {}
                    bytes => break bytes,
                }
            },
        };
        input.extend_from_slice(&chunk[..bytes]);
        Ok(bytes)
    }

    /// Returns the socket, in blocking mode without timeouts, and the TLS session.
    pub(crate) fn into_parts(self) -> io::Result<(OwnedFd, Option<Box<Session>>)> {
        self.stream.set_timeout(None)?;
        self.stream.prepare()?;
        Ok((self.stream.socket, self.tls))
    }
}

impl CancellableSocket {
    fn send(&mut self, session: &mut Session, limit: &mut TimeLimit) -> io::Result<()> {
        let bytes = session.output().len();
        self.write_all(session.output(), limit)?;
        session.sent(bytes);
        Ok(())
    }

    fn receive(&mut self, session: &mut Session, limit: &mut TimeLimit) -> io::Result<usize> {
        let bytes = self.read(session.room(), limit)?;
        session.received(bytes);
        Ok(bytes)
    }

    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, limit)?;
        Ok(sockopt::set_socket_timeout(&self.socket, Timeout::Send, limit)?)
    }

    /// Disables Nagle's algorithm, so that requests are sent at once, and enables keepalive, so
    /// that a lost server is noticed while nothing is sent.
    fn prepare(&self) -> io::Result<()> {
        let socket = &self.socket;
        if sockopt::socket_domain(socket)? == AddressFamily::UNIX {
            return Ok(());
        }
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        // The first probe is sent after 20 s of silence. The connection fails if four probes, 5 s
        // apart, get no answer.
        sockopt::set_tcp_keepidle(socket, Duration::from_secs(20))?;
        sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
        Ok(sockopt::set_tcp_keepcnt(socket, 4)?)
    }

    fn read(&mut self, into: &mut [u8], limit: &mut TimeLimit) -> io::Result<usize> {
        self.wait_for(limit, |socket| rustix::io::read(socket, &mut *into))
    }

    fn write_all(&mut self, bytes: &[u8], limit: &mut TimeLimit) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            sent += self.wait_for(limit, |socket| send(socket, rest, SendFlags::NOSIGNAL))?;
        }
        Ok(())
    }

    fn wait_for(
        &mut self,
        limit: &mut TimeLimit,
        mut attempt: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
    ) -> io::Result<usize> {
        loop {
            let Some(slice) = limit.slice().filter(|_| !self.cancel.is_set()) else {
                return Err(io::ErrorKind::TimedOut.into());
            };
            self.set_timeout(Some(slice.min(LOOK)))?;
            match attempt(&self.socket) {
                // The call was interrupted, or reached its timeout, which is shorter than the time
                // limit. The loop checks the time limit and `cancel` again.
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return Ok(done?),
            }
        }
    }
}
