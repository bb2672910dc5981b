//! Fallbacks where io_uring is forbidden, as in many containers, or where threads are.
//!
//! Each test forbids io_uring for one thread of its own with a seccomp filter, as container
//! runtimes do; the filter ends with that thread. A limit on threads binds the whole process,
//! including the threads of other tests, but not root.

#![allow(unsafe_code, clippy::unwrap_used)] // Tests of an unsafe interface may panic.

use millrace_reactor::{
    Backend, Config, FileCarrier, FileDemand, FileRef, Op, PoolShare, Reactor, Wait,
};
use millrace_require::{become_user, forbid, limit_threads};
use std::os::fd::AsRawFd;

fn on_a_thread(test: fn()) {
    std::thread::spawn(test).join().unwrap();
}

fn auto_works_and_says(reason: &str) {
    let mut reactor = Reactor::new(Config::default()).unwrap();
    assert_eq!(reactor.backend(), Backend::Epoll);
    let given = reactor.fallback_reason().unwrap();
    assert!(given.contains(reason), "{given}");
    assert_eq!(reactor.features().to_string(), "none");
    let handle = reactor.handle();
    let source = handle.source();
    // SAFETY: a no-op names no memory.
    unsafe { handle.push(source, 1, Op::Nop) };
    assert_eq!(reactor.turn(Wait::Forever).unwrap(), 1);
}

fn uring_fails_and_says(reason: &str) {
    let config = Config { backend: Backend::Uring, ..Config::default() };
    let Err(error) = Reactor::new(config) else { panic!("io_uring was not forbidden") };
    let text = error.to_string();
    assert!(text.starts_with("io_uring is not available: ") && text.contains(reason), "{text}");
}

#[test]
fn auto_falls_back_when_the_set_up_is_forbidden() {
    on_a_thread(|| {
        forbid(libc::SYS_io_uring_setup, libc::EPERM);
        auto_works_and_says("io_uring_setup");
        auto_works_and_says("os error 1");
        uring_fails_and_says("io_uring_setup: Operation not permitted");
    });
}

#[test]
fn auto_falls_back_when_the_kernel_has_no_io_uring() {
    on_a_thread(|| {
        forbid(libc::SYS_io_uring_setup, libc::ENOSYS);
        auto_works_and_says("Function not implemented");
        uring_fails_and_says("Function not implemented");
    });
}

#[test]
fn auto_falls_back_when_only_entering_is_forbidden() {
    on_a_thread(|| {
        forbid(libc::SYS_io_uring_enter, libc::EPERM);
        let Some(reason) =
            Reactor::new(Config::default()).unwrap().fallback_reason().map(str::to_owned)
        else {
            panic!("io_uring was not forbidden")
        };
        assert!(reason.contains("not permitted"), "{reason}");
    });
}

#[test]
fn a_ring_without_registration_still_works() {
    on_a_thread(|| {
        forbid(libc::SYS_io_uring_register, libc::EPERM);
        let config = Config { backend: Backend::Uring, ..Config::default() };
        let Ok(mut reactor) = Reactor::new(config) else { return };
        let features = reactor.features();
        assert!(!features.registered_files && !features.registered_ring);
        let handle = reactor.handle();
        let source = handle.source();
        // SAFETY: a no-op names no memory.
        unsafe { handle.push(source, 1, Op::Nop) };
        assert_eq!(reactor.turn(Wait::Forever).unwrap(), 1);
    });
}

#[test]
fn epoll_on_request_needs_no_reason() {
    let config = Config { backend: Backend::Epoll, ..Config::default() };
    let reactor = Reactor::new(config).unwrap();
    assert_eq!((reactor.backend(), reactor.fallback_reason()), (Backend::Epoll, None));
}

#[test]
fn epoll_without_nanosecond_waits_is_late_but_never_early() {
    on_a_thread(|| {
        forbid(libc::SYS_epoll_pwait2, libc::ENOSYS);
        let config = Config { backend: Backend::Epoll, ..Config::default() };
        let mut reactor = Reactor::new(config).unwrap();
        let handle = reactor.handle();
        let source = handle.source();
        let deadline_ns = millrace_reactor::now_ns() + 2_300_000;
        // SAFETY: a timeout names no memory.
        unsafe { handle.push(source, 1, Op::Timeout { deadline_ns }) };
        while reactor.turn(Wait::Forever).unwrap() == 0 {}
        assert!(millrace_reactor::now_ns() >= deadline_ns);
    });
}

#[test]
fn kernel_pool_serves_files_without_a_worker_or_says_why() {
    on_a_thread(|| {
        let mut file = tempfile::tempfile().unwrap();
        let Some(user) = become_user() else { return };
        let mut reactor =
            match Reactor::new(Config { backend: Backend::Uring, ..Config::default() }) {
                Ok(reactor) => reactor,
                Err(error) => return millrace_require::skip(error),
            };
        let (handle, share) = (reactor.handle(), PoolShare::new());
        let (source, demand) =
            (handle.source(), FileDemand { operations: 8, ..FileDemand::default() });
        limit_threads(1);
        let refused = handle.open_files(source, &share, demand).unwrap_err().to_string();
        assert!(refused.starts_with("cannot start the thread millrace-pool"), "{refused}");
        assert!(refused.contains(&format!("RLIMIT_NPROC allows user {user} 1 ")), "{refused}");
        limit_threads(2);
        assert_eq!(handle.open_files(source, &share, demand).unwrap(), FileCarrier::Threads);
        let fd = FileRef::Raw(file.as_raw_fd());
        let (data, len) = ([7u8; 4096], 4096);
        let write =
            Op::Write { file: fd, buf: data.as_ptr(), len, offset: 0, buffer: None, rw_flags: 0 };
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let ops = [
            write,
            Op::Fdatasync { file: fd },
            Op::Fallocate { file: fd, mode: punch, offset: 512, len: 512 },
        ];
        let mut done = Vec::new();
        for (user_data, op) in (0..).zip(ops.into_iter().cycle().take(30)) {
            // SAFETY: the data and the file outlive the reactor's use of them, awaited below.
            unsafe { handle.push(source, user_data, op) };
        }
        while done.len() < 30 {
            reactor.turn(Wait::Forever).unwrap();
            handle.take(source, &mut done);
        }
        let right = |done: &millrace_reactor::Completion| {
            done.result == if done.user_data.is_multiple_of(3) { 4096 } else { 0 }
        };
        assert!(done.iter().all(right), "{done:?}");
        drop(reactor);
        let mut read = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        assert_eq!(std::io::Read::read_to_end(&mut file, &mut read).unwrap(), 4096);
    });
}
