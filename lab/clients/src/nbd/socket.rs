//! Socket of the client: sends and receives without blocking, or waits until that is possible.
//!
//! This type owns the descriptor. Called by the client. Invariant: the socket itself stays
//! blocking, so that the negotiation can use it directly; transmission passes `MSG_DONTWAIT`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    ToReceive,
    Either,
}

#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    pub(crate) fn new(stream: impl Into<OwnedFd>) -> Socket {
        Socket(stream.into())
    }

    /// Sends as many bytes as fit into the socket's send buffer now. Returns their number, or
    /// `None` if the buffer is full.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        at_once(retry_on_intr(|| send(&self.0, bytes, flags)))
    }

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

    /// Receives available bytes into `room` and returns their number, or `None` if there are none.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` at the end of the connection.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let receive = || recv(&self.0, &mut *room, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes);
        match at_once(retry_on_intr(receive))? {
            Some(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => Ok(other),
        }
    }

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

    /// Waits until the socket is ready. Returns true if there are bytes to receive, or if the
    /// connection has ended.
    pub(crate) fn wait(&self, ready: Ready) -> io::Result<bool> {
        let events = match ready {
            Ready::ToReceive => PollFlags::IN,
            Ready::Either => PollFlags::IN | PollFlags::OUT,
        };
        let mut fds = [PollFd::new(&self.0, events)];
        retry_on_intr(|| poll(&mut fds, None))?;
        Ok(!(fds[0].revents() - PollFlags::OUT).is_empty())
    }

    pub(crate) fn wait_any(sockets: &[&Socket], most: Duration) -> io::Result<()> {
        let mut fds: Vec<_> =
            sockets.iter().map(|socket| PollFd::new(&socket.0, PollFlags::IN)).collect();
        let most = Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: most.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&most)) {
            // A signal may end the wait early: the caller checks the sockets after every wait.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn at_once(outcome: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
