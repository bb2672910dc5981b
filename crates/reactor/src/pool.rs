//! Thread pool for operations without an asynchronous form: file operations on the epoll back end,
//! ioctl on both back ends.
//!
//! One pool serves all reactors of the process. Threads start when jobs wait, and end after being
//! idle for [`IDLE`], except for a few that `reserve` starts. A thread that finds more work wakes
//! the next one, so a submitter wakes only one thread for each batch. No other lock is taken under
//! the pool's mutex, and the mutex is never held across a system call. The owner of an inbox (a
//! reactor) sets `asleep` under the mutex if it finds no results. A pool thread that adds a result
//! clears `asleep` under the mutex and, if `asleep` was set, writes the eventfd. So the eventfd is
//! written once for each batch of results, and never while the owner is awake.

#![allow(unsafe_code)]

mod job_queue;

use crate::op::{FileRef, Op};
use crate::sys;
use crate::table::OperationKey;
use job_queue::{JobQueue, ThreadCall};
use millrace_machine::{Native, lock_unpoisoned, run_on_any_cpu, thread_limits};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of pool threads. A drive that has no thread gets one even beyond this limit.
pub const POOL_THREADS_SHARED: usize = 128;
/// Maximum number of pool threads that are kept even while idle. Each drive that needs threads
/// keeps one, up to this limit.
pub const POOL_THREADS_KEPT: usize = 4;
const IDLE: Duration = Duration::from_secs(10);
const LIMITS: PoolLimits = PoolLimits {
    shared: POOL_THREADS_SHARED,
    lane: 16,
    kept: POOL_THREADS_KEPT,
    growth_ns: 10_000_000,
    refused_ns: 100_000_000,
};

#[derive(Clone, Copy, Debug)]
struct PoolLimits {
    shared: usize,
    lane: usize,
    kept: usize,
    /// Time, in nanoseconds, after which a drive may get a thread beyond the limit `shared`. During
    /// this time, the drive must have had waiting jobs but no running job.
    growth_ns: u64,
    /// Time for which the pool starts no thread after the system refused one, in nanoseconds.
    refused_ns: u64,
}

#[derive(Clone, Copy)]
struct PoolJob {
    key: OperationKey,
    lane: u32,
    inbox: u32,
    op: Op,
}

// SAFETY: the pointers in `op` stay valid and unaliased (contract of `Handle::push`).
// Only the pool thread that takes the job uses the pointers in `op`.
unsafe impl Send for PoolJob {}

struct SharedPool {
    queue: Mutex<JobQueue>,
    work: Condvar,
}

static POOL: SharedPool =
    SharedPool { queue: Mutex::new(JobQueue::new(LIMITS)), work: Condvar::new() };

fn lock() -> MutexGuard<'static, JobQueue> {
    lock_unpoisoned(&POOL.queue)
}

/// A drive's share of the process's thread pool. All queues of a drive use the same share, so that
/// a drive whose operations hang occupies only a limited number of threads.
#[derive(Debug)]
pub struct PoolShare(u32);

impl PoolShare {
    /// Creates a drive's share of the process's thread pool, with an empty job queue.
    #[must_use]
    pub fn new() -> Arc<PoolShare> {
        Arc::new(PoolShare(lock().open_lane()))
    }

    /// Makes the pool keep one more thread, unless it keeps [`POOL_THREADS_KEPT`] already. Returns
    /// an error if the system refuses a thread.
    pub(crate) fn reserve(&self) -> io::Result<()> {
        lock().reserve(self.0);
        loop {
            let mut queue = lock();
            if queue.threads >= queue.kept() {
                return Ok(());
            }
            queue.start();
            drop(queue);
            spawn()?;
        }
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        lock().close_lane(self.0);
    }
}

