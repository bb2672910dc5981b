//! A session: one client of the control socket or of the metrics page.
//!
//! Both buffers are bounded: the input by the longest request, the output by one reply, because no
//! further request is read before that reply is sent. A session never blocks. A client that neither
//! completes its request nor reads its reply is dropped at its deadline.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use millrace::AllowedPeers;
use millrace_console::visible;
use rustix::event::PollFlags;
use serde_json::Value;

use super::protocol::{self, LINE_BYTES_MAX};
use super::{Answers, Question, Refusal, http};

/// Timeout for receiving a request and for sending a reply.
pub const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
/// Maximum number of requests of one client that are answered in a row while other clients wait.
const REQUESTS_A_TURN: usize = 16;
const READ_BYTES: usize = 4096;
const LOGGED_BYTES_MAX: usize = 500;

pub struct Session {
    /// Connected socket in non-blocking mode: a Unix socket for control, or a TCP socket for the
    /// metrics page. A `File` can read and write both.
    socket: File,
    is_control: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Start of the wait for the client to complete a request or to read a reply. `None` if the
    /// session waits for neither.
    owed_since: Option<Instant>,
    /// True if the session reads no further request, and ends as soon as its output is sent.
    last: bool,
    /// Refusal that is sent if the client asks for a change; `None` for a client that may make
    /// changes.
    read_only: Option<Refusal>,
    peer: String,
    pending: Option<PendingAnswer>,
}

struct PendingAnswer {
    done: UnixStream,
    reply: Receiver<Vec<u8>>,
}

impl Session {
    /// Starts a session on the control socket and queues the greeting. Only clients in `admins` may
    /// change anything.
    pub fn control(
        socket: UnixStream,
        admins: &AllowedPeers,
        answers: &dyn Answers,
    ) -> io::Result<Session> {
        socket.set_nonblocking(true)?;
        let read_only = admins.check(socket.as_raw_fd()).err().map(|who| denied(admins, &who));
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        let mut session = Session::new(socket);
        session.is_control = true;
        session.peer =
            format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw());
        session.output = protocol::line(&answers.greeting());
        session.read_only = read_only;
        Ok(session)
    }

    pub fn metrics(socket: TcpStream) -> io::Result<Session> {
        socket.set_nonblocking(true)?;
        Ok(Session::new(socket))
    }

    fn new(socket: impl Into<OwnedFd>) -> Session {
        Session {
            socket: File::from(socket.into()),
            is_control: false,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            owed_since: Some(Instant::now()),
            last: false,
            read_only: None,
            peer: String::new(),
            pending: None,
        }
    }

    pub fn is_control(&self) -> bool {
        self.is_control
    }

    pub fn is_reader(&self) -> bool {
        self.is_control() && self.read_only.is_some()
    }

    pub fn awaits_page_request(&self) -> bool {
        !self.is_control() && self.output.is_empty()
    }

    pub fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        if let Some(pending) = &self.pending {
            return (pending.done.as_fd(), PollFlags::IN);
        }
        let flags = if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
        (self.socket.as_fd(), flags)
    }

    /// Returns the time at which the client is dropped if it neither completes its request nor
    /// reads its reply. Returns `None` if the session waits for neither.
    pub fn deadline(&self) -> Option<Instant> {
        self.owed_since.map(|since| since + PATIENCE)
    }

    /// Extends the deadline by the time for which the daemon was suspended.
    pub fn forgive(&mut self, pause: Duration) {
        self.owed_since = self.owed_since.map(|since| (since + pause).min(Instant::now()));
    }

    /// Sends and receives without blocking. Returns false when the session ends.
    pub fn turn(&mut self, answers: &Arc<dyn Answers>) -> bool {
        self.try_turn(answers).unwrap_or(false)
    }

    fn try_turn(&mut self, answers: &Arc<dyn Answers>) -> io::Result<bool> {
        if let Some(pending) = &self.pending {
            match pending.reply.try_recv() {
                Ok(reply) => self.reply(reply),
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
            self.pending = None;
        }
        for _ in 0..REQUESTS_A_TURN {
            if !self.send()? {
                return Ok(true);
            }
            if self.take_request(answers) {
                continue;
            }
            if self.pending.is_some() {
                return Ok(true);
            }
            if self.last {
                return Ok(false);
            }
            if !self.receive()? {
                break;
            }
        }
        // A buffered request is taken here, because poll(2) reports no event for input that was
        // already received. If an earlier reply is not sent yet, the request is taken after the
        // reply.
        let has_reply = self.output.is_empty() && self.take_request(answers);
        if has_reply || self.pending.is_some() {
            return Ok(true);
        }
        match self.is_control() && self.input.is_empty() {
            true => self.owed_since = None,
            // The deadline counts from the first byte of a request, even if more bytes follow.
            false => self.owed_since = self.owed_since.or_else(|| Some(Instant::now())),
        }
        Ok(true)
    }

    fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent > 0 {
            (self.output, self.sent) = (Vec::new(), 0);
            // The next request gets a new deadline.
            self.owed_since = None;
        }
        Ok(true)
    }

    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; READ_BYTES];
        match self.socket.read(&mut buffer) {
            Ok(0) => {
                self.last = true;
                Ok(true)
            }
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn take_request(&mut self, answers: &Arc<dyn Answers>) -> bool {
        let reply = match self.is_control {
            true => self.take_line(answers),
            false if self.input.is_empty() => None,
            false => http::answer(&self.input, &**answers).inspect(|_| {
                // HTTP connections serve a single request.
                self.input = Vec::new();
                self.last = true;
            }),
        };
        let Some(reply) = reply else { return false };
        self.reply(reply);
        true
    }

    fn reply(&mut self, reply: Vec<u8>) {
        (self.output, self.sent) = (reply, 0);
        self.owed_since = Some(Instant::now());
    }

    fn take_line(&mut self, answers: &Arc<dyn Answers>) -> Option<Vec<u8>> {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            // A line that is too long is refused before its end has arrived.
            return (self.input.len() > LINE_BYTES_MAX).then(|| {
                self.input = Vec::new();
                self.last = true;
                protocol::reply(&Value::Null, Err(protocol::too_long()))
            });
        };
        let request = protocol::parse(&self.input[..end]);
        let line: Vec<u8> = self.input.drain(..=end).take(LOGGED_BYTES_MAX.min(end)).collect();
        let id = request.id;
        let asked = request.verb.and_then(|(name, arguments)| answers.ask(&name, arguments));
        let Question { changes, takes_long, answer } = match asked {
            Ok(question) => question,
            Err(refusal) => return Some(protocol::reply(&id, Err(refusal))),
        };
        if let Some(refusal) = self.read_only.as_ref().filter(|_| changes) {
            // Refusals are logged at debug level only, because read-only clients could fill the
            // log.
            let (text, peer) = (String::from_utf8_lossy(&line), &self.peer);
            tracing::debug!("control: {peer} was refused {}", visible(&text));
            return Some(protocol::reply(&id, Err(refusal.clone())));
        }
        let peer = self.peer.clone();
        let answer = move || {
            let outcome = answer();
            let text = String::from_utf8_lossy(&line);
            match &outcome {
                Ok(_) if changes => {
                    tracing::info!("control: {peer} requested {}", visible(&text));
                }
                Err(refusal) if takes_long => {
                    let why = refusal.message.replace('\n', "; ");
                    tracing::warn!("control: {peer} was refused {}: {why}", visible(&text));
                }
                _ => {}
            }
            protocol::reply(&id, outcome)
        };
        if !takes_long {
            return Some(answer());
        }
        self.answer_later(answer)
    }

    /// Starts a thread that computes the answer; the reply is sent later. If the socket pair that
    /// signals the thread's end cannot be created, computes and returns the reply at once. If the
    /// thread cannot be started, returns a refusal.
    fn answer_later(
        &mut self,
        answer: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Option<Vec<u8>> {
        let Ok((done, end)) = UnixStream::pair() else { return Some(answer()) };
        let (to, reply) = channel();
        let body = move || {
            // Sending fails if the client has disconnected.
            let _ = to.send(answer());
            drop(end);
        };
        match thread::Builder::new().name("millrace-change".to_owned()).spawn(body) {
            Ok(_) => {
                self.pending = Some(PendingAnswer { done, reply });
                self.owed_since = None;
                None
            }
            Err(error) => {
                let text = format!("cannot start a thread for this request: {error}");
                Some(protocol::reply(&Value::Null, Err(Refusal::new("io", text))))
            }
        }
    }
}

