//! Threads that do file operations for queues whose ring is not to be used (`aio=threads`).
//!
//! One pool per drive, its threads started when work first waits; each queue has a list of results
//! and the eventfd of its I/O thread. Called by `engine.rs`. Lock order: none nests; a result is
//! published before the eventfd is written, and that is written only when the list was empty.
//! Threads end when the drive is dropped and the last job is done; nobody waits for them.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use millrace_machine::{Machine, Native};
use millrace_reactor::{Completion, Op, run_file_op};

/// Most threads of a drive.
const THREADS: usize = 8;

struct Job {
    user_data: u64,
    op: Op,
    replies: Arc<Replies>,
}

// SAFETY: the memory that `op` names belongs to the operation until its completion is taken (the
// contract of `Link::push`), so whichever thread runs it may use it.
unsafe impl Send for Job {}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
    /// Most jobs that the open queues can have in it.
    jobs_max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of a drive.
#[derive(Default)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.work.notify_all();
    }
}

/// Results for one queue.
struct Replies {
    done: Mutex<Vec<Completion>>,
    wake: Arc<OwnedFd>,
    pending: AtomicUsize,
}

impl Replies {
    fn push(&self, user_data: u64, result: i32) {
        let mut done = lock(&self.done);
        let was_empty = done.is_empty();
        done.push(Completion { user_data, result, flags: 0 });
        drop(done);
        if was_empty {
            let one = 1u64;
            // SAFETY: eight bytes of a live number; a full counter wakes just as well.
            unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

/// One queue's way into the pool.
pub(crate) struct Link {
    shared: Arc<Shared>,
    replies: Arc<Replies>,
    depth: usize,
}

impl Drop for Link {
    fn drop(&mut self) {
        lock(&self.shared.state).jobs_max -= self.depth;
    }
}

impl Pool {
    /// A way in for a queue of `depth` whose thread `wake` wakes; makes room for its jobs.
    pub(crate) fn link(&self, wake: Arc<OwnedFd>, depth: u32) -> Link {
        let depth = depth as usize;
        let done = Mutex::new(Vec::with_capacity(depth));
        let replies = Replies { done, wake, pending: AtomicUsize::new(0) };
        let state = &mut *lock(&self.shared.state);
        state.jobs_max += depth;
        state.jobs.reserve(state.jobs_max);
        Link { shared: Arc::clone(&self.shared), replies: Arc::new(replies), depth }
    }
}

impl Link {
    /// Queues an operation.
    ///
    /// # Safety
    /// Memory and descriptors that `op` names stay valid until its completion is taken.
    pub(crate) unsafe fn push(&self, user_data: u64, op: Op) {
        // Relaxed: only the queue's own thread counts up and reads; completions count down later.
        self.replies.pending.fetch_add(1, Ordering::Relaxed);
        let job = Job { user_data, op, replies: Arc::clone(&self.replies) };
        let mut state = lock(&self.shared.state);
        state.jobs.push_back(job);
        let start = state.idle < state.jobs.len() && state.threads < THREADS;
        state.threads += usize::from(start);
        drop(state);
        if start {
            let shared = Arc::clone(&self.shared);
            let _detached = Native::spawn("millrace-file", None, Box::new(move || work(&shared)));
        }
        self.shared.work.notify_one();
    }

    /// Takes an operation back that no thread has begun; it completes with `-ECANCELED`.
    pub(crate) fn cancel(&self, user_data: u64) {
        let mut state = lock(&self.shared.state);
        let mine =
            |job: &Job| job.user_data == user_data && Arc::ptr_eq(&job.replies, &self.replies);
        let place = state.jobs.iter().position(mine);
        let job = place.and_then(|place| state.jobs.remove(place));
        drop(state);
        if job.is_some() {
            self.replies.push(user_data, -libc::ECANCELED);
        }
    }

    /// Moves all completions to the end of `into`.
    pub(crate) fn take(&self, into: &mut Vec<Completion>) {
        let mut done = lock(&self.replies.done);
        // Relaxed: see `push`.
        self.replies.pending.fetch_sub(done.len(), Ordering::Relaxed);
        into.append(&mut done);
    }

    /// Operations pushed whose completions were not taken.
    pub(crate) fn pending(&self) -> usize {
        // Relaxed: see `push`.
        self.replies.pending.load(Ordering::Relaxed)
    }
}

fn work(shared: &Shared) {
    let mut state = lock(&shared.state);
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            // SAFETY: memory and descriptors are valid until the completion is taken
            // (`Link::push`),
            // which is after this.
            let result = unsafe { run_file_op(&job.op) };
            job.replies.push(job.user_data, result);
            state = lock(&shared.state);
        } else if state.closed {
            return;
        } else {
            state.idle += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}
