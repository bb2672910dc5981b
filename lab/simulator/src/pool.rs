//! `Pool`: the threads of a simulation, and what each of them does.
//!
//! Plain data. Owned by the scheduler; changed by it and by whatever a thread waits for.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::boxed::Box;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

use corosensei::Yielder;

/// No thread.
pub(super) const NO_THREAD: u32 = u32::MAX;

/// What a simulated thread runs.
pub(super) type Body = Box<dyn FnOnce() + Send>;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The thread has its CPU.
    Running,
    /// The thread waits for its CPU.
    Ready,
    /// The thread sleeps in a parker.
    Parked,
    /// The thread waits for the end of another.
    Joining(u32),
    /// The thread spins on this lock of the table.
    Locking(u32),
    /// The thread spins in `spin_until`.
    Spinning,
    /// The thread waits for its turn to have a cache line.
    Stalled,
}

/// A simulated thread.
pub(super) struct ThreadState {
    pub(super) name: String,
    pub(super) cpu: usize,
    pub(super) state: State,
    /// Since when it spins.
    pub(super) since_ps: u64,
    /// Until it has run for the first time.
    pub(super) body: Option<Body>,
    pub(super) yielder: *const Yielder<(), ()>,
    pub(super) ended: Arc<Ended>,
    pub(super) joiners: Vec<u32>,
    /// Locks held or waited for: above 0 the CPU is not taken away.
    pub(super) locks: u32,
    /// It may wake on another CPU than it slept on.
    pub(super) roams: bool,
    /// It waits for a cache line, or has just been given one: interrupts of its CPU come after.
    pub(super) in_line_queue: bool,
    /// How long it has run, as the scheduler counts.
    pub(super) ran_ps: u64,
    pub(super) spin: SpinState,
}

/// What a thread in `spin_until` looks at.
#[derive(Debug, Default)]
pub(super) struct SpinState {
    /// The thread evaluates its condition at this moment.
    pub(super) recording: bool,
    /// Something that it looked at was written since the evaluation began.
    pub(super) dirty: bool,
    /// The condition asked for the time.
    pub(super) read_clock: bool,
    /// Lists that it stands in.
    pub(super) watching: Vec<u32>,
}

impl Pool {
    pub(super) fn thread(&self, thread: u32) -> &ThreadState {
        self.threads[thread as usize].as_ref().expect("threads are named while they live")
    }

    pub(super) fn thread_mut(&mut self, thread: u32) -> &mut ThreadState {
        self.threads[thread as usize].as_mut().expect("threads are named while they live")
    }

    /// The name of a thread that may have ended.
    pub(super) fn name(&self, thread: u32) -> &str {
        match self.threads.get(thread as usize) {
            Some(Some(thread)) => thread.name.as_str(),
            _ => "nobody",
        }
    }
}

/// How a thread ended, for those that join it.
#[derive(Debug, Default)]
pub(super) struct Ended(AtomicBool);

impl Ended {
    /// The thread returned from its body.
    pub(super) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// All threads.
pub(super) struct Pool {
    pub(super) threads: Vec<Option<ThreadState>>,
    /// How many have not ended.
    pub(super) live: u32,
    /// Where the next one goes that has no wish.
    pub(super) next_cpu: usize,
}
