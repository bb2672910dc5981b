//! Starts threads of the process, and reports the limits that prevent the start of a thread.
//!
//! The system limits threads in several places (the user's RLIMIT_NPROC, the cgroups' `pids.max`)
//! and returns EAGAIN for each of these limits, so the text of [`ThreadRefused`] lists all of them.
#![allow(unsafe_code)]

use core::fmt;
use std::borrow::ToOwned;
use std::format;
use std::io;
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use std::vec::Vec;

use super::{allowed_set, pin_to};
use crate::{CpuId, Machine, Native, Thread, lock_unpoisoned};

/// Stack size, in bytes, of a thread that is started only to test the limits on threads.
const TRIAL_STACK_BYTES: usize = 64 << 10;
/// Maximum time to wait until the kernel no longer counts ended test threads, in nanoseconds.
const GONE_NS: u64 = 200_000_000;
/// Maximum number of retries, at intervals of 5 ms, after the system refused a test thread.
const REFUSED_RETRIES: u32 = 30;

/// Handle to join a thread that `std::thread` started.
#[derive(Debug)]
pub struct NativeThread(JoinHandle<()>);

impl Thread for NativeThread {
    fn join(self) -> bool {
        self.0.join().is_ok()
    }
}

/// Error of a thread that the system refused. Its text names the limits that may be the reason.
#[derive(Debug)]
pub struct ThreadRefused {
    name: String,
    source: io::Error,
}

impl fmt::Display for ThreadRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ThreadRefused { name, source } = self;
        write!(f, "cannot start the thread {name}: {source}; {}", thread_limits())
    }
}

impl core::error::Error for ThreadRefused {}

impl Native {
    /// Starts a thread, on `cpu` if given.
    ///
    /// # Errors
    /// Returns the system's error, as a [`ThreadRefused`].
    pub fn try_spawn(
        name: &str,
        cpu: Option<CpuId>,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<NativeThread> {
        let run = move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            body();
        };
        let refused = |source: io::Error| {
            io::Error::new(source.kind(), ThreadRefused { name: name.to_owned(), source })
        };
        Builder::new().name(name.to_owned()).spawn(run).map(NativeThread).map_err(refused)
    }

    /// Tests if the process may have `count` more threads at once: starts them, then ends them.
    /// Other processes may use up the limits afterwards.
    ///
    /// # Errors
    /// Returns the number of threads that could be started, and the error of the next one.
    pub fn try_threads(count: usize) -> Result<(), (usize, io::Error)> {
        let before = tasks();
        let gate = Arc::new(Mutex::new(()));
        let closed = lock_unpoisoned(&gate);
        let mut threads = Vec::new();
        let mut refused = None;
        // A busy kernel counts a thread against the limits for a while after it was joined.
        let mut retries = REFUSED_RETRIES;
        while threads.len() < count && refused.is_none() {
            let gate = Arc::clone(&gate);
            let wait = move || drop(gate.lock());
            match Builder::new().stack_size(TRIAL_STACK_BYTES).spawn(wait) {
                Ok(thread) => threads.push(thread),
                Err(_) if retries > 0 => {
                    retries -= 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => refused = Some((threads.len(), error)),
            }
        }
        drop(closed);
        for thread in threads {
            // Ignores the result: the thread only waited for a lock, so it cannot have panicked.
            let _ = thread.join();
        }
        let patience_ns = Native::now() + GONE_NS;
        while tasks() > before && Native::now() < patience_ns {
            std::thread::sleep(Duration::from_millis(1));
        }
        refused.map_or(Ok(()), Err)
    }
}

fn tasks() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Lets the calling thread run on all CPUs of the process, even if the starting thread is pinned.
pub fn run_on_any_cpu() {
    let set = allowed_set();
    // SAFETY: the set is a live local, and its size is passed to the call.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
}

/// Returns a text with the limits on the number of threads of this process, except infinite ones.
#[must_use]
pub fn thread_limits() -> String {
    let mut limits: Vec<String> = user_limit().into_iter().collect();
    for folder in cgroups() {
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        let Some(most) = read("pids.max").filter(|most| most.trim() != "max") else { continue };
        limits.push(format!(
            "pids.max of cgroup {} is {} (systemd: TasksMax=)",
            folder.display(),
            most.trim()
        ));
    }
    if limits.is_empty() {
        let most = std::fs::read_to_string("/proc/sys/kernel/threads-max").unwrap_or_default();
        return format!(
            "the cause may be the limit kernel.threads-max ({}) or a lack of memory",
            most.trim()
        );
    }
    limits.join("; ")
}

/// Returns the user's RLIMIT_NPROC as text, unless it does not apply to this process.
fn user_limit() -> Option<String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills a live local; geteuid has no preconditions.
    let (done, user) =
        unsafe { (libc::getrlimit(libc::RLIMIT_NPROC, &mut limit), libc::geteuid()) };
    if done != 0 || user == 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return None;
    }
    Some(format!(
        "RLIMIT_NPROC allows user {user} {} processes and threads in all (`ulimit -u`, \
         LimitNPROC= of a unit)",
        limit.rlim_cur
    ))
}

/// Returns the directories of the process's cgroups, innermost first.
fn cgroups() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            names if names.split(',').any(|name| name == "pids") => {
                Path::new("/sys/fs/cgroup/pids")
            }
            _ => continue,
        };
        let inner = root.join(path.trim_start_matches('/'));
        folders.extend(inner.ancestors().take_while(|at| at.starts_with(root)).map(Path::to_owned));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_threads_can_be_tried_and_are_gone_afterwards() {
        let before = tasks();
        assert!(Native::try_threads(50).is_ok());
        // Other tests have threads as well.
        assert!(tasks() < before + 50);
    }

    #[test]
    fn a_refusal_names_the_thread_the_reason_and_a_limit() {
        let source = io::Error::from_raw_os_error(libc::EAGAIN);
        let text =
            std::string::ToString::to_string(&ThreadRefused { name: "t7".to_owned(), source });
        assert!(text.starts_with("cannot start the thread t7: Resource temporarily"), "{text}");
        let limits = ["RLIMIT_NPROC", "pids.max", "kernel.threads-max"];
        assert!(limits.iter().any(|limit| text.contains(limit)), "{text}");
    }
}
