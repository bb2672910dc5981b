//! Translates an [`Op`] into an io_uring submission entry.
//!
//! The io_uring back end calls this for each operation. Pointers are copied, never followed.
//! `MSG_NOSIGNAL` is added to sends. `MSG_DONTWAIT` is removed everywhere, because it would make
//! the kernel answer EAGAIN instead of waiting.

use crate::op::{FileRef, Op};
use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed, FsyncFlags, TimeoutFlags, Timespec};
use std::ptr;

/// Builds `$entry` with `$file` converted to the kind of descriptor that the operation uses.
macro_rules! with_file {
    ($file:expr, |$name:ident| $entry:expr) => {
        match $file {
            FileRef::Raw(fd) => {
                let $name = Fd(fd);
                $entry
            }
            FileRef::Fixed(index) => {
                let $name = Fixed(index);
                $entry
            }
        }
    };
}

/// Builds the entry of an operation, without user data. `timespec` holds a timeout's deadline until
/// submission. Returns `None` for operations that do not run on the ring.
pub(crate) fn build(op: &Op, timespec: *const Timespec) -> Option<Entry> {
    let entry = match *op {
        Op::Accept { fd } => opcode::Accept::new(Fd(fd), ptr::null_mut(), ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        Op::Recv { fd, buf, len } => opcode::Recv::new(Fd(fd), buf, len).build(),
        Op::RecvMsg { fd, msg, flags } => {
            opcode::RecvMsg::new(Fd(fd), msg).flags(waiting(flags) as u32).build()
        }
        Op::Send { fd, buf, len, flags } => {
            opcode::Send::new(Fd(fd), buf, len).flags(waiting(flags) | libc::MSG_NOSIGNAL).build()
        }
        Op::SendMsg { fd, msg, flags } => opcode::SendMsg::new(Fd(fd), msg)
            .flags((waiting(flags) | libc::MSG_NOSIGNAL) as u32)
            .build(),
        Op::PollIn { fd } => opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build(),
        Op::Timeout { .. } => opcode::Timeout::new(timespec).flags(TimeoutFlags::ABS).build(),
        Op::Close { fd } => opcode::Close::new(Fd(fd)).build(),
        Op::Nop => opcode::Nop::new().build(),
        Op::Ioctl { .. } | Op::Cancel { .. } => return None,
        _ => return build_file(op),
    };
    Some(entry)
}

fn build_file(op: &Op) -> Option<Entry> {
    let entry = match *op {
        Op::Read { file, buf, len, offset, buffer: Some(index) } => with_file!(file, |fd| {
            opcode::ReadFixed::new(fd, buf, len, index).offset(offset).build()
        }),
        Op::Read { file, buf, len, offset, buffer: None } => {
            with_file!(file, |fd| opcode::Read::new(fd, buf, len).offset(offset).build())
        }
        Op::Write { file, buf, len, offset, buffer: Some(index), rw_flags } => {
            with_file!(file, |fd| opcode::WriteFixed::new(fd, buf, len, index)
                .offset(offset)
                .rw_flags(rw_flags)
                .build())
        }
        Op::Write { file, buf, len, offset, buffer: None, rw_flags } => {
            with_file!(file, |fd| opcode::Write::new(fd, buf, len)
                .offset(offset)
                .rw_flags(rw_flags)
                .build())
        }
        Op::ReadV { file, iov, count, offset, buffer: Some(index) } => with_file!(file, |fd| {
            opcode::ReadvFixed::new(fd, iov, count, index).offset(offset).build()
        }),
        Op::ReadV { file, iov, count, offset, buffer: None } => {
            with_file!(file, |fd| opcode::Readv::new(fd, iov, count).offset(offset).build())
        }
        Op::WriteV { file, iov, count, offset, buffer: Some(index), rw_flags } => {
            with_file!(file, |fd| opcode::WritevFixed::new(fd, iov, count, index)
                .offset(offset)
                .rw_flags(rw_flags)
                .build())
        }
        Op::WriteV { file, iov, count, offset, buffer: None, rw_flags } => {
            with_file!(file, |fd| opcode::Writev::new(fd, iov, count)
                .offset(offset)
                .rw_flags(rw_flags)
                .build())
        }
        Op::Fdatasync { file } => {
            with_file!(file, |fd| opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build())
        }
        Op::Fallocate { file, mode, offset, len } => {
            with_file!(file, |fd| opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build())
        }
        _ => return None,
    };
    Some(entry)
}

/// Builds the one-shot poll that waits until a refused socket operation can be tried again.
pub(crate) fn build_poll(op: &Op) -> Option<Entry> {
    let (fd, direction) = op.readiness()?;
    let mask = match direction {
        crate::op::Direction::In => libc::POLLIN,
        crate::op::Direction::Out => libc::POLLOUT,
    };
    Some(opcode::PollAdd::new(Fd(fd), mask as u32).build())
}

fn waiting(flags: i32) -> i32 {
    flags & !libc::MSG_DONTWAIT
}
