//! Results of a simulation (times, locks, links), or the reason why it could not end.
//!
//! Plain data, returned by `Simulation::run`. Times are virtual nanoseconds as `Machine::now` gives
//! them, and begin at [`BEGIN_NS`].

use core::fmt;
use std::string::String;
use std::vec::Vec;

use crate::memory::fabric::LinkUse;
use crate::model::time::{BEGIN_PS, PS_PER_NS};
use millrace_machine::LockRow;

/// Virtual time at the start of every simulation, in nanoseconds.
pub const BEGIN_NS: u64 = BEGIN_PS / PS_PER_NS;

/// Time that one CPU spent in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// Time in which a thread made progress, in nanoseconds.
    pub busy_ns: u64,
    /// Time spent spinning, on locks and in `spin_until`, in nanoseconds.
    pub spin_ns: u64,
    /// Time without a thread to run, including wake-up latency, in nanoseconds.
    pub idle_ns: u64,
    /// Number of switches from one thread to another.
    pub context_switches: u64,
}

/// Results of a simulation that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Virtual time at which the last thread ended, in nanoseconds.
    pub end_ns: u64,
    /// Number of events: cache-line accesses, lock hand-overs, sleeps, wake-ups and interrupts.
    pub events: u64,
    /// Statistics of locks, in order of their names.
    pub locks: Vec<LockRow>,
    /// Times of CPUs, in order of their numbers.
    pub cpus: Vec<CpuTimes>,
    /// Traffic of the links between sockets or boards. Links without traffic are left out.
    pub links: Vec<LinkUse>,
}

impl Report {
    /// Returns the virtual duration of the simulation, in nanoseconds.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.end_ns - BEGIN_NS
    }
}

/// A thread that had not ended when its simulation had to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedThread {
    /// Name of the thread.
    pub name: String,
    /// CPU of the thread.
    pub cpu: u32,
    /// Description of what the thread waits for.
    pub waits_for: String,
}

/// Reason why a simulation could not end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimError {
    /// Every thread waits, and no event is left that could wake one.
    Deadlock(Vec<BlockedThread>),
    /// The virtual time reached the limit. The first value is this limit in nanoseconds.
    TimeLimit(u64, Vec<BlockedThread>),
    /// A thread panicked. Only builds in which panics unwind report this; in others a panic ends
    /// the process.
    Panic {
        /// Name of the thread.
        thread: String,
        /// Virtual time of the panic, in nanoseconds.
        at_ns: u64,
        /// Message of the panic.
        message: String,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = match self {
            SimError::Deadlock(threads) => {
                write!(f, "deadlock: every thread waits")?;
                threads
            }
            SimError::TimeLimit(limit_ns, threads) => {
                write!(f, "did not end within its time limit of {limit_ns} ns")?;
                threads
            }
            SimError::Panic { thread, at_ns, message } => {
                return write!(f, "thread {thread} panicked at {at_ns} ns: {message}");
            }
        };
        for BlockedThread { name, cpu, waits_for } in threads {
            write!(f, "; {name} on CPU {cpu} waits for {waits_for}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SimError {}
