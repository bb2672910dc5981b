//! What a simulation was like: times, locks, links; or why it could not end.
//!
//! Plain data, returned by `Simulation::run`. Times are virtual nanoseconds as `Machine::now` gives
//! them, which begins at [`BEGIN_NS`].

use core::fmt;
use std::string::String;
use std::vec::Vec;

use crate::memory::fabric::LinkUse;
use crate::model::time::{BEGIN_PS, PS_PER_NS};
use millrace_machine::LockRow;

/// What the clock shows when a simulation begins.
pub const BEGIN_NS: u64 = BEGIN_PS / PS_PER_NS;

/// What one CPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// Time in which a thread made progress.
    pub busy_ns: u64,
    /// Time spent spinning, on locks and in `spin_until`.
    pub spin_ns: u64,
    /// Time in which no thread wanted it, and in which it woke up.
    pub idle_ns: u64,
    /// Changes from one thread to another.
    pub context_switches: u64,
}

/// What a simulation was like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Virtual time when the last thread ended.
    pub end_ns: u64,
    /// Simulated accesses to lines, lock hand-overs, sleeps and wake-ups.
    pub events: u64,
    /// Locks, in order of their names.
    pub locks: Vec<LockRow>,
    /// CPUs, in order of their numbers.
    pub cpus: Vec<CpuTimes>,
    /// Links that carried something.
    pub links: Vec<LinkUse>,
}

impl Report {
    /// Virtual time that the simulation took.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.end_ns - BEGIN_NS
    }
}

/// A thread of a simulation that could not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedThread {
    /// Its name.
    pub name: String,
    /// Its CPU.
    pub cpu: u32,
    /// What it waits for, in words.
    pub waits_for: String,
}

/// Why a simulation could not end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimError {
    /// Every thread waits, and nothing is to come.
    Deadlock(Vec<BlockedThread>),
    /// The time limit, in nanoseconds of the clock, was reached.
    TimeLimit(u64, Vec<BlockedThread>),
    /// A thread panicked. Only where panics unwind: elsewhere they end the process.
    Panic {
        /// Its name.
        thread: String,
        /// Its virtual time.
        at_ns: u64,
        /// What it said.
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
                write!(f, "not over at its time limit of {limit_ns} ns")?;
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
