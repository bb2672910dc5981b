//! `ThreadTable`: the threads of a simulation and their states.
//!
//! Plain data. The scheduler owns the table. Locks, parkers and other primitives on which threads
//! wait change the table, too.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::boxed::Box;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use corosensei::Yielder;

pub(crate) const NO_THREAD: u32 = u32::MAX;

pub(crate) type ThreadBody = Box<dyn FnOnce() + Send>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadPhase {
    Running,
    Ready,
    Parked,
    /// The thread waits for the end of the thread with this number.
    Joining(u32),
    /// The thread spins on this lock of the lock table.
    Locking(u32),
    Spinning,
    /// The thread waits for a contended cache line.
    Stalled,
}

pub(crate) struct ThreadState {
    pub(crate) name: String,
    pub(crate) cpu: usize,
    pub(crate) state: ThreadPhase,
    pub(crate) since_ps: u64,
    pub(crate) body: Option<ThreadBody>,
    pub(crate) yielder: *const Yielder<(), ()>,
    pub(crate) ended: Arc<EndFlag>,
    pub(crate) joiners: Vec<u32>,
    /// Number of locks held or waited for: above 0 the thread is not preempted.
    pub(crate) locks: u32,
    /// True if the thread may wake on a CPU other than the one on which it slept.
    pub(crate) roams: bool,
    pub(crate) in_line_queue: bool,
    /// Run time in picoseconds, as fair scheduling counts it.
    pub(crate) ran_ps: u64,
    pub(crate) spin: SpinState,
}

#[derive(Debug, Default)]
pub(crate) struct SpinState {
    /// True while the thread evaluates the condition of a `spin_until`. The cache lines that the
    /// thread then reads are recorded.
    pub(crate) recording: bool,
    /// True if a recorded cache line has changed since the last evaluation of the condition began.
    pub(crate) dirty: bool,
    pub(crate) read_clock: bool,
    /// Cache lines that the condition of `spin_until` has read. A write to such a line wakes the
    /// thread. Each line is identified by the number of its watch list (`LineState::watch`).
    pub(crate) watching: Vec<u32>,
}

impl ThreadTable {
    pub(crate) fn thread(&self, thread: u32) -> &ThreadState {
        self.threads[thread as usize].as_ref().expect("the thread has not ended")
    }

    pub(crate) fn thread_mut(&mut self, thread: u32) -> &mut ThreadState {
        self.threads[thread as usize].as_mut().expect("the thread has not ended")
    }

    /// Returns the name of a thread, or "nobody" if it has ended.
    pub(crate) fn name(&self, thread: u32) -> &str {
        match self.threads.get(thread as usize) {
            Some(Some(thread)) => thread.name.as_str(),
            _ => "nobody",
        }
    }
}

/// Flag that is set when a thread has ended, shared with the handles that join the thread.
#[derive(Debug, Default)]
pub(crate) struct EndFlag(AtomicBool);

impl EndFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

pub(crate) struct ThreadTable {
    pub(crate) threads: Vec<Option<ThreadState>>,
    pub(crate) live: u32,
    /// CPU for the next thread that is started without a chosen CPU.
    pub(crate) next_cpu: usize,
}
