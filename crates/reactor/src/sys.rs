//! Safe wrappers of the system calls that both the io_uring and the epoll back end use.
//!
//! Every wrapper returns a result or `-errno`, or an `io::Result`; none panics.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds, the clock of all deadlines of this crate.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live local that clock_gettime fills; this clock cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * NS_PER_S + time.tv_nsec as u64
}

#[cold]
pub(crate) fn last_error() -> i32 {
    -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[inline]
pub(crate) fn result_of(returned: isize) -> i32 {
    if returned < 0 { last_error() } else { returned.min(i32::MAX as isize) as i32 }
}

/// Calls `pread` directly. The C library's wrapper is a cancellation point, which costs two locked
/// operations in a multi-threaded process.
///
/// # Safety
/// `buf` must be the start of `len` bytes that may be written until this returns.
#[inline]
pub(crate) unsafe fn pread(fd: RawFd, buf: *mut u8, len: usize, offset: u64) -> isize {
    #[cfg(target_pointer_width = "64")]
    // SAFETY: promised by the caller. The system call takes a 64-bit offset as one argument.
    unsafe {
        libc::syscall(libc::SYS_pread64, fd, buf, len, offset) as isize
    }
    #[cfg(not(target_pointer_width = "64"))]
    // SAFETY: promised by the caller.
    unsafe {
        libc::pread64(fd, buf.cast(), len, offset as i64)
    }
}

/// Calls `pwrite` without the C library's wrapper, which costs two locked operations.
///
/// # Safety
/// `buf` must be the start of `len` bytes that no thread changes until this returns.
#[inline]
pub(crate) unsafe fn pwrite(fd: RawFd, buf: *const u8, len: usize, offset: u64) -> isize {
    #[cfg(target_pointer_width = "64")]
    // SAFETY: promised by the caller. The system call takes a 64-bit offset as one argument.
    unsafe {
        libc::syscall(libc::SYS_pwrite64, fd, buf, len, offset) as isize
    }
    #[cfg(not(target_pointer_width = "64"))]
    // SAFETY: promised by the caller.
    unsafe {
        libc::pwrite64(fd, buf.cast(), len, offset as i64)
    }
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved; the returned descriptor is new and owned by nobody else.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

pub(crate) fn eventfd_write(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: the eight bytes come from a live local. A full counter means an awake reader.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

pub(crate) fn eventfd_read(fd: &OwnedFd) {
    let mut value = 0u64;
    // SAFETY: eight bytes go into a live local.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut value).cast(), 8) };
}

pub(crate) fn close(fd: RawFd) -> i32 {
    // SAFETY: the pusher of `Op::Close` (or the accept whose result nobody takes) owns `fd`.
    result_of(unsafe { libc::close(fd) } as isize)
}

/// Returns the events of `interest` for which `fd` is ready now: 0 if none, `-errno` on failure.
pub(crate) fn poll_now(fd: RawFd, interest: i16) -> i32 {
    let mut entry = libc::pollfd { fd, events: interest, revents: 0 };
    // SAFETY: one live local entry.
    let ready = unsafe { libc::poll(&mut entry, 1, 0) };
    match ready {
        0 => 0,
        n if n < 0 => last_error(),
        _ if entry.revents & libc::POLLNVAL != 0 => -libc::EBADF,
        _ => i32::from(entry.revents),
    }
}

/// Returns true if reads and writes of `fd` never wait for a peer (regular files and block
/// devices).
pub(crate) fn is_storage(fd: RawFd) -> bool {
    // SAFETY: stat is a plain structure for which zero is valid; fstat fills it.
    let mode = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut stat) < 0 {
            return true;
        }
        stat.st_mode & libc::S_IFMT
    };
    mode == libc::S_IFREG || mode == libc::S_IFBLK
}

pub(crate) fn is_stream(fd: RawFd) -> bool {
    let mut kind: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals of the right size.
    let ret = unsafe {
        let value = (&raw mut kind).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, value, &mut len)
    };
    ret == 0 && kind == libc::SOCK_STREAM
}

pub(crate) fn set_nonblocking(fd: RawFd) -> i32 {
    // SAFETY: fcntl with these commands touches no memory.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 {
            return last_error();
        }
        if flags & libc::O_NONBLOCK != 0 {
            return 0;
        }
        result_of(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) as isize)
    }
}
