//! Thread that serves the control socket and the metrics page.
//!
//! The thread sleeps in one poll(2) over all sessions and sockets, without a timeout unless a
//! client has a deadline, so that an idle daemon stays idle. Time in which the daemon was suspended
//! does not count against the deadlines of clients. Answers are computed between two calls of poll
//! and take well below a millisecond. Dropping [`ViewThread`] ends the thread.

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
use super::session::{Session, turn_away};

const CLIENTS_MAX: usize = 32;
/// Time for which no clients are accepted after the system ran out of descriptors.
const PAUSE: Duration = Duration::from_secs(1);
const TOLD_EVERY: Duration = Duration::from_secs(60);
const MILLISECOND: Duration = Duration::from_millis(1);

pub struct Sockets {
    pub control: Option<UnixSocket>,
    /// Users and groups that may change settings through the control socket.
    pub admins: AllowedPeers,
    pub metrics: Arc<MetricsListener>,
}

pub struct ViewThread {
    /// Closing this socket wakes and ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl ViewThread {
    /// Starts a thread that serves these sockets. Without any socket, the thread waits until a
    /// reload adds a metrics socket.
    pub fn start(sockets: Sockets, answers: Arc<dyn Answers>) -> io::Result<ViewThread> {
        if let Some(control) = &sockets.control {
            control.socket().set_nonblocking(true)?;
        }
        let (stop, wake) = UnixStream::pair()?;
        let (sessions, clock) = (Vec::new(), RunningClock::new());
        let mut server =
            ViewLoop { sockets, answers, sessions, paused_until: None, told: None, clock };
        let thread = std::thread::Builder::new().name("millrace-views".to_owned());
        let thread = thread.spawn(move || while server.turn(&wake) {})?;
        Ok(ViewThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for ViewThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The result is ignored, because a panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}

struct ViewLoop {
    sockets: Sockets,
    answers: Arc<dyn Answers>,
    sessions: Vec<Session>,
    paused_until: Option<Instant>,
    told: Option<Instant>,
    clock: RunningClock,
}

impl ViewLoop {
    /// Waits for events and handles them. Returns false when the thread is to end.
    fn turn(&mut self, wake: &UnixStream) -> bool {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let limit = self.limit(now);
        self.clock.expect(limit.map(|limit| Native::now() + limit.as_nanos() as u64));
        // Keeps the metrics socket open during this iteration, even if a reload replaces it.
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
                true => session.turn(answers),
                false => session.deadline().is_none_or(|deadline| deadline > now),
            }
        });
        if listeners.iter().any(|ready| *ready) {
            self.accept(metrics.as_deref(), now);
        }
        true
    }

    fn limit(&self, now: Instant) -> Option<Duration> {
        let deadlines = self.sessions.iter().filter_map(Session::deadline);
        let first = deadlines.chain(self.paused_until).min()?;
        // The time is rounded up, so that poll does not return just before the deadline.
        let left = first.saturating_duration_since(now) + MILLISECOND;
        Some(left.min(Duration::from_nanos(LOOK_NS)))
    }

    /// Waits until a file descriptor is ready or the timeout has passed. Returns readiness flags:
    /// control listener, metrics listener, eventfd for a new metrics listener, all sessions.
    /// Returns `None` if the thread must end.
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
            // Placeholder for a missing listener, polled for no event.
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
            // Errors of poll(2) other than EINTR end this thread, but not the daemon.
            Err(_) => return None,
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        (!ready[0]).then(|| ready[1..].to_vec())
    }

    fn accept(&mut self, metrics: Option<&TcpListener>, now: Instant) {
        while let Some(control) = &self.sockets.control {
            let accepted = control.socket().accept();
            let Some((socket, _)) = self.accepted(accepted, now) else { break };
            let count = self.sessions.iter().filter(|session| session.is_control()).count();
            let admins = &self.sockets.admins;
            // If the maximum number of clients is connected, an administrator's connection replaces
            // the oldest session of a read-only client.
            let has_place = count < CLIENTS_MAX
                || admins.check(socket.as_raw_fd()).is_ok()
                    && drop_oldest(&mut self.sessions, Session::is_reader);
            match has_place {
                true => self.sessions.extend(Session::control(socket, admins, &*self.answers)),
                false => turn_away(&socket, CLIENTS_MAX),
            }
        }
        while let Some(metrics) = metrics {
            let Some((socket, _)) = self.accepted(metrics.accept(), now) else { break };
            let count = self.sessions.iter().filter(|session| !session.is_control()).count();
            // If the maximum number of clients is connected, a new client replaces the oldest
            // client that has not sent a complete request.
            if count < CLIENTS_MAX || drop_oldest(&mut self.sessions, Session::awaits_page_request)
            {
                self.sessions.extend(Session::metrics(socket));
            }
        }
    }

    /// Returns an accepted client. If the system has run out of descriptors, pauses the listeners.
    fn accepted<T>(&mut self, accepted: io::Result<T>, now: Instant) -> Option<T> {
        use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        let error = match accepted {
            Ok(accepted) => return Some(accepted),
            Err(error) => error,
        };
        if !matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) {
            self.paused_until = Some(now + PAUSE);
            if self.told.is_none_or(|told| now.duration_since(told) > TOLD_EVERY) {
                self.told = Some(now);
                tracing::warn!(
                    "cannot accept clients of the control socket or metrics page for now: {error}"
                );
            }
        }
        None
    }
}

fn drop_oldest(sessions: &mut Vec<Session>, is_kind: impl Fn(&Session) -> bool) -> bool {
    let oldest = sessions.iter().position(is_kind);
    oldest.map(|at| sessions.remove(at)).is_some()
}

#[cfg(test)]
mod tests;