fn denied(admins: &AllowedPeers, who: &str) -> Refusal {
    let users = admins.users.iter().map(|user| match user {
        0 => "root".to_owned(),
        user => format!("user {user}"),
    });
    let users = users.collect::<Vec<_>>().join(", ");
    let group = match admins.groups.first() {
        Some(group) => format!("group {group} (control-admin-group)"),
        None => "the members of control-admin-group, which is not set".to_owned(),
    };
    let text =
        format!("this client may only read: {who}; only {users} and {group} may make changes");
    Refusal::new("denied", text)
}

/// Tells a client that there are too many clients, without waiting for it.
pub fn turn_away(socket: &UnixStream, clients_max: usize) {
    let text = format!("{clients_max} clients are connected, which is the maximum");
    let line = protocol::reply(&Value::Null, Err(Refusal::new("busy", text)));
    if socket.set_nonblocking(true).is_ok() {
        // If the write fails, the client only sees that the connection was closed.
        let _ = (&mut &*socket).write(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_a_change_says_who_may_and_who_asked() {
        let who = "process 7 of user 1000 and group 1000";
        let mut admins = AllowedPeers { users: vec![0, 997], groups: Vec::new() };
        let refusal = denied(&admins, who);
        let begin = "this client may only read: process 7 of user 1000 and group 1000; \
                     only root, user 997 and ";
        let not_set = "the members of control-admin-group, which is not set";
        let message = format!("{begin}{not_set} may make changes");
        assert_eq!(refusal, Refusal { kind: "denied", message });
        admins.groups.push(998);
        let text = format!("{begin}group 998 (control-admin-group) may make changes");
        assert_eq!(denied(&admins, who).message, text);
    }
}