/// Returns a warning once when the system begins to refuse threads, and `None` for later refusals
/// until a thread has started again.
#[must_use]
pub fn take_thread_refusal() -> Option<String> {
    let mut queue = lock();
    let threads = queue.threads;
    std::mem::take(&mut queue.refusal_untold).then_some(())?;
    drop(queue);
    Some(format!(
        "the system refuses more threads; the pool for file I/O continues with {threads}: {}",
        thread_limits()
    ))
}

pub(crate) struct WorkerPool {
    inbox: u32,
    pub(crate) outstanding: usize,
    jobs: Vec<PoolJob>,
    scratch: Vec<(OperationKey, i32)>,
}

impl WorkerPool {
    pub(crate) fn new(wake: Arc<OwnedFd>) -> WorkerPool {
        let inbox = lock().open_inbox(wake);
        WorkerPool { inbox, outstanding: 0, jobs: Vec::new(), scratch: Vec::new() }
    }

    pub(crate) fn add(&mut self, key: OperationKey, share: &PoolShare, op: Op) {
        self.jobs.push(PoolJob { key, lane: share.0, inbox: self.inbox, op });
    }

    /// Submits the jobs that were added since the last call. If no thread exists and none can be
    /// started, the calling thread executes the jobs at once.
    pub(crate) fn submit(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        self.outstanding += self.jobs.len();
        let now_ns = sys::now_ns();
        let mut queue = lock();
        self.jobs.drain(..).for_each(|job| queue.put(job, now_ns));
        let next = queue.call(now_ns);
        drop(queue);
        summon(next);
    }

    /// Cancels an operation that no thread has started. Returns false if there is no such
    /// operation.
    pub(crate) fn cancel(&mut self, key: OperationKey, share: &PoolShare) -> bool {
        if let Some(at) = self.jobs.iter().position(|job| job.key == key) {
            self.jobs.remove(at);
            return true;
        }
        let found = lock().cancel(share.0, self.inbox, key);
        self.outstanding -= usize::from(found);
        found
    }

    pub(crate) fn collect(&mut self, mut each: impl FnMut(OperationKey, i32)) {
        if self.outstanding == 0 {
            return;
        }
        lock().take_results(self.inbox, &mut self.scratch);
        self.outstanding -= self.scratch.len();
        for (key, result) in self.scratch.drain(..) {
            each(key, result);
        }
    }

    /// Asks the pool to wake the reactor when it has the next result. Return values:
    /// - `None`: results are waiting already, so the reactor must not sleep.
    /// - `Some(None)`: the pool needs no other thread.
    /// - `Some(Some(time))`: time in nanoseconds from which the pool may start another thread.
    pub(crate) fn prepare_sleep(&mut self) -> Option<Option<u64>> {
        if self.outstanding == 0 {
            return Some(None);
        }
        let mut queue = lock();
        if queue.next_growth_ns().is_some() {
            let next = queue.call(sys::now_ns());
            drop(queue);
            summon(next);
            queue = lock();
        }
        queue.sleep(self.inbox).then(|| queue.next_growth_ns())
    }

    pub(crate) fn awake(&mut self) {
        if self.outstanding != 0 {
            lock().awake(self.inbox);
        }
    }
}

impl Drop for WorkerPool {
    /// Drops the jobs that no thread has started. Jobs in progress continue, and their results are
    /// dropped.
    fn drop(&mut self) {
        lock().close_inbox(self.inbox);
    }
}

fn summon(call: ThreadCall) {
    match call {
        ThreadCall::Nobody => {}
        ThreadCall::Idle => POOL.work.notify_one(),
        ThreadCall::New => {
            // If no pool thread exists and none can be started, the calling thread runs the jobs.
            if spawn().is_err() && lock().threads == 0 {
                drop(serve(lock()));
            }
        }
    }
}

fn spawn() -> io::Result<()> {
    let started = Native::try_spawn("millrace-pool", None, work);
    match started {
        Ok(_) => lock().given(),
        Err(_) => lock().refused(sys::now_ns()),
    }
    started.map(drop)
}

