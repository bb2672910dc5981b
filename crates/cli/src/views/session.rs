//! One client of the control socket or of the metrics page.
//!
//! Owns its socket and its two buffers, both bounded: of input at most one request that is too
//! long, of output one reply, since nothing is read before the last reply is on its way. Never
//! blocks: thread.rs calls [`Session::turn`] when the socket is ready. A client that neither ends
//! its request nor takes its reply is gone at its deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
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

/// How long a request may take to arrive, and a reply to be taken.
pub const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 10 });
/// Requests of one client in a turn; then the others have theirs.
const REQUESTS_A_TURN: usize = 16;
const READ_BYTES: usize = 4096;
/// Most bytes of a request that the log shows.
const LOGGED_BYTES_MAX: usize = 500;

/// A connected socket that never blocks.
enum Socket {
    Control(UnixStream),
    Metrics(TcpStream),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Control(socket) => socket.read(buffer),
            Socket::Metrics(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Control(socket) => socket.write(bytes),
            Socket::Metrics(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What becomes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// It waits for its socket.
    Stay,
    /// It is over; drop it.
    Over,
}

/// A client.
pub struct Session {
    socket: Socket,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Of the output.
    sent: usize,
    /// Since when a request is unfinished or a reply not taken.
    owed_since: Option<Instant>,
    /// Nothing more is read: what is to be sent is the last.
    last: bool,
    /// Refusal of verbs that change anything; none for a client that may use them.
    read_only: Option<Refusal>,
    /// The client's process and user, for the log.
    peer: String,
    /// The answer that another thread is at.
    pending: Option<PendingAnswer>,
}

/// An answer that takes long, so that other clients are not kept waiting.
struct PendingAnswer {
    /// Readable when the answer is there.
    done: UnixStream,
    reply: Receiver<Vec<u8>>,
}

impl Session {
    /// A client of the control socket, with the greeting on its way. Verbs that change anything are
    /// for clients that `admins` admits.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn control(
        socket: UnixStream,
        admins: &AllowedPeers,
        answers: &dyn Answers,
    ) -> io::Result<Session> {
        socket.set_nonblocking(true)?;
        let read_only = admins.check(socket.as_raw_fd()).err().map(|who| denied(admins, &who));
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        let mut session = Session::new(Socket::Control(socket));
        session.peer =
            format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw());
        session.output = protocol::line(&answers.greeting());
        session.read_only = read_only;
        Ok(session)
    }

