//! Limits on what the kernel gives a thread or this process, to test the lack of it.
//!
//! A seccomp filter binds one thread, and the threads that it starts, until it ends. The limit on
//! threads binds the whole process, including the threads of other tests, but not root.
#![allow(unsafe_code)]

/// Makes the system call with this number fail with `errno` on this thread.
///
/// # Panics
/// If the kernel does not accept the filter.
pub fn forbid(call: libc::c_long, errno: i32) {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, call as u32),
        statement(libc::BPF_RET as u16, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is live during the call; it concerns this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

/// Makes this thread unable to start threads.
pub fn forbid_threads() {
    [libc::SYS_clone, libc::SYS_clone3].into_iter().for_each(|call| forbid(call, libc::EAGAIN));
}

/// Makes this thread unable to create eventfds, as if the process had no free file descriptor.
pub fn forbid_eventfds() {
    forbid(libc::SYS_eventfd2, libc::EMFILE);
}

/// Makes this thread that of an unprivileged user of its own, whose number it returns; `None`
/// unless the process runs as root.
///
/// # Panics
/// If the kernel does not let root become another user.
#[must_use]
pub fn become_user() -> Option<u32> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        crate::skip("a thread that is another user takes root");
        return None;
    }
    let user = 300_000 + std::process::id();
    // SAFETY: the system call itself, unlike libc's function, concerns this thread only.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
    Some(user)
}

/// Limits this process to `most` threads of each user, root excepted. The hard limit stays.
///
/// # Panics
/// If `most` is above the hard limit.
pub fn limit_threads(most: u64) {
    // SAFETY: the limit is a live local.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit), 0);
        limit.rlim_cur = most;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit), 0);
    }
}
