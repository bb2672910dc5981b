//! Support of the conformance tests: a reactor with one inbox, and small system calls.
//!
//! `Rig` drives a reactor until a completion comes, with a limit of 10 s so that a lost one fails
//! the test instead of hanging it. `both!` runs each function on both back ends.

#![allow(dead_code)] // Each suite uses a part.

use millrace_reactor::{Backend, Completion, Config, Handle, Op, Reactor, Source, Wait, now_ns};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Makes a module per back end with one test per function.
#[macro_export]
macro_rules! both {
    ($($name:ident),+ $(,)?) => {
        mod uring {
            $(#[test] fn $name() { $crate::common::run_on_uring(super::$name); })+
        }
        mod epoll {
            $(#[test] fn $name() {
                super::$name(&mut $crate::common::Rig::new(millrace_reactor::Backend::Epoll));
            })+
        }
    };
}

/// Runs a test on io_uring, or skips it with the reason.
pub fn run_on_uring(test: fn(&mut Rig)) {
    let config = Config { backend: Backend::Uring, ..Config::default() };
    match Reactor::new(config) {
        Ok(_) => test(&mut Rig::new(Backend::Uring)),
        Err(error) => millrace_require::skip(error),
    }
}

/// A reactor, its handle and one inbox.
pub struct Rig {
    pub reactor: Reactor,
    pub handle: Handle,
    pub source: Source,
    done: Vec<Completion>,
}

impl Rig {
    pub fn new(backend: Backend) -> Rig {
        Rig::with(Config { backend, ..Config::default() })
    }

    pub fn with_entries(backend: Backend, entries: u32) -> Rig {
        Rig::with(Config { backend, entries, ..Config::default() })
    }

    /// A reactor that has had short waits, and so spins in the next one.
    pub fn with_spin(backend: Backend, spin_ns: u64) -> Rig {
        let mut rig = Rig::with(Config { backend, spin_ns, ..Config::default() });
        for _ in 0..8 {
            rig.reactor.turn(Wait::Until(now_ns() + 100_000)).unwrap();
        }
        rig
    }

    fn with(config: Config) -> Rig {
        let reactor = Reactor::new(config).unwrap();
        assert_eq!(reactor.backend(), config.backend);
        let handle = reactor.handle();
        let source = handle.source();
        Rig { reactor, handle, source, done: Vec::new() }
    }

    /// Pushes an operation whose memory the test keeps until it has the completion.
    pub fn push(&mut self, user_data: u64, op: Op) {
        // SAFETY: every test keeps its buffers alive until their completions came.
        unsafe { self.handle.push(self.source, user_data, op) };
    }

    pub fn pending(&self) -> usize {
        self.handle.pending(self.source)
    }

    /// Turns for a while, so that everything that can happen has happened.
    pub fn settle(&mut self) {
        for _ in 0..3 {
            self.reactor.turn(Wait::Until(now_ns() + 5_000_000)).unwrap();
        }
    }

    /// Waits for at least one completion.
    pub fn next(&mut self) -> Vec<Completion> {
        let limit_ns = now_ns() + 10_000_000_000;
        loop {
            self.handle.take(self.source, &mut self.done);
            if !self.done.is_empty() {
                return std::mem::take(&mut self.done);
            }
            self.reactor.turn(Wait::Until(limit_ns)).unwrap();
            assert!(now_ns() < limit_ns, "no completion within 10 s");
        }
    }

    /// Waits for the only completion there is to come.
    pub fn result(&mut self, user_data: u64) -> i32 {
        let done = self.next();
        assert_eq!(done.len(), 1, "{done:?}");
        assert_eq!(done[0].user_data, user_data);
        done[0].result
    }

    /// Waits for the only two completions there are to come.
    pub fn results(&mut self, first: u64, second: u64) -> (i32, i32) {
        let mut done = self.next();
        while done.len() < 2 {
            done.extend(self.next());
        }
        done.sort_by_key(|done| done.user_data != first);
        assert_eq!(done.iter().map(|done| done.user_data).collect::<Vec<_>>(), [first, second]);
        (done[0].result, done[1].result)
    }
}

/// Adds 1 to an eventfd.
pub fn write_eventfd(fd: RawFd) {
    let one = 1u64;
    // SAFETY: the eight bytes are a live local.
    let written = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    assert_eq!(written, 8);
}

/// An eventfd whose reads do not wait.
pub fn nonblocking_eventfd() -> OwnedFd {
    // SAFETY: no memory is involved; the descriptor is new and owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) }
}

/// Makes descriptor `fd` refer to the file of descriptor `other`.
pub fn replace(fd: RawFd, other: RawFd) {
    // SAFETY: no memory is involved; the caller's tests own both descriptors.
    assert_eq!(unsafe { libc::dup2(other, fd) }, fd);
}

/// CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    // SAFETY: getrusage fills a live local for which zero is valid.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// A header that names the segments.
pub fn header(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: zero is valid for this plain structure.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len() as _;
    msg
}