    /// A client of the metrics page.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn metrics(socket: TcpStream) -> io::Result<Session> {
        socket.set_nonblocking(true)?;
        Ok(Session::new(Socket::Metrics(socket)))
    }

    fn new(socket: Socket) -> Session {
        let (input, output) = (Vec::new(), Vec::new());
        let owed_since = Some(Instant::now());
        let (last, read_only, peer) = (false, None, String::new());
        let pending = None;
        Session { socket, input, output, sent: 0, owed_since, last, read_only, peer, pending }
    }

    /// Whether it is of the control socket.
    pub fn is_control(&self) -> bool {
        matches!(self.socket, Socket::Control(_))
    }

    /// Returns true for a client of the control socket that may only read.
    pub fn is_reader(&self) -> bool {
        self.is_control() && self.read_only.is_some()
    }

    /// Returns true for a client of the metrics page whose request has not come yet.
    pub fn awaits_page_request(&self) -> bool {
        !self.is_control() && self.output.is_empty()
    }

    /// The socket and what it is waited for.
    pub fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        if let Some(pending) = &self.pending {
            return (pending.done.as_fd(), PollFlags::IN);
        }
        let fd = match &self.socket {
            Socket::Control(socket) => socket.as_fd(),
            Socket::Metrics(socket) => socket.as_fd(),
        };
        (fd, if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT })
    }

    /// When patience ends; never for a client of the control socket that owes nothing.
    pub fn deadline(&self) -> Option<Instant> {
        self.owed_since.map(|since| since + PATIENCE)
    }

    /// The daemon did not run for so long, which is no fault of the client's.
    pub fn forgive(&mut self, pause: Duration) {
        self.owed_since = self.owed_since.map(|since| (since + pause).min(Instant::now()));
    }

    /// Sends and receives what is possible without waiting.
    pub fn turn(&mut self, answers: &Arc<dyn Answers>) -> SessionState {
        self.try_turn(answers).unwrap_or(SessionState::Over)
    }

    fn try_turn(&mut self, answers: &Arc<dyn Answers>) -> io::Result<SessionState> {
        if let Some(pending) = &self.pending {
            match pending.reply.try_recv() {
                Ok(reply) => self.reply(reply),
                Err(TryRecvError::Empty) => return Ok(SessionState::Stay),
                Err(TryRecvError::Disconnected) => return Ok(SessionState::Over),
            }
            self.pending = None;
        }
        for _ in 0..REQUESTS_A_TURN {
            if !self.send()? {
                return Ok(SessionState::Stay);
            }
            if self.take_request(answers) {
                continue;
            }
            if self.pending.is_some() {
                return Ok(SessionState::Stay);
            }
            if self.last {
                return Ok(SessionState::Over);
            }
            if !self.receive()? {
                break;
            }
        }
        // More may lie in the buffer, for which no socket will wake the thread: a reply that is
        // under way will.
        let has_reply = self.output.is_empty() && self.take_request(answers);
        if has_reply || self.pending.is_some() {
            return Ok(SessionState::Stay);
        }
        match self.is_control() && self.input.is_empty() {
            true => self.owed_since = None,
            // From the first byte of the request, whatever comes after it.
            false => self.owed_since = self.owed_since.or_else(|| Some(Instant::now())),
        }
        Ok(SessionState::Stay)
    }

    /// Sends; true if nothing is left.
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
            // The next request has its own time.
            self.owed_since = None;
        }
        Ok(true)
    }

    /// Receives once; false if there is nothing now.
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

    /// Answers the first request in the input, if it is there as a whole.
    fn take_request(&mut self, answers: &Arc<dyn Answers>) -> bool {
        let reply = match self.socket {
            Socket::Control(_) => self.take_line(answers),
            Socket::Metrics(_) if self.input.is_empty() => None,
            Socket::Metrics(_) => http::answer(&self.input, &**answers).inspect(|_| {
                // One request a connection.
                self.input = Vec::new();
                self.last = true;
            }),
        };
        let Some(reply) = reply else { return false };
        self.reply(reply);
        true
    }

    /// Begins to send a reply.
    fn reply(&mut self, reply: Vec<u8>) {
        (self.output, self.sent) = (reply, 0);
        self.owed_since = Some(Instant::now());
    }

    fn take_line(&mut self, answers: &Arc<dyn Answers>) -> Option<Vec<u8>> {
        let Some(end) = self.input.iter().position(|byte| *byte == b'\n') else {
            // Where a line that is too long ends is not waited for.
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
            // A client that may only read could fill the log.
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
                    tracing::info!("control: {peer} has asked for {}", visible(&text));
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

    /// Has a thread of its own find an answer; the answer if there cannot be one.
    fn answer_later(
        &mut self,
        answer: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Option<Vec<u8>> {
        let Ok((done, end)) = UnixStream::pair() else { return Some(answer()) };
        let (to, reply) = channel();
        let body = move || {
            // Nobody waits any more for a client that has gone.
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
                let text = format!("no thread for it: {error}");
                Some(protocol::reply(&Value::Null, Err(Refusal::new("io", text))))
            }
        }
    }
}

/// The refusal of changes for a client that is not among the admins.
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
    let text = format!("this client may only read: {who}; changes are for {users} and {group}");
    Refusal::new("denied", text)
}

/// Tells a client that there are too many; it is not waited for.
pub fn turn_away(socket: &UnixStream, clients_max: usize) {
    let text = format!("{clients_max} clients are connected, which is all there may be");
    let line = protocol::reply(&Value::Null, Err(Refusal::new("busy", text)));
    if socket.set_nonblocking(true).is_ok() {
        // Whoever does not get it sees the connection closed.
        let _ = (&mut &*socket).write(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_a_change_says_who_may_and_who_asked() {
        let who = "it is process 7 of user 1000 and group 1000";
        let mut admins = AllowedPeers { users: vec![0, 997], groups: Vec::new() };
        let refusal = denied(&admins, who);
        let begin = "this client may only read: it is process 7 of user 1000 and group 1000; \
                     changes are for root, user 997 and ";
        let not_set = "the members of control-admin-group, which is not set";
        let message = format!("{begin}{not_set}");
        assert_eq!(refusal, Refusal { kind: "denied", message });
        admins.groups.push(998);
        let text = format!("{begin}group 998 (control-admin-group)");
        assert_eq!(denied(&admins, who).message, text);
    }
}
