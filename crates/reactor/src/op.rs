//! Operations that can be pushed to a reactor, and their completions.
//!
//! The reactor borrows the pointers in an [`Op`] from `push` until the completion is taken; the
//! pushing code must keep them valid.

use std::os::fd::RawFd;

/// An inbox for completions, opened by [`Handle::source`](crate::Handle::source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source(pub(crate) u16);

/// Result of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// User data that was passed to `push` with the operation.
    pub user_data: u64,
    /// Result of the system call of the same name: at least 0, or `-errno`.
    pub result: i32,
    /// Flags of the io_uring completion. They are 0 on the epoll back end.
    pub flags: u32,
}

/// File on which an operation works, as a descriptor or as an index of a registered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRef {
    /// A file descriptor.
    Raw(RawFd),
    /// Index in the reactor's table of registered files.
    Fixed(u32),
}

/// One operation. Its result is that of the system call of the same name, unless stated otherwise.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The fields are the arguments of the system calls.
pub enum Op {
    /// Accepts a connection. The result is its descriptor (close-on-exec; nonblocking on epoll).
    Accept { fd: RawFd },
    /// Receives from a socket. The result is 0 at the end of the stream.
    Recv { fd: RawFd, buf: *mut u8, len: u32 },
    /// Receives with `recvmsg`. The result may be less than requested, even with `MSG_WAITALL`.
    RecvMsg { fd: RawFd, msg: *mut libc::msghdr, flags: i32 },
    /// Sends on a socket with `MSG_NOSIGNAL`. The result may be less than `len`.
    Send { fd: RawFd, buf: *const u8, len: u32, flags: i32 },
    /// Sends with `sendmsg` and `MSG_NOSIGNAL`. The result may be less than the message's length.
    SendMsg { fd: RawFd, msg: *const libc::msghdr, flags: i32 },
    /// Reads at `offset`. `buffer` is the index of the registered region that contains `buf`, if
    /// any.
    Read { file: FileRef, buf: *mut u8, len: u32, offset: u64, buffer: Option<u16> },
    /// Writes at `offset`, with the `rw_flags` of `pwritev2` (such as `RWF_DSYNC`).
    Write {
        file: FileRef,
        buf: *const u8,
        len: u32,
        offset: u64,
        buffer: Option<u16>,
        rw_flags: i32,
    },
    /// Reads at `offset` into `count` segments. `buffer` is the index of the registered region that
    /// contains all of them, from [`Handle::fixed_vector`](crate::Handle::fixed_vector).
    ReadV { file: FileRef, iov: *const libc::iovec, count: u32, offset: u64, buffer: Option<u16> },
    /// Writes at `offset` from `count` segments. `buffer` is the index of the registered region
    /// that contains all segments, from [`Handle::fixed_vector`](crate::Handle::fixed_vector).
    WriteV {
        file: FileRef,
        iov: *const libc::iovec,
        count: u32,
        offset: u64,
        buffer: Option<u16>,
        rw_flags: i32,
    },
    /// Makes a file's data durable, with `fdatasync`.
    Fdatasync { file: FileRef },
    /// Allocates, punches or zeroes a range of a file.
    Fallocate { file: FileRef, mode: i32, offset: u64, len: u64 },
    /// Calls `ioctl(fd, request, &range)` on a pool thread (`BLKDISCARD`, `BLKZEROOUT`).
    Ioctl { fd: RawFd, request: u64, range: [u64; 2] },
    /// Waits once until `fd` is readable. The result is the event mask of `poll`.
    PollIn { fd: RawFd },
    /// Completes with 0 when `CLOCK_MONOTONIC` reaches `deadline_ns`, never earlier.
    Timeout { deadline_ns: u64 },
    /// Cancels the operation pushed with this source and user data. The target still completes,
    /// with `-ECANCELED` or its own result. The cancel completes with 0, with `-ENOENT` (no such
    /// operation, or it cannot be cancelled), or with `-EALREADY` (a thread is already executing
    /// it). A cancel scans all operations in flight.
    Cancel { source: Source, user_data: u64 },
    /// Closes a descriptor. No other operation may be in flight on it.
    Close { fd: RawFd },
    /// Does nothing; completes with 0.
    Nop,
}

impl Op {
    /// Returns true for socket operations, which wait for a peer and must never complete with
    /// `-EAGAIN`.
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

    /// Returns true for operations on files and block devices, which wait for a device, not for a
    /// peer.
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

    /// Returns true for reads and writes that use registered memory.
    pub fn is_registered(&self) -> bool {
        matches!(
            self,
            Op::Read { buffer: Some(_), .. }
                | Op::Write { buffer: Some(_), .. }
                | Op::ReadV { buffer: Some(_), .. }
                | Op::WriteV { buffer: Some(_), .. }
        )
    }

    pub(crate) fn readiness(&self) -> Option<(RawFd, TransferDirection)> {
        match *self {
            Op::Accept { fd }
            | Op::Recv { fd, .. }
            | Op::RecvMsg { fd, .. }
            | Op::PollIn { fd }
            | Op::Read { file: FileRef::Raw(fd), .. }
            | Op::ReadV { file: FileRef::Raw(fd), .. } => Some((fd, TransferDirection::In)),
            Op::Send { fd, .. }
            | Op::SendMsg { fd, .. }
            | Op::Write { file: FileRef::Raw(fd), .. }
            | Op::WriteV { file: FileRef::Raw(fd), .. } => Some((fd, TransferDirection::Out)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferDirection {
    In,
    Out,
}

impl TransferDirection {
    pub(crate) fn poll_events(self) -> i16 {
        [libc::POLLIN, libc::POLLOUT][self as usize]
    }
}
