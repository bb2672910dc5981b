//! The server's operations on the reactor: accept, receive, send, cancel, close.
//!
//! Owns the inbox of an I/O thread's sockets and the one place where their operations are pushed.
//! Called by the worker and its connections; calls the reactor.
//!
//! Invariant (the reactor's contract): the memory that an operation names lives in a boxed
//! [`Connection`](super::connection::Connection) or in a pool buffer it holds. A connection is freed
//! only when neither a receive nor a send of it is outstanding, and a thread that ends while the
//! reactor still holds operations leaks its connections and its pool.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use millrace_reactor::{Completion, Handle, Op, Source};

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// An accept on listener `.0`.
    Accepted(usize),
    /// A receive of connection `.0`.
    Received(usize),
    /// A send of connection `.0`.
    Sent(usize),
    /// The peer of connection `.0` has read most of what was sent, or is gone.
    Caught(usize),
    /// Nothing to look at: a cancel or a close.
    Other,
}

const KIND_ACCEPT: u64 = 0;
const KIND_RECEIVE: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_CAUGHT: u64 = 3;
const KIND_OTHER: u64 = 4;
/// Bits of the user data that hold the kind.
const KIND_BITS: u32 = 3;

impl Event {
    pub(crate) fn of(user_data: u64) -> Event {
        let index = (user_data >> KIND_BITS) as usize;
        match user_data & ((1 << KIND_BITS) - 1) {
            KIND_ACCEPT => Event::Accepted(index),
            KIND_RECEIVE => Event::Received(index),
            KIND_SEND => Event::Sent(index),
            KIND_CAUGHT => Event::Caught(index),
            _ => Event::Other,
        }
    }
}

/// One I/O thread's socket operations.
pub(crate) struct Ring {
    handle: Handle,
    source: Source,
}

impl Ring {
    pub(crate) fn new(handle: Handle) -> Ring {
        let source = handle.source();
        Ring { handle, source }
    }

    /// Moves what completed to the end of `into`.
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        self.handle.take(self.source, into);
    }

    /// Operations not completed yet.
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

    /// Ends the accept of a listener.
    pub(crate) fn cancel_accept(&self, listener: usize) {
        let user_data = (listener as u64) << KIND_BITS | KIND_ACCEPT;
        self.push(0, KIND_OTHER, Op::Cancel { source: self.source, user_data });
    }

    /// Receives into memory of connection `index`, which keeps it until `Received`.
    pub(crate) fn receive(&self, index: usize, fd: RawFd, room: &mut [u8]) {
        let (buf, len) = (room.as_mut_ptr(), room.len() as u32);
        self.push(index, KIND_RECEIVE, Op::Recv { fd, buf, len });
    }

    /// Receives into the pieces of a message of connection `index`, kept until `Received`.
    pub(crate) fn receive_message(&self, index: usize, fd: RawFd, msg: *mut libc::msghdr) {
        self.push(index, KIND_RECEIVE, Op::RecvMsg { fd, msg, flags: 0 });
    }

    /// Sends bytes of connection `index`, kept until `Sent`.
    pub(crate) fn send(&self, index: usize, fd: RawFd, bytes: &[u8]) {
        let (buf, len) = (bytes.as_ptr(), bytes.len() as u32);
        self.push(index, KIND_SEND, Op::Send { fd, buf, len, flags: 0 });
    }

    /// Sends the pieces of a message of connection `index`, kept until `Sent`.
    pub(crate) fn send_message(&self, index: usize, fd: RawFd, msg: *const libc::msghdr) {
        self.push(index, KIND_SEND, Op::SendMsg { fd, msg, flags: 0 });
    }

    /// Waits until the peer of connection `index` has read most of what was sent.
    pub(crate) fn catch_up(&self, index: usize, backlog: &Backlog) {
        self.push(index, KIND_CAUGHT, Op::PollIn { fd: backlog.0.as_raw_fd() });
    }

    /// Closes a descriptor on which nothing is outstanding.
    pub(crate) fn close(&self, fd: RawFd) {
        self.push(0, KIND_OTHER, Op::Close { fd });
    }
}

/// Tells when a socket has become writable, which on a Unix socket means that its peer has read all
/// but a quarter of what may be under way.
///
/// An epoll instance, because the reactor polls for input only; it is readable when the socket is
/// writable or broken.
#[derive(Debug)]
pub(crate) struct Backlog(OwnedFd);

impl Backlog {
    pub(crate) fn new(socket: RawFd) -> Option<Backlog> {
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
        (added == 0).then_some(Backlog(fd))
    }
}

/// A message of no pieces.
pub(crate) fn empty_message() -> libc::msghdr {
    // SAFETY: all-zero bytes are a message without address, pieces and control data.
    unsafe { std::mem::zeroed() }
}

/// Ends both halves of a connection, so that what is outstanding on it completes.
pub(crate) fn shut_down(fd: RawFd) {
    // SAFETY: touches no memory; the descriptor is the caller's.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Ends the receiving half of a connection.
pub(crate) fn shut_down_input(fd: RawFd) {
    // SAFETY: touches no memory; the descriptor is the caller's.
    unsafe { libc::shutdown(fd, libc::SHUT_RD) };
}

/// Makes small replies leave at once; nothing happens on a socket that is not TCP.
pub(crate) fn set_no_delay(fd: RawFd) {
    let on: i32 = 1;
    let (value, len) = ((&raw const on).cast(), size_of::<i32>() as u32);
    // SAFETY: the option's value is a live local of the length given.
    unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, value, len) };
}

/// Closes a descriptor that never became a connection.
pub(crate) fn close_now(fd: RawFd) {
    // SAFETY: the descriptor was just accepted and is known to nobody else.
    unsafe { libc::close(fd) };
}
