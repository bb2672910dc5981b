//! The client's socket: sends and receives that do not block, and a wait for either.
//!
//! Owns the descriptor. Called by the client; calls the kernel. Invariant: the socket itself stays
//! blocking, so the negotiation can use it plainly; the transmission says `MSG_DONTWAIT`.
#![allow(unsafe_code)]

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Something to receive.
    ToReceive,
    /// Something to receive, or room to send.
    Either,
}

/// A connected stream socket.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn from_tcp(stream: TcpStream) -> Socket {
        Socket(stream.into())
    }

    pub(crate) fn from_unix(stream: UnixStream) -> Socket {
        Socket(stream.into())
    }

    /// Sends what fits now; `None` if nothing does.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the slice is valid for its length during the call.
        retry(|| unsafe {
            libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
        })
    }

    /// Sends everything, and waits for that.
    pub(crate) fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(bytes)? {
                Some(sent) => bytes = &bytes[sent..],
                None => {
                    self.wait(Ready::Either)?;
                }
            }
        }
        Ok(())
    }

    /// Receives what is there into `room`; `None` if nothing is.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let (start, len) = (room.as_mut_ptr().cast(), room.len());
        // SAFETY: the slice is valid for its length during the call.
        let received =
            retry(|| unsafe { libc::recv(self.0.as_raw_fd(), start, len, libc::MSG_DONTWAIT) })?;
        match received {
            Some(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => Ok(other),
        }
    }

    /// Waits for bytes and appends them.
    pub(crate) fn receive_some(&self, input: &mut Vec<u8>) -> io::Result<()> {
        let mut room = [0; 4096];
        loop {
            if let Some(bytes) = self.receive(&mut room)? {
                input.extend_from_slice(&room[..bytes]);
                return Ok(());
            }
            self.wait(Ready::ToReceive)?;
        }
    }

    /// Waits; true if there is something to receive (the end of the connection too).
    pub(crate) fn wait(&self, ready: Ready) -> io::Result<bool> {
        let events = match ready {
            Ready::ToReceive => libc::POLLIN,
            Ready::Either => libc::POLLIN | libc::POLLOUT,
        };
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 };
        // SAFETY: one entry, a live local.
        retry(|| unsafe { libc::poll(&raw mut poll, 1, -1) as isize })?;
        Ok(poll.revents & !libc::POLLOUT != 0)
    }
}

/// Calls again when a signal came; `None` when the call would have to wait.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        if let Ok(returned) = usize::try_from(call()) {
            return Ok(Some(returned));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}
