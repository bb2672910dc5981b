//! `Wire`: a socket of either family that blocks up to a time, and TLS on it where that was asked
//! for.
//!
//! Used while a connection is negotiated, and by whoever asks one question at a time; then socket
//! and TLS session go to a link, which has a ring of its own for them. Called by `dial.rs` and
//! `status_line.rs`; calls the TLS crate.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use millrace_machine::{Deadline, Native};

use super::secure::Session;
use crate::common::cancel::{Cancel, LOOK};

/// A socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket, and the flag that ends a wait at it.
#[derive(Debug)]
struct Stream {
    socket: Socket,
    cancel: Cancel,
}

/// A socket, and perhaps TLS on it.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Stream,
    tls: Option<Box<Session>>,
}

impl Wire {
    /// Plain, so far. Waits end early once `cancel` is set.
    pub(crate) fn new(socket: Socket, cancel: Cancel) -> Wire {
        Wire { stream: Stream { socket, cancel }, tls: None }
    }

    /// The session of TLS, if there is one.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.tls.as_deref()
    }

    /// Begins TLS, and returns when the server's certificate was found good.
    ///
    /// # Errors
    /// What the session or the socket says.
    pub(crate) fn secure(
        &mut self,
        mut session: Session,
        deadline: &mut Deadline<Native>,
    ) -> io::Result<()> {
        while !session.is_established() {
            self.stream.send(&mut session, deadline)?;
            if session.is_established() {
                break;
            }
            if self.stream.receive(&mut session, deadline)? == 0 {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let gone_on = session.read(&mut []);
            // The peer is told why, too.
            let told = self.stream.send(&mut session, deadline);
            gone_on.map_err(io::Error::other).and(told)?;
        }
        self.tls = Some(Box::new(session));
        Ok(())
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// As the socket's; `TimedOut` or `WouldBlock` if that takes too long.
    pub(crate) fn say(&mut self, bytes: &[u8], deadline: &mut Deadline<Native>) -> io::Result<()> {
        let Some(session) = &mut self.tls else {
            return self.stream.write_all(bytes, deadline);
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = session.write(rest).map_err(io::Error::other)?;
            rest = &rest[taken..];
            self.stream.send(session, deadline)?;
        }
        session.finish().map_err(io::Error::other)?;
        self.stream.send(session, deadline)
    }

    /// Receives some bytes; 0 at the end.
    ///
    /// # Errors
    /// As the socket's; `TimedOut` or `WouldBlock` if nothing comes.
    pub(crate) fn hear(
        &mut self,
        into: &mut [u8],
        deadline: &mut Deadline<Native>,
    ) -> io::Result<usize> {
        let Some(session) = &mut self.tls else { return self.stream.read(into, deadline) };
        loop {
            match session.read(into).map_err(io::Error::other)? {
                0 if session.peer_closed() => return Ok(0),
                0 if self.stream.receive(session, deadline)? == 0 => return Ok(0),
                0 => {}
                bytes => return Ok(bytes),
            }
        }
    }

    /// Socket and session, for a ring: blocking, without time limits.
    ///
    /// # Errors
    /// If the system refuses an option.
    pub(crate) fn into_parts(self) -> io::Result<(OwnedFd, Option<Box<Session>>)> {
        self.stream.set_timeout(None)?;
        self.stream.prepare()?;
        let socket = match self.stream.socket {
            Socket::Tcp(stream) => stream.into(),
            Socket::Unix(stream) => stream.into(),
        };
        Ok((socket, self.tls))
    }
}

/// How long to wait at most before the next look at a deadline.
///
/// # Errors
/// `TimedOut` if it is over.
fn slice(deadline: &mut Deadline<Native>) -> io::Result<Duration> {
    deadline.slice().ok_or_else(|| io::ErrorKind::TimedOut.into())
}

impl Stream {
    /// Sends what the session has for the peer.
    fn send(&mut self, session: &mut Session, deadline: &mut Deadline<Native>) -> io::Result<()> {
        let bytes = session.output().len();
        self.write_all(session.output(), deadline)?;
        session.sent(bytes);
        Ok(())
    }

    /// Receives for the session.
    fn receive(
        &mut self,
        session: &mut Session,
        deadline: &mut Deadline<Native>,
    ) -> io::Result<usize> {
        let bytes = self.read(session.room(), deadline)?;
        session.received(bytes);
        Ok(bytes)
    }

    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
        }
    }

    /// Requests go out at once, and a server that is gone is noticed while nothing is sent.
    fn prepare(&self) -> io::Result<()> {
        let Socket::Tcp(stream) = &self.socket else { return Ok(()) };
        stream.set_nodelay(true)?;
        let fd = stream.as_raw_fd();
        set_option(fd, (libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1)?;
        // The first probe after 20 s of silence, and up when four of them, 5 s apart, are lost.
        set_option(fd, (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 20)?;
        set_option(fd, (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 5)?;
        set_option(fd, (libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 4)
    }

    fn read(&mut self, into: &mut [u8], deadline: &mut Deadline<Native>) -> io::Result<usize> {
        self.wait_for(deadline, |socket| match socket {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Unix(stream) => stream.read(into),
        })
    }

    fn write_all(&mut self, bytes: &[u8], deadline: &mut Deadline<Native>) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.wait_for(deadline, |socket| match socket {
                Socket::Tcp(stream) => stream.write(&bytes[sent..]),
                Socket::Unix(stream) => stream.write(&bytes[sent..]),
            })?;
        }
        Ok(())
    }

    /// Does something with the socket again and again until it moves bytes, until the deadline, or
    /// until the wait is cancelled.
    fn wait_for(
        &mut self,
        deadline: &mut Deadline<Native>,
        mut attempt: impl FnMut(&mut Socket) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            if self.cancel.is_set() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.set_timeout(Some(slice(deadline)?.min(LOOK)))?;
            match attempt(&mut self.socket) {
                // A ring of the thread's may interrupt it; a slice of the time is over.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                    ) => {}
                done => return done,
            }
        }
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
