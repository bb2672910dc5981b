//! Control thread of a vhost-user export: its socket, one frontend at a time, its messages.
//!
//! The thread accepts a connection, or connects and reconnects itself, and passes messages to the
//! device until the frontend disconnects. The thread then stops and empties all rings and serves
//! the next frontend.
//!
//! The crate `vhost`, which parses messages, cannot notify the frontend of a size change. So this
//! file copies the descriptor for notifications before the crate reads the message, and sends the
//! notification itself.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg, send, socket_with,
};
use vhost::vhost_user::{BackendReqHandler, Error};

use millrace_machine::{Machine, Native};

use super::Device;
use crate::client_report::process_words;
use crate::mailbox::lock;
use crate::vhost::log::ExportLog;
use crate::{AllowedPeers, UnixSocket, descriptors};

const HEADER_BYTES: usize = 12;
const SET_BACKEND_REQ_FD: u32 = 21;
/// Bit of the second word of a message header: the frontend wants a reply.
const NEED_REPLY: u32 = 8;
/// Notification that the configuration space has changed: message number, flags (version 1, no
/// reply wanted), payload length.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];
const RETRY: Duration = Duration::from_secs(1);

pub(crate) enum ControlEndpoint {
    /// The frontend connects to this socket. Only the given peers may connect.
    Listen(UnixSocket, Option<AllowedPeers>),
    Connect(PathBuf),
}

#[derive(Debug, Clone)]
pub(crate) struct Frontend {
    /// Duplicate of the connection, used to shut it down.
    stream: Arc<UnixStream>,
    pub(crate) peer: String,
    pub(crate) since_ns: u64,
    /// Number of requests, and number of bytes, that the export had processed before this frontend
    /// connected.
    pub(crate) totals_before: [u64; 2],
}

impl Frontend {
    fn new(stream: UnixStream, totals_before: [u64; 2]) -> Frontend {
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        let peer = peer.map_or_else(
            |_| "unknown".to_owned(),
            |peer| process_words(peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()),
        );
        let stream = Arc::new(stream);
        Frontend { stream, peer, since_ns: Native::now(), totals_before }
    }

