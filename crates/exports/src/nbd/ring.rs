//! Socket operations of an I/O thread: accept, receive, send, cancel, close.
//!
//! Owns the reactor's source for the thread's sockets; all their operations are pushed here. Called
//! by the worker and its connections; calls the reactor.
//!
//! Invariant (the reactor's contract): the memory that an operation names is in a boxed
//! [`Connection`](super::connection::Connection) or in a pool buffer that the connection holds. A
//! connection is freed only when neither its receive nor its send is outstanding. A thread that
//! ends while the reactor still holds operations leaks its connections and its pool.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use millrace_reactor::{Completion, Handle, Op, Source};

/// Completed socket operation, decoded from its user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketEvent {
    /// An accept on the listener of this number.
    Accepted(usize),
    /// A receive of the connection of this index.
    Received(usize),
    /// A send of the connection of this index.
    Sent(usize),
    /// The peer of the connection of this index has read most of the bytes sent to it, or has
    /// disconnected.
    Caught(usize),
    /// A cancel or a close, which needs no handling.
    Other,
}

/// Size, in bytes, of the send buffer that is requested for a Unix socket. The kernel doubles this
/// value.
const SEND_BUFFER_BYTES: i32 = 256 * 1024;

const KIND_ACCEPT: u64 = 0;
const KIND_RECEIVE: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_CAUGHT: u64 = 3;
const KIND_OTHER: u64 = 4;
/// Bits of the user data that hold the kind of operation.
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

/// Socket operations of one I/O thread.
pub(crate) struct SocketRing {
    handle: Handle,
    source: Source,
}

impl SocketRing {
    pub(crate) fn new(handle: Handle) -> SocketRing {
        let source = handle.source();
        SocketRing { handle, source }
    }

    /// Appends completed operations to `into`.
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        self.handle.take(self.source, into);
    }

    /// Returns the number of outstanding operations.
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

    /// Starts a receive into memory of connection `index`, which must stay valid until the event
    /// `Received`.
    pub(crate) fn receive(&self, index: usize, fd: RawFd, room: &mut [u8]) {
        let (buf, len) = (room.as_mut_ptr(), room.len() as u32);
        self.push(index, KIND_RECEIVE, Op::Recv { fd, buf, len });
    }

    /// Starts a receive into the pieces of a message of connection `index`, which must stay valid
    /// until the event `Received`.
    pub(crate) fn receive_message(&self, index: usize, fd: RawFd, msg: *mut libc::msghdr) {
        self.push(index, KIND_RECEIVE, Op::RecvMsg { fd, msg, flags: 0 });
    }

    /// Starts a send of bytes of connection `index`, which must stay valid until the event `Sent`.
    pub(crate) fn send(&self, index: usize, fd: RawFd, bytes: &[u8]) {
        let (buf, len) = (bytes.as_ptr(), bytes.len() as u32);
        self.push(index, KIND_SEND, Op::Send { fd, buf, len, flags: 0 });
    }

    /// Starts a send of the pieces of a message of connection `index`, which must stay valid until
    /// the event `Sent`.
    pub(crate) fn send_message(&self, index: usize, fd: RawFd, msg: *const libc::msghdr) {
        self.push(index, KIND_SEND, Op::SendMsg { fd, msg, flags: 0 });
    }

    /// Asks for the event `Caught` once the peer of connection `index` has read most of the bytes
    /// sent to it.
    pub(crate) fn catch_up(&self, index: usize, backlog: &SendBacklog) {
        self.push(index, KIND_CAUGHT, Op::PollIn { fd: backlog.0.as_raw_fd() });
    }

    /// Cancels the operation of [`SocketRing::catch_up`]. The event `Caught` is delivered
    /// nevertheless.
    pub(crate) fn cancel_catch_up(&self, index: usize) {
        let user_data = (index as u64) << KIND_BITS | KIND_CAUGHT;
        self.push(0, KIND_OTHER, Op::Cancel { source: self.source, user_data });
    }

    /// Closes a descriptor without outstanding operations.
    pub(crate) fn close(&self, fd: RawFd) {
        self.push(0, KIND_OTHER, Op::Close { fd });
    }
}

/// Reports when a socket becomes writable. A Unix socket becomes writable when its peer has read at
/// least three quarters of a full send buffer.
///
/// This is an epoll instance, because the reactor polls for input only. It becomes readable when
/// the socket is writable or broken.
#[derive(Debug)]
pub(crate) struct SendBacklog(OwnedFd);

impl SendBacklog {
    pub(crate) fn new(socket: RawFd) -> Option<SendBacklog> {
        // SAFETY: touches no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and known to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 0 };
        // SAFETY: the event is a live local, which the kernel copies.
        let added =
            unsafe { libc::epoll_ctl(fd.as_raw_fd(), libc::EPOLL_CTL_ADD, socket, &mut event) };
        (added == 0).then_some(SendBacklog(fd))
    }
}

