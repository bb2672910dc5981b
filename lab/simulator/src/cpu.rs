//! `CpuState`: a simulated CPU: its clock, its queue of threads, and how it spent its time.
//!
//! Plain data. Owned and changed by the scheduler; a report has its times.

use std::collections::VecDeque;

use super::pool::NO_THREAD;
use super::report::CpuTimes;
use super::time::{BEGIN_PS, PS_PER_NS};

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
    /// Others want it, and only a lock has kept it from them.
    pub(super) is_overdue: bool,
    /// Time taken by interrupts, not charged yet.
    pub(super) stolen_ps: u64,
    /// The CPU's place among those with equal times.
    pub(super) position: usize,
    pub(super) idle_ps: u64,
    pub(super) spin_ps: u64,
    pub(super) switches: u64,
    pub(super) fair: FairCpu,
}

impl CpuState {
    /// An idle CPU at the beginning of time, with its place among those with equal times.
    pub(super) fn new(position: usize) -> Self {
        CpuState {
            clock_ps: BEGIN_PS,
            current: NO_THREAD,
            last: NO_THREAD,
            queue: VecDeque::new(),
            slice_end_ps: 0,
            is_overdue: false,
            stolen_ps: 0,
            position,
            idle_ps: 0,
            spin_ps: 0,
            switches: 0,
            fair: FairCpu::default(),
        }
    }

    /// What the CPU did in a simulation that ended at this time.
    pub(super) fn times(&self, end_ps: u64) -> CpuTimes {
        let rest_ps = if self.current == NO_THREAD { end_ps - self.clock_ps } else { 0 };
        let idle_ps = self.idle_ps + rest_ps;
        CpuTimes {
            busy_ns: (end_ps - BEGIN_PS).saturating_sub(idle_ps + self.spin_ps) / PS_PER_NS,
            spin_ns: self.spin_ps / PS_PER_NS,
            idle_ns: idle_ps / PS_PER_NS,
            context_switches: self.switches,
        }
    }
}

/// What a CPU knows of its threads' run times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FairCpu {
    /// Since when the run time of its thread is not yet counted.
    pub(super) since_ps: u64,
    /// Run time of the one that had run least when it last chose.
    pub(super) least_ps: u64,
}
