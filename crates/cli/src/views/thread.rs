//! The thread that serves the control socket and the metrics page.
//!
//! Owns all sessions, the control socket, and a share of the metrics page's, which may change. It
//! sleeps in one poll(2) over all of them, without a time limit unless a client owes something, so
//! that an idle daemon stays idle. Clients are bounded in number; one that cannot be served costs
//! only itself. Time in which the daemon did not run counts against no client. Started by `serve`
//! when everything else stands; dropping [`Views`] ends it. It takes no part in I/O, and answers
//! between two calls of poll: a reply takes well below a millisecond.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace::AllowedPeers;
use millrace_exports::nbd::UnixSocket;
use millrace_machine::{LOOK_NS, Machine, Native, RunningClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Answers;
use super::metrics_listener::MetricsListener;
use super::session::{Session, SessionState, turn_away};

/// Clients of each socket at a time.
const CLIENTS_MAX: usize = 32;
/// A listener that the system gives no connection, for want of descriptors, is left alone so long.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the log says so at most.
const TOLD_EVERY: Duration = Duration::from_secs(60);
const MILLISECOND: Duration = Duration::from_millis(1);

/// What is listened on.
pub struct Sockets {
    /// The control socket.
    pub control: Option<UnixSocket>,
    /// Clients of the control socket that may change anything.
    pub admins: AllowedPeers,
    /// Where metrics are served.
    pub metrics: Arc<MetricsListener>,
}

/// The running thread.
pub struct Views {
    /// Closing it wakes the thread and ends it.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Views {
    /// Serves these sockets from now on. Without any, the thread waits for a place of metrics.
    ///
    /// # Errors
    /// If the system refuses a thread or a socket.
    pub fn start(sockets: Sockets, answers: Arc<dyn Answers>) -> io::Result<Views> {
        if let Some(control) = &sockets.control {
            control.socket().set_nonblocking(true)?;
        }
        let (stop, wake) = UnixStream::pair()?;
        let mut server = Loop::new(sockets, answers);
        let thread = std::thread::Builder::new().name("millrace-views".to_owned());
        let thread = thread.spawn(move || while server.turn(&wake) {})?;
        Ok(Views { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say; if it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

/// The thread's state.
struct Loop {
    sockets: Sockets,
    answers: Arc<dyn Answers>,
    sessions: Vec<Session>,
    paused_until: Option<Instant>,
    /// When the log was last told that clients wait.
    told: Option<Instant>,
    clock: RunningClock,
}

impl Loop {
    fn new(sockets: Sockets, answers: Arc<dyn Answers>) -> Loop {
        let (sessions, clock) = (Vec::new(), RunningClock::new());
        Loop { sockets, answers, sessions, paused_until: None, told: None, clock }
    }

    /// Sleeps until something happens and deals with it; false at the end.
    fn turn(&mut self, wake: &UnixStream) -> bool {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let limit = self.limit(now);
        self.clock.expect(limit.map(|limit| Native::now() + limit.as_nanos() as u64));
        // Kept until the next turn, so that a socket that is replaced is closed then.
        let metrics = self.sockets.metrics.socket();
        let Some(ready) = self.wait((wake, metrics.as_deref()), limit) else { return false };
        let pause = Duration::from_nanos(self.clock.look(Native::now(), LOOK_NS));
        if !pause.is_zero() {
            self.sessions.iter_mut().for_each(|session| session.forgive(pause));
        }
        let (listeners, sessions) = ready.split_at(3);
        if listeners[2] {
            self.sockets.metrics.take_change();
        }
        let (now, answers, mut sessions) = (Instant::now(), &self.answers, sessions.iter());
        self.sessions.retain_mut(|session| {
            let ready = sessions.next().is_some_and(|ready| *ready);
            match ready {
                true => session.turn(answers) == SessionState::Stay,
                false => session.deadline().is_none_or(|deadline| deadline > now),
            }
        });
        if listeners.iter().any(|ready| *ready) {
            self.accept(metrics.as_deref(), now);
        }
        true
    }

    /// How long to sleep at most: a short while as long as some client owes something.
    fn limit(&self, now: Instant) -> Option<Duration> {
        let deadlines = self.sessions.iter().filter_map(Session::deadline);
        let first = deadlines.chain(self.paused_until).min()?;
        // Rounded up, so as not to wake just before it.
        let left = first.saturating_duration_since(now) + MILLISECOND;
        Some(left.min(Duration::from_nanos(LOOK_NS)))
    }

    /// Which of the two listeners, the change of metrics, and then of all sessions, are ready; none
    /// at the end.
    fn wait(
        &self,
        (wake, metrics): (&UnixStream, Option<&TcpListener>),
        limit: Option<Duration>,
    ) -> Option<Vec<bool>> {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        let asked = match self.paused_until {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let control = self.sockets.control.as_ref().map(|control| control.socket().as_fd());
        for listener in [control, metrics.map(TcpListener::as_fd)] {
            // One that is not there is never ready.
            let stand_in = PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::empty());
            fds.push(listener.map_or(stand_in, |fd| PollFd::from_borrowed_fd(fd, asked)));
        }
        fds.push(PollFd::from_borrowed_fd(self.sockets.metrics.changed(), PollFlags::IN));
        fds.extend(self.sessions.iter().map(|session| {
            let (fd, flags) = session.interest();
            PollFd::from_borrowed_fd(fd, flags)
        }));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Some(vec![false; fds.len() - 1]),
            // Nothing that this thread could mend: the daemon goes on without views.
            Err(_) => return None,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        (!ready[0]).then(|| ready[1..].to_vec())
    }

    /// Takes all clients that wait.
    fn accept(&mut self, metrics: Option<&TcpListener>, now: Instant) {
        while let Some(control) = &self.sockets.control {
            let socket = match control.socket().accept() {
                Ok((socket, _)) => socket,
                Err(error) => {
                    self.not_accepted(&error, now);
                    break;
                }
            };
            let count = self.sessions.iter().filter(|session| session.is_control()).count();
            let admins = &self.sockets.admins;
            // Clients that may only read keep nobody out who may do more.
            let has_place = count < CLIENTS_MAX
                || admins.check(socket.as_raw_fd()).is_ok()
                    && drop_oldest(&mut self.sessions, Session::is_reader);
            match has_place {
                true => self.sessions.extend(Session::control(socket, admins, &*self.answers)),
                false => turn_away(&socket, CLIENTS_MAX),
            }
        }
        while let Some(metrics) = metrics {
            let socket = match metrics.accept() {
                Ok((socket, _)) => socket,
                Err(error) => {
                    self.not_accepted(&error, now);
                    break;
                }
            };
            let count = self.sessions.iter().filter(|session| !session.is_control()).count();
            // Clients that ask for nothing keep nobody out who does.
            if count < CLIENTS_MAX || drop_oldest(&mut self.sessions, Session::awaits_page_request)
            {
                self.sessions.extend(Session::metrics(socket));
            }
        }
    }

    fn not_accepted(&mut self, error: &io::Error, now: Instant) {
        let gone = matches!(
            error.kind(),
            io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted
        );
        if !gone {
            self.paused_until = Some(now + PAUSE);
            if self.told.is_none_or(|told| now.duration_since(told) > TOLD_EVERY) {
                self.told = Some(now);
                tracing::warn!("clients of the control socket or of metrics wait: {error}");
            }
        }
    }
}

/// Drops the oldest session of a kind, which the last one comes after; false if there is none.
fn drop_oldest(sessions: &mut Vec<Session>, is_kind: impl Fn(&Session) -> bool) -> bool {
    let oldest = sessions.iter().position(is_kind);
    oldest.map(|at| sessions.remove(at)).is_some()
}

#[cfg(test)]
mod tests;
