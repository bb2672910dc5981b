//! Socket operations of an I/O thread: accept, receive, send, cancel, close.
//!
//! Invariant (the reactor's contract): the memory that an operation names is in a boxed
//! [`Connection`](super::connection::Connection) or in a pool buffer that the connection holds. A
//! connection is freed only when neither its receive nor its send is outstanding. A thread that
//! ends while the reactor still holds operations leaks its connections and its pool.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use millrace_reactor::{Completion, Handle, Op, Source};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{self, AddressFamily, SendFlags, Shutdown, sockopt};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketEvent {
    Accepted(usize),
    Received(usize),
    Sent(usize),
    /// The peer of the connection with this index has read most of the bytes sent to it, or has
    /// disconnected.
    Caught(usize),
    Other,
}

/// Size, in bytes, of the send buffer that is requested for a Unix socket. The kernel doubles this
/// value.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

const KIND_ACCEPT: u64 = 0;
const KIND_RECEIVE: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_CAUGHT: u64 = 3;
const KIND_OTHER: u64 = 4;
const KIND_BITS: u32 = 3;

impl SocketEvent {
    pub(crate) fn of(user_data: u64) -> SocketEvent {
        let index = (user_data >> KIND_BITS) as usize;
        match user_data & ((1 << KIND_BITS) - 1) {
            KIND_ACCEPT => SocketEvent::Accepted(index),
            KIND_RECEIVE => SocketEvent::Received(index),
            KIND_SEND => SocketEvent::Sent(index),
            KIND_CAUGHT => SocketEvent::Caught(index),
            _ => SocketEvent::Other,
        }
    }
}

pub(crate) struct SocketRing {
    handle: Handle,
    source: Source,
}

impl SocketRing {
    pub(crate) fn new(handle: Handle) -> SocketRing {
        let source = handle.source();
        SocketRing { handle, source }
    }

    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        self.handle.take(self.source, into);
    }

    pub(crate) fn pending(&self) -> usize {
        self.handle.pending(self.source)
    }

    fn push(&self, index: usize, kind: u64, op: Op) {
        // SAFETY: see the module's invariant; `op` comes from the functions below.
        unsafe { self.handle.push(self.source, (index as u64) << KIND_BITS | kind, op) }
    }

    pub(crate) fn accept(&self, listener: usize, fd: RawFd) {
        self.push(listener, KIND_ACCEPT, Op::Accept { fd });
    }

    pub(crate) fn cancel_accept(&self, listener: usize) {
        let user_data = (listener as u64) << KIND_BITS | KIND_ACCEPT;
        self.push(0, KIND_OTHER, Op::Cancel { source: self.source, user_data });
    }

    /// Starts a receive into `room` on connection `index`. The memory must stay valid until the
    /// event `Received`.
    pub(crate) fn receive(&self, index: usize, fd: RawFd, room: &mut [u8]) {
        let (buf, len) = (room.as_mut_ptr(), room.len() as u32);
        self.push(index, KIND_RECEIVE, Op::Recv { fd, buf, len });
    }

    pub(crate) fn receive_message(&self, index: usize, fd: RawFd, msg: *mut libc::msghdr) {
        self.push(index, KIND_RECEIVE, Op::RecvMsg { fd, msg, flags: 0 });
    }

    /// Starts a send on connection `index`. The bytes must stay valid until the event `Sent`.
    pub(crate) fn send(&self, index: usize, fd: RawFd, bytes: &[u8]) {
        let (buf, len) = (bytes.as_ptr(), bytes.len() as u32);
        self.push(index, KIND_SEND, Op::Send { fd, buf, len, flags: 0 });
    }

    pub(crate) fn send_message(&self, index: usize, fd: RawFd, msg: *const libc::msghdr) {
        self.push(index, KIND_SEND, Op::SendMsg { fd, msg, flags: 0 });
    }

    /// Starts a wait until the peer of connection `index` has read most of the bytes in the send
    /// buffer. The event `Caught` ends the wait.
    pub(crate) fn catch_up(&self, index: usize, backlog: &SendBacklog) {
        self.push(index, KIND_CAUGHT, Op::PollIn { fd: backlog.0.as_raw_fd() });
    }

    /// Cancels the wait of [`SocketRing::catch_up`]. The event `Caught` is still delivered.
    pub(crate) fn cancel_catch_up(&self, index: usize) {
        let user_data = (index as u64) << KIND_BITS | KIND_CAUGHT;
        self.push(0, KIND_OTHER, Op::Cancel { source: self.source, user_data });
    }

    pub(crate) fn close(&self, fd: RawFd) {
        self.push(0, KIND_OTHER, Op::Close { fd });
    }
}

/// Reports when a socket becomes writable. A Unix socket becomes writable when its peer has read at
/// least three quarters of a full send buffer.
///
/// The reactor polls for input only, so the descriptor is an epoll instance, which becomes readable
/// when the socket is writable or broken.
#[derive(Debug)]
pub(crate) struct SendBacklog(OwnedFd);

impl SendBacklog {
    pub(crate) fn new(socket: RawFd) -> Option<SendBacklog> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let (data, events) = (epoll::EventData::new_u64(0), epoll::EventFlags::OUT);
        epoll::add(&fd, borrowed(socket), data, events).ok()?;
        Some(SendBacklog(fd))
    }
}

pub(crate) fn empty_message() -> libc::msghdr {
    // SAFETY: all-zero bytes are a message without address, segments and control data.
    unsafe { std::mem::zeroed() }
}