    pub(crate) fn disconnect(&self) {
        // `shutdown` fails only if the connection is already closed.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

pub(crate) struct FrontendLink {
    log: ExportLog,
    frontend: Mutex<Option<Frontend>>,
    changes: Mutex<Option<OwnedFd>>,
    /// Eventfd that wakes the control thread when the export stops; `shut_down` makes it readable.
    stop: OwnedFd,
}

impl FrontendLink {
    pub(crate) fn new(log: &ExportLog) -> io::Result<FrontendLink> {
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let (frontend, changes) = (Mutex::default(), Mutex::default());
        Ok(FrontendLink { log: log.clone(), frontend, changes, stop })
    }

    pub(crate) fn frontend(&self) -> Option<Frontend> {
        lock(&self.frontend).clone()
    }

    pub(crate) fn shut_down(&self) {
        // The write cannot block, because the counter of the eventfd is far below its limit.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(frontend) = &*lock(&self.frontend) {
            frontend.disconnect();
        }
    }

    /// Notifies the frontend that the configuration space has changed. Returns false if the
    /// frontend cannot be notified.
    pub(crate) fn notify_config_change(&self) -> bool {
        let Some(fd) = &*lock(&self.changes) else { return false };
        let mut message = [0; HEADER_BYTES];
        for (bytes, word) in message.chunks_mut(4).zip(CONFIG_CHANGE) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        send(fd, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
    }

    /// Waits until a descriptor is readable or the time is up. Returns which descriptors are
    /// readable, or `None` if the export stops.
    fn wait(&self, others: &[&dyn AsFd], limit: Option<Duration>) -> Option<Vec<bool>> {
        loop {
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
            let others = others.iter().map(|fd| fd.as_fd());
            fds.extend(others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let limit = limit.map(|limit| Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: limit.subsec_nanos().into(),
            });
            match poll(&mut fds, limit.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                _ => {
                    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
                    return (!ready[0]).then(|| ready[1..].to_vec());
                }
            }
        }
    }
}

impl ControlEndpoint {
    fn listener(&self) -> Option<&UnixListener> {
        match self {
            ControlEndpoint::Listen(socket, _) => Some(socket.socket()),
            ControlEndpoint::Connect(_) => None,
        }
    }

    /// Waits for a connection or creates one. Returns `None` if the export stops meanwhile.
    fn open(&self, link: &FrontendLink) -> Option<io::Result<UnixStream>> {
        match self {
            ControlEndpoint::Listen(socket, allow) => loop {
                link.wait(&[socket.socket()], None)?;
                let stream = match socket.socket().accept() {
                    Ok((stream, _)) => stream,
                    Err(error) => return Some(Err(error)),
                };
                match allow.as_ref().map(|allow| allow.check(stream.as_raw_fd())) {
                    Some(Err(who)) => tracing::warn!(
                        "unix:{}: refused a frontend that is not allowed to connect: {who}",
                        socket.path().display()
                    ),
                    _ => return Some(Ok(stream)),
                }
            },
            ControlEndpoint::Connect(path) => Some(connect(path)),
        }
    }

    fn failure(&self) -> String {
        match self {
            ControlEndpoint::Listen(..) => "cannot accept a frontend".to_owned(),
            ControlEndpoint::Connect(path) => format!("cannot connect to {}", path.display()),
        }
    }
}

pub(crate) fn run(
    endpoint: &ControlEndpoint,
    link: &FrontendLink,
    mut make: impl FnMut() -> Device,
) {
    let mut reported = false;
    while let Some(stream) = endpoint.open(link) {
        match stream {
            Ok(stream) => {
                reported = false;
                serve(stream, endpoint.listener(), link, make());
            }
            Err(error) if !std::mem::replace(&mut reported, true) => {
                let failure = endpoint.failure();
                link.log.say(format!("{failure}: {error}; trying again every second"));
            }
            Err(_) => {}
        }
        let pause = match endpoint {
            ControlEndpoint::Listen(..) if !reported => Duration::ZERO,
            _ => RETRY,
        };
        if link.wait(&[], Some(pause)).is_none() {
            return;
        }
    }
}

/// Connects without blocking, because a thread that waits for a frontend to accept could not be
/// stopped.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Serves one frontend until it disconnects. Logs a line if another frontend tries to connect
/// meanwhile.
fn serve(
    stream: UnixStream,
    mut socket: Option<&UnixListener>,
    link: &FrontendLink,
    device: Device,
) {
    let log = &link.log;
    let (Ok(copy), Ok(peeked)) = (stream.try_clone(), stream.try_clone()) else {
        return log.say("no file descriptors left for a frontend");
    };
    *lock(&link.frontend) = Some(Frontend::new(copy, device.totals()));
    let device = Arc::new(Mutex::new(device));
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&device));
    // The export may have been stopped before `link.frontend` was set. The stop then did not
    // disconnect this frontend, but the first `wait` reports the stop and ends this loop.
    loop {
        let mut fds: Vec<&dyn AsFd> = vec![&peeked];
        fds.extend(socket.map(|socket| socket as &dyn AsFd));
        let Some(ready) = link.wait(&fds, None) else { break };
        if !ready[0] {
            socket = None;
            log.say("another frontend waits until this one disconnects: a socket serves one guest at a time");
            continue;
        }
        let answered = look_ahead(&peeked, link);
        // The kernel may have dropped descriptors of the message. The crate `vhost` would silently
        // ignore such a message, and its sender would wait forever.
        if !descriptors::fit_one_message(&peeked)
            && let Some(why) = descriptors::shortage()
        {
            log.say_rarely(format!("disconnecting the frontend: {why}"));
            break;
        }
        match handler.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected) => {
                lock(&device).why_gone().iter().for_each(|why| log.say_rarely(why));
                break;
            }
            Err(Error::SocketRetry(_)) => {}
            // The reply has told the frontend of the error, so the session may continue.
            Err(_) if answered && lock(&device).goes_on() => {}
            // The kernel resets the connection of a killed process that has unread messages.
            Err(Error::SocketBroken(_)) => {
                log.note("the virtual machine's process has ended");
                break;
            }
            Err(error) => {
                let why = descriptors::shortage().unwrap_or_else(|| error.to_string());
                log.say_rarely(format!("disconnecting the frontend: {why}"));
                break;
            }
        }
    }
    *lock(&link.frontend) = None;
    *lock(&link.changes) = None;
    drop(handler);
    lock(&device).stop_all();
}