fn work() {
    // The thread that starts this one may be pinned to a CPU, but a pool thread serves all drives
    // and may run on any CPU.
    run_on_any_cpu();
    let mut queue = lock();
    queue.coming -= 1;
    while let Some(called) = wait(serve(queue)) {
        queue = called;
    }
}

fn serve(mut queue: MutexGuard<'static, JobQueue>) -> MutexGuard<'static, JobQueue> {
    let mut now_ns = sys::now_ns();
    while let Some(job) = queue.take(now_ns) {
        let next = queue.call(now_ns);
        drop(queue);
        summon(next);
        // SAFETY: the operation's memory is valid until its completion is taken, which is later.
        let result = unsafe { run_file_op(&job.op) };
        now_ns = sys::now_ns();
        queue = lock();
        if let Some(wake) = queue.finish(&job, result, now_ns) {
            drop(queue);
            sys::eventfd_write(&wake);
            queue = lock();
        }
    }
    queue
}

/// Waits for a wake-up. Returns `None` if the thread must end because it was idle for too long.
fn wait(mut queue: MutexGuard<'static, JobQueue>) -> Option<MutexGuard<'static, JobQueue>> {
    queue.idle += 1;
    loop {
        // Waits without a timeout if the pool has no more threads than it must keep, because then
        // no idle thread may end.
        let limit = if queue.threads > queue.kept() { IDLE } else { Duration::MAX };
        let waited = POOL.work.wait_timeout(queue, limit);
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        queue = guard;
        if queue.calls > 0 {
            (queue.calls, queue.coming) = (queue.calls - 1, queue.coming - 1);
            return Some(queue);
        }
        if timeout.timed_out() && queue.threads > queue.kept() {
            (queue.idle, queue.threads) = (queue.idle - 1, queue.threads - 1);
            return None;
        }
    }
}

/// Runs one file operation to its end on the calling thread. Returns the operation's result or
/// `-errno`, which is `-EINVAL` if it is not a file operation. The file must be given by
/// descriptor, not as an index into a ring's table.
///
/// # Safety
///
/// The requirements of [`Handle::push`](crate::Handle::push) must hold until this function returns.
#[inline]
pub unsafe fn run_file_op(op: &Op) -> i32 {
    // SAFETY: the caller vouches for all memory and descriptors that the operation names.
    let returned = unsafe {
        match *op {
            Op::Read { file, buf, len, offset, .. } => {
                sys::pread(raw(file), buf, len as usize, offset)
            }
            // `pwrite` is cheaper than `pwritev2`, because the kernel has no iovec to read.
            Op::Write { file, buf, len, offset, rw_flags: 0, .. } => {
                sys::pwrite(raw(file), buf, len as usize, offset)
            }
            Op::Write { file, buf, len, offset, rw_flags, .. } => {
                let iov = libc::iovec { iov_base: buf.cast_mut().cast(), iov_len: len as usize };
                libc::pwritev2(raw(file), &iov, 1, offset as i64, rw_flags)
            }
            Op::ReadV { file, iov, count, offset, .. } => {
                libc::preadv2(raw(file), iov, count as i32, offset as i64, 0)
            }
            Op::WriteV { file, iov, count, offset, rw_flags, .. } => {
                libc::pwritev2(raw(file), iov, count as i32, offset as i64, rw_flags)
            }
            Op::Fdatasync { file } => libc::fdatasync(raw(file)) as isize,
            Op::Fallocate { file, mode, offset, len } => {
                libc::fallocate(raw(file), mode, offset as i64, len as i64) as isize
            }
            Op::Ioctl { fd, request, mut range } => {
                libc::ioctl(fd, request as libc::Ioctl, &raw mut range) as isize
            }
            _ => return -libc::EINVAL,
        }
    };
    sys::result_of(returned)
}

/// Returns the descriptor of a file. Returns -1 for a registered file, because only the ring can
/// use an index into its table.
#[inline]
pub(crate) fn raw(file: FileRef) -> i32 {
    match file {
        FileRef::Raw(fd) => fd,
        FileRef::Fixed(_) => -1,
    }
}