/// Borrows a descriptor for a call. The caller keeps the descriptor open during the call.
fn borrowed(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: each caller uses the descriptor for one call, during which its connection is open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Returns true if the peer has closed its socket completely. On TCP, returns true only after the
/// connection was reset or has failed.
pub(crate) fn is_gone(fd: RawFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(borrowed(fd), PollFlags::empty())];
    let found = poll(&mut fds, Some(&Timespec::default()));
    found == Ok(1) && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Returns the client's address on a TCP socket, or `None` if the client has disconnected or the
/// socket is no TCP socket.
#[cold]
pub(crate) fn peer_of(fd: RawFd) -> Option<std::net::SocketAddr> {
    net::getpeername(borrowed(fd)).ok()??.try_into().ok()
}

pub(crate) fn process_of(fd: RawFd) -> Option<(i32, u32)> {
    let peer = sockopt::socket_peercred(borrowed(fd)).ok()?;
    Some((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
}

pub(crate) fn piece_bytes(piece: &libc::iovec) -> &[u8] {
    // SAFETY: the batch keeps the memory of a segment until the segment is taken (replies.rs).
    // No drive writes to a buffer that is part of a reply.
    unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) }
}

/// Sends as many of the bytes as the socket takes without waiting, and drops the rest.
pub(crate) fn send_now(fd: RawFd, bytes: &[u8]) {
    let _ = net::send(borrowed(fd), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Shuts down both directions of a connection, so that outstanding operations complete.
pub(crate) fn shut_down(fd: RawFd) {
    let _ = net::shutdown(borrowed(fd), Shutdown::Both);
}

pub(crate) fn shut_down_input(fd: RawFd) {
    let _ = net::shutdown(borrowed(fd), Shutdown::Read);
}

/// Makes TCP send small replies at once, and makes a connection fail two minutes after the client's
/// machine vanished. Sockets other than TCP are unchanged.
pub(crate) fn set_tcp_options(fd: RawFd) {
    let fd = borrowed(fd);
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, Duration::from_secs(60));
    let _ = sockopt::set_tcp_keepintvl(fd, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepcnt(fd, 6);
}

/// Enlarges the send buffer of a Unix socket, as far as the kernel allows. A larger buffer holds
/// several long replies, so client and server wake each other less often. The kernel sizes the
/// buffers of TCP sockets itself.
pub(crate) fn set_send_buffer(fd: RawFd) {
    if sockopt::socket_domain(borrowed(fd)) == Ok(AddressFamily::UNIX) {
        let _ = sockopt::set_socket_send_buffer_size(borrowed(fd), SEND_BUFFER_BYTES);
    }
}

pub(crate) fn close_now(fd: RawFd) {
    // SAFETY: the descriptor was just accepted and is known to nobody else.
    unsafe { libc::close(fd) };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn tcp_connection_is_kept_alive_for_two_minutes_of_silence() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let fd = socket.as_raw_fd();
        set_tcp_options(fd);
        assert_eq!(sockopt::socket_keepalive(&socket), Ok(true));
        assert_eq!(sockopt::tcp_nodelay(&socket), Ok(true));
        let times = [sockopt::tcp_keepidle(&socket), sockopt::tcp_keepintvl(&socket)];
        assert_eq!(times, [60, 10].map(|seconds| Ok(Duration::from_secs(seconds))));
        assert_eq!(sockopt::tcp_keepcnt(&socket), Ok(6));
    }

    #[test]
    fn unix_socket_fits_long_replies_and_tcp_finds_its_own_size() {
        let (unix, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let room = |fd| sockopt::socket_send_buffer_size(borrowed(fd)).unwrap();
        let before = room(tcp.as_raw_fd());
        [unix.as_raw_fd(), tcp.as_raw_fd()].into_iter().for_each(set_send_buffer);
        // The kernel limits the requested size to `wmem_max`, and then doubles the size.
        let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
        let allowed = SEND_BUFFER_BYTES.min(most.trim().parse().unwrap());
        assert_eq!(room(unix.as_raw_fd()), 2 * allowed);
        assert_eq!(room(tcp.as_raw_fd()), before);
    }

    #[test]
    fn completions_name_their_operation_and_its_owner() {
        for index in [0usize, 1, 7, 8, 4095] {
            let of = |kind| SocketEvent::of((index as u64) << KIND_BITS | kind);
            assert_eq!(of(KIND_ACCEPT), SocketEvent::Accepted(index));
            assert_eq!(of(KIND_RECEIVE), SocketEvent::Received(index));
            assert_eq!(of(KIND_SEND), SocketEvent::Sent(index));
            assert_eq!(of(KIND_CAUGHT), SocketEvent::Caught(index));
            assert_eq!(of(KIND_OTHER), SocketEvent::Other);
        }
    }

    #[test]
    fn peer_is_gone_only_when_it_has_closed_both_directions() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_gone(ours.as_raw_fd()));
        std::io::Write::write_all(&mut &theirs, b"more").unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!is_gone(ours.as_raw_fd()));
        drop(theirs);
        assert!(is_gone(ours.as_raw_fd()));
    }

    #[test]
    fn a_half_or_all_of_a_connection_is_shut_down() {
        use std::io::{Read, Write};
        let pair = || std::os::unix::net::UnixStream::pair().unwrap();
        let (mut ours, mut theirs) = pair();
        shut_down_input(ours.as_raw_fd());
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
        ours.write_all(b"answer").unwrap();
        theirs.read_exact(&mut [0; 6]).unwrap();
        shut_down(ours.as_raw_fd());
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        assert!(ours.write_all(b"more").is_err());
        let (ours, mut theirs) = pair();
        close_now(std::os::fd::IntoRawFd::into_raw_fd(ours));
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
}
