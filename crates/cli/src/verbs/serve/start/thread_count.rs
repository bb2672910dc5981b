//! Checks that the system allows all threads that a configuration needs.
//!
//! The threads are counted, then started and ended at once. So if a limit of the system is too low,
//! the start fails before anything is served. Helper threads of file drives count, too. With
//! io_uring, there is a kernel worker for each thread that does file I/O. The process has a pool of
//! threads for file operations of drives without io_uring, and of block devices.
//! docs/operations.md has the same sum.

use std::collections::{HashMap, HashSet};

use millrace::{DriveConfig, Opened};
use millrace_machine::{Native, thread_limits};
use millrace_reactor::{Backend, Config, POOL_THREADS_KEPT, Reactor};

use crate::config::ServePlan;

/// Number of threads that already run when threads are counted: the main thread, the signal thread,
/// and one writer each for standard output and standard error.
const RUNNING: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ThreadCount {
    io: usize,
    workers: usize,
    /// Number of threads for control. Each vhost-user export has one for its control messages. One
    /// thread serves the control socket and the metrics page. With TLS, one thread checks
    /// certificates.
    others: usize,
    helpers: usize,
}

impl ThreadCount {
    fn total(self) -> usize {
        self.io + self.workers + self.others + self.helpers
    }
}

/// Starts and ends as many threads as serving needs, to learn whether the system allows them.
pub fn check(plan: &ServePlan, opened: &Opened) -> anyhow::Result<()> {
    let needed = needed(plan, opened);
    Native::try_threads(needed.total()).map_err(|(found, error)| {
        let ThreadCount { io, workers, others, helpers } = needed;
        anyhow::anyhow!(
            "this configuration needs {} threads ({io} for I/O, {helpers} to help them with files, \
             {workers} for drives and caches, {others} for control, and {RUNNING} for signals, the log and \
             its start), and the system allows {}: {error}; {}; raise the limit, or lower `threads`",
            needed.total() + RUNNING,
            found + RUNNING,
            thread_limits()
        )
    })
}

fn has_io_uring() -> bool {
    Reactor::new(Config { backend: Backend::Uring, entries: 1, ..Config::default() }).is_ok()
}

fn needed(plan: &ServePlan, opened: &Opened) -> ThreadCount {
    let config = &plan.config;
    let has_ring = config.server.backend != Backend::Epoll && has_io_uring();
    let files = config.volumes.iter().filter(|volume| volume.drives.iter().any(on_ring));
    let files: HashSet<&str> = files.map(|volume| volume.name.as_str()).collect();
    let has_files = |name: &str| files.contains(name);
    let nbd: Vec<_> = config.exports.iter().filter(|export| !export.nbd.is_empty()).collect();
    let nbd_threads = if nbd.is_empty() { 0 } else { usize::from(config.server.threads) };
    let nbd_files = nbd.iter().any(|export| has_files(&export.volume));
    let mut needed = ThreadCount { io: nbd_threads, ..ThreadCount::default() };
    let mut with_files = if nbd_files { nbd_threads } else { 0 };
    for export in &config.exports {
        let Some(guests) = &export.guests else { continue };
        let threads = usize::from(guests.thread_count());
        (needed.io, needed.others) = (needed.io + threads, needed.others + 1);
        with_files += if has_files(&export.volume) { threads } else { 0 };
    }
    let mut cpus = HashMap::new();
    for (volume, settings) in opened.volumes.iter().zip(&config.volumes) {
        for (disk, drive) in volume.drives().iter().zip(&settings.drives) {
            if let Some(cpu) = disk.worker_cpu() {
                *cpus.entry(cpu).or_insert(false) |= on_ring(drive);
            }
        }
    }
    with_files += cpus.values().filter(|files| **files).count();
    let caches = opened.caches.iter().map(|(cache, _)| has_files(cache.below().name()));
    with_files += caches.filter(|files| *files).count();
    needed.workers = cpus.len() + opened.caches.len();
    // One thread serves the control socket and the metrics page. With TLS, one more checks
    // certificates.
    needed.others += 1 + usize::from(plan.listeners.iter().any(|one| one.tls.is_some()));
    let pooled = config.volumes.iter().flat_map(|volume| &volume.drives);
    let pooled = pooled.filter(|drive| is_file(drive) && (!has_ring || on_threads(drive)));
    let kept = pooled.count().min(POOL_THREADS_KEPT);
    needed.helpers = kept + if has_ring { with_files } else { 0 };
    needed
}

fn is_file(drive: &DriveConfig) -> bool {
    let inner = drive.spec.innermost();
    inner.driver == "file" && inner.get("aio") != Some("inline")
}

/// Returns true if the drive's I/O goes through io_uring on a system that has io_uring.
fn on_ring(drive: &DriveConfig) -> bool {
    is_file(drive) && drive.spec.innermost().get("aio") != Some("threads")
}

/// Returns true for a drive that uses the process's pool of threads for file operations even if
/// io_uring is available: a drive with `aio=threads`, or a block device.
fn on_threads(drive: &DriveConfig) -> bool {
    let inner = drive.spec.innermost();
    let is_block = || {
        use std::os::unix::fs::FileTypeExt;
        let path = inner.file().and_then(|path| std::fs::metadata(path).ok());
        path.is_some_and(|meta| meta.file_type().is_block_device())
    };
    inner.get("aio") == Some("threads") || is_block()
}
