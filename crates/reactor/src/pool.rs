//! Threads for operations that have no asynchronous form: files on epoll, ioctl everywhere.
//!
//! One pool serves all reactors of the process. Owns the threads; `pool/job_queue.rs` has the jobs
//! and the rules by which drives share them. Threads start when jobs wait and end after being idle
//! for [`IDLE`], except for a few that [`Pool::reserve`] starts before a drive is served. A thread
//! that finds more work calls the next one, so a submitter wakes one thread for each batch.
//! Lock order: the mutex is a leaf and is never held across a system call.
//! Wake protocol: the owner sets `asleep` under the mutex after it saw no results; a worker that
//! adds a result under the mutex takes `asleep` and, if it was set, writes the eventfd once.
//! So there is one write per batch, and none while the owner is awake.

#![allow(unsafe_code)]

mod job_queue;

use crate::op::{FileRef, Op};
use crate::sys;
use crate::table::Key;
use job_queue::{Call, JobQueue, LANE_MAX};
use millrace_machine::{Native, run_on_any_cpu, thread_limits};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most threads that all drives share. Beyond it each drive can have one thread of its own.
pub const POOL_THREADS_SHARED: usize = 128;
/// Threads that are there from the start, or one for each drive that needs any if those are fewer.
pub const POOL_THREADS_KEPT: usize = 4;
/// How long a thread waits for jobs before it ends.
const IDLE: Duration = Duration::from_secs(10);
const LIMITS: PoolLimits = PoolLimits {
    shared: POOL_THREADS_SHARED,
    lane: LANE_MAX,
    kept: POOL_THREADS_KEPT,
    growth_ns: 10_000_000,
    refused_ns: 100_000_000,
};

/// Bounds of the pool.
#[derive(Clone, Copy, Debug)]
struct PoolLimits {
    /// Most threads that run jobs of any lane.
    shared: usize,
    /// Most threads of a lane.
    lane: usize,
    /// Threads that never end.
    kept: usize,
    /// How long a drive without a thread waits before the pool gets one more than `shared`.
    growth_ns: u64,
    /// How long the pool asks for no thread after the system has refused one.
    refused_ns: u64,
}

/// One operation for a thread.
#[derive(Clone, Copy)]
struct Job {
    key: Key,
    lane: u32,
    inbox: u32,
    op: Op,
}

// SAFETY: the pointers in `op` stay valid and unaliased until the completion is taken (contract of
// `Handle::push`), and only the one worker that took the job uses them.
unsafe impl Send for Job {}

struct Shared {
    queue: Mutex<JobQueue>,
    work: Condvar,
}

static POOL: Shared = Shared { queue: Mutex::new(JobQueue::new(LIMITS)), work: Condvar::new() };

fn lock() -> MutexGuard<'static, JobQueue> {
    POOL.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A drive's share of the process's thread pool. All queues of a drive have the same one, so that
/// a drive whose operations hang holds a bounded number of threads.
#[derive(Debug)]
pub struct PoolShare(u32);

impl PoolShare {
    /// A share in which nothing runs yet.
    #[must_use]
    pub fn new() -> Arc<PoolShare> {
        Arc::new(PoolShare(lock().open_lane()))
    }

    /// Has the pool keep a thread for this drive, or one of a few for all drives.
    ///
    /// # Errors
    /// The system's refusal.
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

/// The news that the system refuses the pool more threads, once each time that it begins to.
#[must_use]
pub fn take_thread_refusal() -> Option<String> {
    let mut queue = lock();
    let threads = queue.threads;
    std::mem::take(&mut queue.refusal_untold).then_some(())?;
    drop(queue);
    Some(format!(
        "the system refuses more threads; the pool for I/O on files goes on with {threads}: {}",
        thread_limits()
    ))
}

/// One reactor's end of the pool.
pub(crate) struct Pool {
    inbox: u32,
    outstanding: usize,
    jobs: Vec<Job>,
    scratch: Vec<(Key, i32)>,
}

/// How a reactor may sleep as far as the pool is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Not at all: results are there.
    No,
    /// At most until this time, if any; the pool is to be asked again then.
    Until(Option<u64>),
}

impl Pool {
    /// An end whose owner the pool wakes through `wake`.
    pub(crate) fn new(wake: Arc<OwnedFd>) -> Pool {
        let inbox = lock().open_inbox(wake);
        Pool { inbox, outstanding: 0, jobs: Vec::new(), scratch: Vec::new() }
    }