/// Returns a message without pieces.
pub(crate) fn empty_message() -> libc::msghdr {
    // SAFETY: all-zero bytes are a message without address, pieces and control data.
    unsafe { std::mem::zeroed() }
}

/// Returns true if the peer of a socket has closed it completely; on TCP, only if the peer sent a
/// reset.
pub(crate) fn is_gone(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one entry, a live local; it does not wait.
    let found = unsafe { libc::poll(&raw mut poll, 1, 0) };
    found > 0 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Returns the client's address on a TCP socket, or `None` if the client has disconnected or the
/// socket is no TCP socket.
#[cold]
pub(crate) fn peer_of(fd: RawFd) -> Option<std::net::SocketAddr> {
    // SAFETY: the caller's descriptor, open for the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::net::getpeername(socket).ok()??.try_into().ok()
}

/// Returns process ID and user ID of a Unix socket's peer.
pub(crate) fn process_of(fd: RawFd) -> Option<(i32, u32)> {
    // SAFETY: the caller's descriptor, open for the call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
    Some((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
}

/// Returns the bytes of a piece of a connection's replies.
pub(crate) fn piece_bytes(piece: &libc::iovec) -> &[u8] {
    // SAFETY: pieces name a batch's headers, a pool buffer that the batch has, or the shared
    // zeroes; the batch keeps them until the piece is taken (replies.rs), and no drive writes to
    // a buffer that a reply was made of.
    unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) }
}

/// Sends as many of the bytes as the socket takes without waiting, and drops the rest.
pub(crate) fn send_now(fd: RawFd, bytes: &[u8]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are live for the call, which does not wait.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Shuts down both directions of a connection, so that outstanding operations complete.
pub(crate) fn shut_down(fd: RawFd) {
    // SAFETY: touches no memory; the descriptor is the caller's.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Shuts down the receiving direction of a connection.
pub(crate) fn shut_down_input(fd: RawFd) {
    // SAFETY: touches no memory; the descriptor is the caller's.
    unsafe { libc::shutdown(fd, libc::SHUT_RD) };
}

/// Sends small replies at once, and makes a connection fail two minutes after the client's machine
/// vanished. Has no effect on other sockets than TCP.
pub(crate) fn set_tcp_options(fd: RawFd) {
    let tcp = libc::IPPROTO_TCP;
    let options = [
        (tcp, libc::TCP_NODELAY, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (tcp, libc::TCP_KEEPIDLE, 60),
        (tcp, libc::TCP_KEEPINTVL, 10),
        (tcp, libc::TCP_KEEPCNT, 6),
    ];
    for (level, name, value) in options {
        let value: i32 = value;
        let (place, len) = ((&raw const value).cast(), size_of::<i32>() as u32);
        // SAFETY: the option's value is a live local of the length given.
        unsafe { libc::setsockopt(fd, level, name, place, len) };
    }
}

/// Enlarges the send buffer of a Unix socket, as far as the kernel allows. Client and server are
/// then woken once for several long replies, and not in the middle of each. TCP sizes its own
/// buffer.
pub(crate) fn set_send_buffer(fd: RawFd) {
    if option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) != Some(libc::AF_UNIX) {
        return;
    }
    let value: i32 = SEND_BUFFER_BYTES;
    let (place, len) = ((&raw const value).cast(), size_of::<i32>() as u32);
    // SAFETY: the option's value is a live local of the length given.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, place, len) };
}

/// Returns the value of a socket option, or `None` if the socket has no such option.
fn option(fd: RawFd, level: i32, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: value and length are live locals, which the kernel fills.
    let result =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    (result == 0).then_some(value)
}

/// Closes a descriptor that never became a connection.
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
        assert_ne!(option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE), Some(0));
        let tcp = |name| option(fd, libc::IPPROTO_TCP, name);
        assert_ne!(tcp(libc::TCP_NODELAY), Some(0));
        let times = [libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_KEEPCNT].map(tcp);
        assert_eq!(times, [60, 10, 6].map(Some));
    }

    #[test]
    fn unix_socket_fits_long_replies_and_tcp_finds_its_own_size() {
        let (unix, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let room = |fd| option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap();
        let before = room(tcp.as_raw_fd());
        [unix.as_raw_fd(), tcp.as_raw_fd()].into_iter().for_each(set_send_buffer);
        // The system may grant less than was requested, and always doubles the size that it grants.
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

    #[test]
    fn options_are_read_where_there_are_some() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let domain = |fd| option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
        assert_eq!(domain(socket.as_raw_fd()), Some(libc::AF_UNIX));
        assert_eq!(domain(std::fs::File::open("/dev/null").unwrap().as_raw_fd()), None);
        assert_eq!(SEND_BUFFER_BYTES, 1 << 18);
    }
}
