//! Threads for operations that have no asynchronous form: files on epoll, ioctl everywhere.
//!
//! Owns a queue of jobs and a list of results behind one mutex. The owner thread submits batches
//! and collects results; workers start when first needed and live until the pool is dropped. Each
//! source has so many of them at most, so a file whose operations hang holds up no other file.
//! Lock order: the mutex is a leaf and is never held across a system call.
//! Wake protocol: the owner sets `asleep` under the mutex after it saw no results; a worker that
//! adds a result under the mutex takes `asleep` and, if it was set, writes the eventfd once.
//! So there is one write per batch, and none while the owner is awake.

#![allow(unsafe_code)]

use crate::op::{FileRef, Op};
use crate::sys;
use crate::table::Key;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One operation for a worker.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) key: Key,
    /// Whose it is.
    pub(crate) source: u16,
    pub(crate) op: Op,
}

// SAFETY: the pointers in `op` stay valid and unaliased until the completion is taken (contract of
// `Handle::push`), and only the one worker that took the job uses them.
unsafe impl Send for Job {}

/// The jobs of a source.
#[derive(Clone, Copy, Default)]
struct Lane {
    queued: usize,
    running: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// By source, as far as any had a job.
    lanes: Vec<Lane>,
    /// Most jobs of a source that run at a time.
    lane_max: usize,
    results: Vec<(Key, i32)>,
    idle: usize,
    asleep: bool,
    closed: bool,
}

impl State {
    fn put(&mut self, job: Job) {
        let lane = usize::from(job.source);
        if lane >= self.lanes.len() {
            self.lanes.resize(lane + 1, Lane::default());
        }
        self.lanes[lane].queued += 1;
        self.jobs.push_back(job);
    }

    /// The first job whose source does not have its share of the workers yet.
    fn take(&mut self) -> Option<Job> {
        let (lanes, most) = (&mut self.lanes, self.lane_max);
        let may_run = |job: &Job| lanes[usize::from(job.source)].running < most;
        let at = self.jobs.iter().position(may_run)?;
        let job = self.jobs.remove(at)?;
        let lane = &mut lanes[usize::from(job.source)];
        (lane.queued, lane.running) = (lane.queued - 1, lane.running + 1);
        Some(job)
    }

    /// Jobs that could run now, had they workers.
    fn ready(&self) -> usize {
        self.lanes.iter().map(|lane| lane.queued.min(self.lane_max - lane.running)).sum()
    }
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    wake: Arc<OwnedFd>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owner's end of the pool.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: usize,
    outstanding: usize,
    scratch: Vec<(Key, i32)>,
}

impl Pool {
    /// A pool of at most `lane_max` threads for each source, that wakes its owner through `wake`.
    pub(crate) fn new(lane_max: usize, wake: Arc<OwnedFd>) -> Pool {
        let state = Mutex::new(State { lane_max: lane_max.max(1), ..State::default() });
        let shared = Shared { state, work: Condvar::new(), wake };
        Pool { shared: Arc::new(shared), threads: 0, outstanding: 0, scratch: Vec::new() }
    }

    /// Hands over all of `jobs`, which is left empty. Without any thread they fail.
    pub(crate) fn submit(&mut self, jobs: &mut Vec<Job>) {
        let count = jobs.len();
        self.outstanding += count;
        let mut state = self.shared.lock();
        // Room for all, so that it never grows because the threads are slower than before.
        let others = self.outstanding - state.jobs.len();
        state.jobs.reserve(others);
        jobs.drain(..).for_each(|job| state.put(job));
        // Those that have been started and found no job yet are idle soon.
        let most = state.lanes.len() * state.lane_max;
        let missing = state.ready().saturating_sub(state.idle);
        drop(state);
        for _ in 0..missing.min(most - self.threads) {
            if !self.spawn() {
                break;
            }
        }
        match count {
            1 => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
        if self.threads == 0 {
            let mut state = self.shared.lock();
            let state = &mut *state;
            state.lanes.fill(Lane::default());
            let failed = state.jobs.drain(..).map(|job| (job.key, -libc::ENOMEM));
            state.results.extend(failed);
        }
    }

    fn spawn(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("millrace-pool".to_owned());
        let started = builder.spawn(move || work(&shared)).is_ok();
        self.threads += usize::from(started);
        started
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
        std::mem::swap(&mut self.shared.lock().results, &mut self.scratch);
        self.outstanding -= self.scratch.len();
        for (key, result) in self.scratch.drain(..) {
            each(key, result);
        }
    }

    /// Asks for a wake-up on the next result. False, and nothing asked, if results are waiting.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if self.outstanding == 0 {
            return true;
        }
        let mut state = self.shared.lock();
        state.asleep = state.results.is_empty();
        state.asleep
    }

    /// Ends what `prepare_sleep` began.
    pub(crate) fn awake(&mut self) {
        if self.outstanding != 0 {
            self.shared.lock().asleep = false;
        }
    }
}

impl Drop for Pool {
    /// Tells the workers to end; one inside a system call ends after it.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.take() {
            drop(state);
            // SAFETY: by the contract of `Handle::push`, all that the operation names is valid
            // until its completion is taken, which happens after this.
            let result = unsafe { run_file_op(&job.op) };
            state = shared.lock();
            state.lanes[usize::from(job.source)].running -= 1;
            state.results.push((job.key, result));
            if std::mem::take(&mut state.asleep) {
                drop(state);
                sys::eventfd_write(&shared.wake);
                state = shared.lock();
            }
            continue;
        }
        if state.closed {
            return;
        }
        state.idle += 1;
        state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_its_share_of_the_workers_and_no_more() {
        let mut state = State { lane_max: 2, ..State::default() };
        let op = Op::Fdatasync { file: FileRef::Raw(-1) };
        for (key, source) in (0..).zip([0, 0, 0, 0, 3, 3]) {
            state.put(Job { key: Key(key), source, op });
        }
        assert_eq!(state.ready(), 4);
        let mut take = || state.take().map(|job| job.source);
        assert_eq!([0; 5].map(|_| take()), [Some(0), Some(0), Some(3), Some(3), None]);
        assert_eq!(state.ready(), 0);
        state.lanes[0].running -= 1;
        assert_eq!((state.ready(), state.take().map(|job| job.key.0)), (1, Some(2)), "in order");
    }
}
