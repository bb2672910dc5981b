//! `CpuState`: a simulated CPU: its clock, its queue of threads, and how it spent its time.
//!
//! Plain data. Owned by the world; changed by the scheduler.

use std::collections::VecDeque;

/// A simulated CPU.
#[derive(Debug)]
pub(super) struct CpuState {
    /// The CPU's time, unless it is the one that runs now.
    pub(super) clock_ps: u64,
    /// The thread that has it.
    pub(super) current: u32,
    /// The thread that had it last.
    pub(super) last: u32,
    /// Threads that wait for it.
    pub(super) queue: VecDeque<u32>,
    pub(super) slice_end_ps: u64,
    /// Time taken by interrupts, not charged yet.
    pub(super) stolen_ps: u64,
    /// The CPU's place among those with equal times.
    pub(super) position: usize,
    pub(super) idle_ps: u64,
    pub(super) spin_ps: u64,
    pub(super) switches: u64,
    pub(super) fair: FairCpu,
}

/// What a CPU knows of its threads' run times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FairCpu {
    /// Since when the run time of its thread is not yet counted.
    pub(super) since_ps: u64,
    /// Run time of the one that had run least when it last chose.
    pub(super) least_ps: u64,
}
