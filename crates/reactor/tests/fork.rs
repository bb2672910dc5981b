//! A child after fork() inherits nothing of its parent's rings.
//!
//! This program has one test only: the child of a process whose other threads hold locks could not
//! go on.

#![allow(unsafe_code, clippy::unwrap_used)] // Tests of an unsafe interface may panic.

use millrace_reactor::{Backend, Completion, Config, Handle, Op, Reactor, Source, Wait};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest life of a child, in seconds.
const CHILD_S: u32 = 20;

/// Has a child process say whether something holds.
fn in_child(holds: impl FnOnce() -> bool) -> bool {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to the array, and owned here alone.
    let (mut read, mut write) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    // SAFETY: no other thread of this process holds anything that the child uses.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: no memory is involved. Without an answer the parent reads the end of the pipe.
        unsafe { libc::alarm(CHILD_S) };
        let held = catch_unwind(AssertUnwindSafe(holds)).unwrap_or(false);
        let _ = write.write_all(&[u8::from(held)]);
        // SAFETY: ends the process, with nothing of the parent's being dropped.
        unsafe { libc::_exit(0) };
    }
    drop(write);
    let mut said = Vec::new();
    read.read_to_end(&mut said).unwrap();
    // SAFETY: a child of this process, for which nobody else waits.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    said == [1]
}

/// The number and result of the next completion.
fn next(reactor: &mut Reactor, handle: &Handle, source: Source) -> (u64, i32) {
    let mut done: Vec<Completion> = Vec::new();
    while done.is_empty() {
        reactor.turn(Wait::Forever).unwrap();
        handle.take(source, &mut done);
    }
    assert_eq!(done.len(), 1, "{done:?}");
    (done[0].user_data, done[0].result)
}

fn receive(handle: &Handle, source: Source, number: u64, socket: &UnixStream, into: &mut [u8]) {
    let op = Op::Recv { fd: socket.as_raw_fd(), buf: into.as_mut_ptr(), len: into.len() as u32 };
    // SAFETY: the test keeps the memory until the completion has come.
    unsafe { handle.push(source, number, op) };
}

#[test]
fn a_child_of_a_fork_leaves_ring_and_operations_to_its_parent() {
    for backend in [Backend::Epoll, Backend::Uring] {
        let mut reactor = match Reactor::new(Config { backend, ..Config::default() }) {
            Ok(reactor) => reactor,
            Err(error) => return millrace_require::skip(error),
        };
        let (handle, (ours, mut theirs)) = (reactor.handle(), UnixStream::pair().unwrap());
        let (source, mut bytes, mut more) = (handle.source(), [0u8; 4], [0u8; 1]);
        receive(&handle, source, 1, &ours, &mut bytes);
        reactor.turn(Wait::No).unwrap();
        let mut reactor = Some(reactor);
        let cancelled = in_child(|| {
            let mut reactor = reactor.take().unwrap();
            let held = next(&mut reactor, &handle, source);
            receive(&handle, source, 2, &ours, &mut more);
            let pushed = next(&mut reactor, &handle, source);
            // As at the end of a child that does not exit.
            drop(reactor);
            (held, pushed) == ((1, -libc::ECANCELED), (2, -libc::ECANCELED))
        });
        assert!(cancelled, "in the child, {backend:?}");
        theirs.write_all(b"pong").unwrap();
        let mut reactor = reactor.take().unwrap();
        assert_eq!(next(&mut reactor, &handle, source), (1, 4), "{backend:?}");
        assert_eq!(&bytes, b"pong");
    }
}
