//! The vocabulary: what can be pushed to a reactor and what comes back.
//!
//! Owns nothing; every type is plain data. Pointers in an [`Op`] are borrowed by the reactor from
//! `push` until the completion is taken; whoever pushes upholds that. Both back ends and all users
//! speak these types.

use std::os::fd::RawFd;

/// An inbox of a reactor, from [`Handle::source`](crate::Handle::source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(pub(crate) u16);

impl Source {
    /// The small integer behind it, for reports.
    pub fn index(self) -> u16 {
        self.0
    }
}

/// The outcome of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The value given to `push`.
    pub user_data: u64,
    /// What the system call of the same name returns: at least 0, or `-errno`.
    pub result: i32,
    /// The flags of the io_uring completion; 0 on the epoll back end.
    pub flags: u32,
}

/// A file for drive I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// A file descriptor.
    Raw(RawFd),
    /// An index in the reactor's table of registered files.
    Fixed(u32),
}

/// One operation. Results are those of the system call of the same name unless said otherwise.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The fields are the arguments of the system calls.
pub enum Op {
    /// Accepts a connection; the result is its descriptor (close-on-exec; nonblocking on epoll).
    Accept { fd: RawFd },
    /// Receives from a socket; 0 at its end.
    Recv { fd: RawFd, buf: *mut u8, len: u32 },
    /// Receives with `recvmsg`; a short result is possible also with `MSG_WAITALL`.
    RecvMsg { fd: RawFd, msg: *mut libc::msghdr, flags: i32 },
    /// Sends on a socket; `MSG_NOSIGNAL` is added; the result may be short.
    Send { fd: RawFd, buf: *const u8, len: u32, flags: i32 },
    /// Sends with `sendmsg`; `MSG_NOSIGNAL` is added; the result may be short.
    SendMsg { fd: RawFd, msg: *const libc::msghdr, flags: i32 },
    /// Reads at `offset`; `buffer` is the registered region that holds `buf`, if one does.
    Read { file: FileRef, buf: *mut u8, len: u32, offset: u64, buffer: Option<u16> },
    /// Writes at `offset`; `rw_flags` as for `pwritev2` (`RWF_DSYNC`).
    Write {
        file: FileRef,
        buf: *const u8,
        len: u32,
        offset: u64,
        buffer: Option<u16>,
        rw_flags: i32,
    },
    /// Reads into `count` segments at `offset`; `buffer` is the registered region that holds them
    /// all, from [`Handle::fixed_vector`](crate::Handle::fixed_vector).
    ReadV { file: FileRef, iov: *const libc::iovec, count: u32, offset: u64, buffer: Option<u16> },
    /// Writes from `count` segments at `offset`; `buffer` as for `ReadV`.
    WriteV {
        file: FileRef,
        iov: *const libc::iovec,
        count: u32,
        offset: u64,
        buffer: Option<u16>,
        rw_flags: i32,
    },
    /// Makes data durable.
    Fdatasync { file: FileRef },
    /// Allocates, punches or zeroes a range of a file.
    Fallocate { file: FileRef, mode: i32, offset: u64, len: u64 },
    /// `ioctl(fd, request, &range)` on a pool thread (`BLKDISCARD`, `BLKZEROOUT`).
    Ioctl { fd: RawFd, request: u64, range: [u64; 2] },
    /// Waits once until `fd` is readable; the result is the mask of `poll`.
    PollIn { fd: RawFd },
    /// Completes with 0 when `CLOCK_MONOTONIC` reaches `deadline_ns`, never earlier.
    Timeout { deadline_ns: u64 },
    /// Cancels the operation pushed with this source and user data. The target still completes,
    /// with `-ECANCELED` or its result. The cancel completes with 0, with `-ENOENT` (not found,
    /// or nothing can be done about it) or with `-EALREADY` (running: a thread that has begun one
    /// is not stopped). Costs a look at every outstanding operation.
    Cancel { source: Source, user_data: u64 },
    /// Closes a descriptor; nothing else may be outstanding on it.
    Close { fd: RawFd },
    /// Does nothing.
    Nop,
}

impl Op {
    /// True for operations that wait for a peer and must never show `-EAGAIN`.
    pub(crate) fn is_socket(&self) -> bool {
        matches!(
            self,
            Op::Accept { .. }
                | Op::Recv { .. }
                | Op::RecvMsg { .. }
                | Op::Send { .. }
                | Op::SendMsg { .. }
        )
    }

    /// True for operations on files and block devices, which wait for a device and not for a peer.
    pub(crate) fn is_on_file(&self) -> bool {
        matches!(
            self,
            Op::Read { .. }
                | Op::Write { .. }
                | Op::ReadV { .. }
                | Op::WriteV { .. }
                | Op::Fdatasync { .. }
                | Op::Fallocate { .. }
                | Op::Ioctl { .. }
        )
    }

    /// True for reads and writes of memory that is registered.
    pub fn is_registered(&self) -> bool {
        let (Op::Read { buffer, .. }
        | Op::Write { buffer, .. }
        | Op::ReadV { buffer, .. }
        | Op::WriteV { buffer, .. }) = self
        else {
            return false;
        };
        buffer.is_some()
    }

    /// The descriptor a readiness wait is about, and whether it is a wait to read.
    pub(crate) fn readiness(&self) -> Option<(RawFd, Direction)> {
        match *self {
            Op::Accept { fd } | Op::Recv { fd, .. } | Op::RecvMsg { fd, .. } => {
                Some((fd, Direction::In))
            }
            Op::PollIn { fd } => Some((fd, Direction::In)),
            Op::Send { fd, .. } | Op::SendMsg { fd, .. } => Some((fd, Direction::Out)),
            Op::Read { file: FileRef::Raw(fd), .. } => Some((fd, Direction::In)),
            Op::ReadV { file: FileRef::Raw(fd), .. } => Some((fd, Direction::In)),
            Op::Write { file: FileRef::Raw(fd), .. } => Some((fd, Direction::Out)),
            Op::WriteV { file: FileRef::Raw(fd), .. } => Some((fd, Direction::Out)),
            _ => None,
        }
    }
}

/// Which half of a descriptor an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Readable.
    In,
    /// Writable.
    Out,
}