/// Looks at the next message without consuming it. If the message is SET_BACKEND_REQ_FD, keeps its
/// descriptor, through which the device sends messages to the frontend. Returns true if the message
/// wants a reply.
fn look_ahead(stream: &UnixStream, link: &FrontendLink) -> bool {
    let mut header = [0u8; HEADER_BYTES];
    let peek = RecvFlags::PEEK;
    let mut none = RecvAncillaryBuffer::default();
    let mut pieces = [io::IoSliceMut::new(&mut header)];
    if !recvmsg(stream, &mut pieces, &mut none, peek).is_ok_and(|got| got.bytes >= 8) {
        return false;
    }
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let answered = word(4) & NEED_REPLY != 0;
    if word(0) != SET_BACKEND_REQ_FD {
        return answered;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [io::IoSliceMut::new(&mut header)];
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    if recvmsg(stream, &mut pieces, &mut ancillary, flags).is_err() {
        return answered;
    }
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    *lock(&link.changes) = fd;
    answered
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use super::*;
    use crate::vhost::io_thread::thread_signal::ThreadSignal;

    fn quiet_link() -> FrontendLink {
        let say: crate::vhost::Say = Arc::new(|_| {});
        FrontendLink::new(&ExportLog::new("v", &say)).unwrap()
    }

    #[test]
    fn a_frontend_that_never_reads_of_changes_stops_nobody() {
        let link = quiet_link();
        assert!(!link.notify_config_change(), "nobody listens");
        let (ours, theirs) = UnixStream::pair().unwrap();
        *lock(&link.changes) = Some(ours.into());
        let told = (0..1_000_000).take_while(|_| link.notify_config_change()).count();
        assert!((1..1_000_000).contains(&told), "it is full after {told}");
        drop(theirs);
        assert!(!link.notify_config_change());
    }

    #[test]
    fn a_wait_goes_on_after_a_signal() {
        let (link, signal) = (quiet_link(), ThreadSignal::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _target = signal.attach();
                link.wait(&[&ours], None)
            });
            for _ in 0..1000 {
                signal.send();
                std::thread::yield_now();
            }
            drop(theirs);
            assert_eq!(waiting.join().unwrap(), Some(vec![true]));
        });
        assert_eq!(link.wait(&[], Some(Duration::ZERO)), Some(vec![]));
        link.shut_down();
        assert_eq!(link.wait(&[&ours], None), None, "the end comes first");
    }

    #[test]
    fn what_keeps_it_from_a_frontend_is_said_when_it_fails_first() {
        let said = Arc::<Mutex<Vec<String>>>::default();
        let into = Arc::clone(&said);
        let say: crate::vhost::Say = Arc::new(move |line: &str| lock(&into).push(line.to_owned()));
        let link = FrontendLink::new(&ExportLog::new("v", &say)).unwrap();
        link.shut_down();
        let endpoint = ControlEndpoint::Connect("/nowhere/at/all".into());
        run(&endpoint, &link, || unreachable!("there is no frontend"));
        let said = lock(&said);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("export v: cannot connect to /nowhere/at/all: "), "{said:?}");
    }
}
