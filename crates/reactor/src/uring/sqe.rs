//! Translates an [`Op`] into an io_uring submission entry.
//!
//! Pointers are copied, never followed. `MSG_NOSIGNAL` is added to sends. `MSG_DONTWAIT` is removed
//! everywhere, because it would make the kernel answer EAGAIN instead of waiting.

use crate::op::{FileRef, Op};
use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed, FsyncFlags, TimeoutFlags, Timespec};
use std::ptr;

macro_rules! entry {
    ($file:expr, |$name:ident| $operation:expr) => {
        match $file {
            FileRef::Raw(fd) => {
                let $name = Fd(fd);
                $operation.build()
            }
            FileRef::Fixed(index) => {
                let $name = Fixed(index);
                $operation.build()
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
    use opcode::{
        Fallocate, Fsync, Read, ReadFixed, Readv, ReadvFixed, Write, WriteFixed, Writev,
        WritevFixed,
    };
    let entry = match *op {
        Op::Read { file, buf, len, offset, buffer } => match buffer {
            Some(at) => entry!(file, |fd| ReadFixed::new(fd, buf, len, at).offset(offset)),
            None => entry!(file, |fd| Read::new(fd, buf, len).offset(offset)),
        },
        Op::Write { file, buf, len, offset, buffer, rw_flags: flags } => match buffer {
            Some(at) => {
                entry!(file, |fd| WriteFixed::new(fd, buf, len, at).offset(offset).rw_flags(flags))
            }
            None => {
                entry!(file, |fd| Write::new(fd, buf, len).offset(offset).rw_flags(flags))
            }
        },
        Op::ReadV { file, iov, count, offset, buffer } => match buffer {
            Some(at) => entry!(file, |fd| ReadvFixed::new(fd, iov, count, at).offset(offset)),
            None => entry!(file, |fd| Readv::new(fd, iov, count).offset(offset)),
        },
        Op::WriteV { file, iov, count, offset, buffer, rw_flags: flags } => match buffer {
            Some(at) => {
                entry!(file, |fd| WritevFixed::new(fd, iov, count, at)
                    .offset(offset)
                    .rw_flags(flags))
            }
            None => {
                entry!(file, |fd| Writev::new(fd, iov, count).offset(offset).rw_flags(flags))
            }
        },
        Op::Fdatasync { file } => {
            entry!(file, |fd| Fsync::new(fd).flags(FsyncFlags::DATASYNC))
        }
        Op::Fallocate { file, mode, offset, len } => {
            entry!(file, |fd| Fallocate::new(fd, len).offset(offset).mode(mode))
        }
        _ => return None,
    };
    Some(entry)
}

pub(crate) fn build_poll(op: &Op) -> Option<Entry> {
    let (fd, direction) = op.readiness()?;
    Some(opcode::PollAdd::new(Fd(fd), direction.poll_events() as u32).build())
}

fn waiting(flags: i32) -> i32 {
    flags & !libc::MSG_DONTWAIT
}
