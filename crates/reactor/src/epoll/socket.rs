//! One nonblocking attempt at an operation that may have to wait for a peer (epoll back end).
//!
//! An attempt that would block returns `None`, and is repeated when its descriptor is ready.
//! Operations on sockets pass `MSG_DONTWAIT`, so only listening sockets are made nonblocking. A
//! `MSG_WAITALL` operation on a stream may need several attempts; its `OperationSlot` counts the
//! bytes moved so far.

#![allow(unsafe_code)]

use crate::op::Op;
use crate::sys;
use crate::table::OperationSlot;
use std::os::fd::RawFd;

/// Attempts the operation of `slot` once. Returns its result, or `None` if it would block.
pub(crate) fn attempt(slot: &mut OperationSlot) -> Option<i32> {
    loop {
        let result = attempt_once(slot);
        if result == Some(-libc::EINTR) {
            continue;
        }
        let result = result?;
        let Some((fd, asked)) = wants_all(&slot.op) else { return would_block(result) };
        if result > 0 && (slot.moved as usize + result as usize) < asked && sys::is_stream(fd) {
            slot.moved += result as u32;
            continue;
        }
        return match (slot.moved, would_block(result)?) {
            (0, result) => Some(result),
            (moved, result) => Some(moved as i32 + result.max(0)),
        };
    }
}

fn would_block(result: i32) -> Option<i32> {
    (result != -libc::EAGAIN).then_some(result)
}

fn attempt_once(slot: &OperationSlot) -> Option<i32> {
    let (wait_not, moved) = (libc::MSG_DONTWAIT, slot.moved as usize);
    // SAFETY: all memory named by the operation is valid (contract of `Handle::push`).
    // Each size passed to the kernel excludes the bytes already moved.
    let returned = unsafe {
        match slot.op {
            Op::Accept { fd } => return Some(accept(fd)),
            Op::Recv { fd, buf, len } => libc::recv(fd, buf.cast(), len as usize, wait_not),
            Op::RecvMsg { fd, msg, flags } => {
                with_rest(msg, moved, |rest| libc::recvmsg(fd, rest, flags | wait_not))
            }
            Op::Send { fd, buf, len, flags } => {
                let flags = flags | wait_not | libc::MSG_NOSIGNAL;
                libc::send(fd, buf.add(moved).cast(), len as usize - moved, flags)
            }
            Op::SendMsg { fd, msg, flags } => with_rest(msg.cast_mut(), moved, |rest| {
                libc::sendmsg(fd, rest, flags | wait_not | libc::MSG_NOSIGNAL)
            }),
            Op::PollIn { fd } => {
                let events = sys::poll_now(fd, libc::POLLIN);
                return (events != 0).then_some(events);
            }
            _ => return attempt_stream(&slot.op),
        }
    };
    Some(sys::result_of(returned))
}

/// Reads from or writes to a descriptor that is not a file: an eventfd, a pipe, or a character
/// device.
fn attempt_stream(op: &Op) -> Option<i32> {
    let (fd, direction) = op.readiness()?;
    match sys::poll_now(fd, direction.poll_events()) {
        0 => return None,
        error if error < 0 => return Some(error),
        _ => {}
    }
    // SAFETY: as in `attempt_once`.
    let returned = unsafe {
        match *op {
            Op::Read { buf, len, .. } => libc::read(fd, buf.cast(), len as usize),
            Op::Write { buf, len, .. } => libc::write(fd, buf.cast(), len as usize),
            Op::ReadV { iov, count, .. } => libc::readv(fd, iov, count as i32),
            Op::WriteV { iov, count, .. } => libc::writev(fd, iov, count as i32),
            _ => return Some(-libc::EINVAL),
        }
    };
    Some(sys::result_of(returned))
}

fn accept(fd: RawFd) -> i32 {
    let prepared = sys::set_nonblocking(fd);
    if prepared < 0 {
        return prepared;
    }
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the address arguments are null, so the call writes no memory.
    let returned = unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    sys::result_of(returned as isize)
}

/// Returns the descriptor of a `MSG_WAITALL` operation, and the number of bytes that it must move.
/// Returns `None` for other operations.
fn wants_all(op: &Op) -> Option<(RawFd, usize)> {
    let (fd, msg, flags) = match *op {
        Op::Send { fd, len, flags, .. } => {
            return (flags & libc::MSG_WAITALL != 0).then_some((fd, len as usize));
        }
        Op::RecvMsg { fd, msg, flags } => (fd, msg.cast_const(), flags),
        Op::SendMsg { fd, msg, flags } => (fd, msg, flags),
        _ => return None,
    };
    (flags & libc::MSG_WAITALL != 0).then(|| {
        // SAFETY: the header and its segments are valid, as in `attempt_once`.
        let segments = unsafe { segments(&*msg) };
        (fd, segments.iter().map(|segment| segment.iov_len).sum())
    })
}

/// # Safety
/// `msg_iov` must point to `msg_iovlen` valid segments.
unsafe fn segments(msg: &libc::msghdr) -> &[libc::iovec] {
    if msg.msg_iovlen == 0 {
        return &[];
    }
    #[allow(clippy::unnecessary_cast)] // The type of this field differs between C libraries.
    let count = msg.msg_iovlen as usize;
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(msg.msg_iov, count) }
}

/// Calls `f` with a header for the part of `msg` after its first `moved` bytes. After the first
/// part, the header has no address and no control data, because the first part carried them.
///
/// # Safety
/// `msg` must be a valid header, whose `msg_iov` points to `msg_iovlen` valid segments.
unsafe fn with_rest(
    msg: *mut libc::msghdr,
    moved: usize,
    f: impl FnOnce(*mut libc::msghdr) -> isize,
) -> isize {
    if moved == 0 {
        return f(msg);
    }
    let mut skip = moved;
    // SAFETY: promised by the caller.
    let mut left: Vec<libc::iovec> = unsafe { segments(&*msg) }.to_vec();
    left.retain_mut(|segment| {
        let here = skip.min(segment.iov_len);
        skip -= here;
        segment.iov_base = segment.iov_base.wrapping_byte_add(here);
        segment.iov_len -= here;
        segment.iov_len > 0
    });
    // SAFETY: msghdr is a plain structure for which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = left.as_mut_ptr();
    header.msg_iovlen = left.len() as _;
    f(&mut header)
}
