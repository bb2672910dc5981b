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
pub(crate) const NO_THREAD: u32 = u32::MAX;

/// What a simulated thread runs.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
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
pub(crate) struct ThreadState {
    pub(crate) name: String,
    pub(crate) cpu: usize,
    pub(crate) state: State,
    /// Since when it spins.
    pub(crate) since_ps: u64,
    /// Until it has run for the first time.
    pub(crate) body: Option<Body>,
    pub(crate) yielder: *const Yielder<(), ()>,
    pub(crate) ended: Arc<Ended>,
    pub(crate) joiners: Vec<u32>,
    /// Locks held or waited for: above 0 the CPU is not taken away.
    pub(crate) locks: u32,
    /// It may wake on another CPU than it slept on.
    pub(crate) roams: bool,
    /// It waits for a cache line, or has just been given one: interrupts of its CPU come after.
    pub(crate) in_line_queue: bool,
    /// How long it has run, as the scheduler counts.
    pub(crate) ran_ps: u64,
    pub(crate) spin: SpinState,
}

/// What a thread in `spin_until` looks at.
#[derive(Debug, Default)]
pub(crate) struct SpinState {
    /// The thread evaluates its condition at this moment.
    pub(crate) recording: bool,
    /// Something that it looked at was written since the evaluation began.
    pub(crate) dirty: bool,
    /// The condition asked for the time.
    pub(crate) read_clock: bool,
    /// Lists that it stands in.
    pub(crate) watching: Vec<u32>,
}

impl Pool {
    pub(crate) fn thread(&self, thread: u32) -> &ThreadState {
        self.threads[thread as usize].as_ref().expect("threads are named while they live")
    }

    pub(crate) fn thread_mut(&mut self, thread: u32) -> &mut ThreadState {
        self.threads[thread as usize].as_mut().expect("threads are named while they live")
    }

    /// The name of a thread that may have ended.
    pub(crate) fn name(&self, thread: u32) -> &str {
        match self.threads.get(thread as usize) {
            Some(Some(thread)) => thread.name.as_str(),
            _ => "nobody",
        }
    }
}

/// How a thread ended, for those that join it.
#[derive(Debug, Default)]
pub(crate) struct Ended(AtomicBool);

impl Ended {
    /// The thread returned from its body.
    pub(crate) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// All threads.
pub(crate) struct Pool {
    pub(crate) threads: Vec<Option<ThreadState>>,
    /// How many have not ended.
    pub(crate) live: u32,
    /// Where the next one goes that has no wish.
    pub(crate) next_cpu: usize,
}