    /// Adds an operation to the batch.
    pub(crate) fn add(&mut self, key: Key, share: &PoolShare, op: Op) {
        self.jobs.push(Job { key, lane: share.0, inbox: self.inbox, op });
    }

    /// Hands the batch over. Where there is no thread and none to be had, it is done here and now.
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

    /// Takes an operation back that no thread has begun; false if there is none.
    pub(crate) fn cancel(&mut self, key: Key, share: &PoolShare) -> bool {
        if let Some(at) = self.jobs.iter().position(|job| job.key == key) {
            self.jobs.remove(at);
            return true;
        }
        let found = lock().cancel(share.0, self.inbox, key);
        self.outstanding -= usize::from(found);
        found
    }

    /// Jobs handed over whose results were not collected.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Calls `each` with every result that is there.
    pub(crate) fn collect(&mut self, mut each: impl FnMut(Key, i32)) {
        if self.outstanding == 0 {
            return;
        }
        lock().take_results(self.inbox, &mut self.scratch);
        self.outstanding -= self.scratch.len();
        for (key, result) in self.scratch.drain(..) {
            each(key, result);
        }
    }

    /// Asks for a wake-up on the next result, unless results are there.
    pub(crate) fn prepare_sleep(&mut self) -> Sleep {
        if self.outstanding == 0 {
            return Sleep::Until(None);
        }
        let mut queue = lock();
        if queue.next_growth_ns().is_some() {
            let next = queue.call(sys::now_ns());
            drop(queue);
            summon(next);
            queue = lock();
        }
        match queue.sleep(self.inbox) {
            true => Sleep::Until(queue.next_growth_ns()),
            false => Sleep::No,
        }
    }

    /// Ends what `prepare_sleep` began.
    pub(crate) fn awake(&mut self) {
        if self.outstanding != 0 {
            lock().awake(self.inbox);
        }
    }
}

impl Drop for Pool {
    /// Drops the jobs that no thread has begun; nobody waits for the others.
    fn drop(&mut self) {
        lock().close_inbox(self.inbox);
    }
}

/// Wakes or starts a thread.
fn summon(call: Call) {
    match call {
        Call::Nobody => {}
        Call::Idle => POOL.work.notify_one(),
        Call::New => {
            // The threads that there are go on, and ask again later.
            if spawn().is_err() && lock().threads == 0 {
                drop(serve(lock()));
            }
        }
    }
}

/// Starts a thread that has been counted already.
fn spawn() -> io::Result<()> {
    let started = Native::try_spawn("millrace-pool", None, work);
    match started {
        Ok(_) => lock().given(),
        Err(_) => lock().refused(sys::now_ns()),
    }
    started.map(drop)
}

fn work() {
    // Whoever started it may be pinned, and it serves all.
    run_on_any_cpu();
    let mut queue = lock();
    queue.coming -= 1;
    while let Some(called) = wait(serve(queue)) {
        queue = called;
    }
}

/// Runs jobs until none is left for the calling thread.
fn serve(mut queue: MutexGuard<'static, JobQueue>) -> MutexGuard<'static, JobQueue> {
    let mut now_ns = sys::now_ns();
    while let Some(job) = queue.take(now_ns) {
        let next = queue.call(now_ns);
        drop(queue);
        summon(next);
        // SAFETY: by the contract of `Handle::push`, all that the operation names is valid
        // until its completion is taken, which happens after this.
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

/// Waits until the thread is called; none if the thread has been idle for long and is to end.
fn wait(mut queue: MutexGuard<'static, JobQueue>) -> Option<MutexGuard<'static, JobQueue>> {
    queue.idle += 1;
    loop {
        // A thread that is kept sleeps undisturbed.
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

/// Runs one file operation to its end on the calling thread: the result, or `-errno`; `-EINVAL` for
/// an operation that is none on a file. Files are named by descriptor, not by a ring's table.
///
/// # Safety
///
/// As [`Handle::push`](crate::Handle::push), until this returns.
#[inline]
pub unsafe fn run_file_op(op: &Op) -> i32 {
    // SAFETY: the caller vouches for all memory and descriptors that the operation names.
    let returned = unsafe {
        match *op {
            Op::Read { file, buf, len, offset, .. } => {
                sys::pread(raw(file), buf, len as usize, offset)
            }
            // Without a list of memory to look at the call is shorter.
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

/// The descriptor of a file; an index of a ring's table names none here.
#[inline]
pub(crate) fn raw(file: FileRef) -> i32 {
    match file {
        FileRef::Raw(fd) => fd,
        FileRef::Fixed(_) => -1,
    }
}
