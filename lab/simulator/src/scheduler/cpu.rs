//! `CpuState`: a simulated CPU: its clock, its queue of threads, and how it spent its time.
//!
//! Plain data. Owned and changed by the scheduler; a report has its times.

use std::collections::VecDeque;

use crate::model::time::{BEGIN_PS, PS_PER_NS};
use crate::report::CpuTimes;
use crate::scheduler::pool::NO_THREAD;

/// A simulated CPU.
#[derive(Debug)]
pub(crate) struct CpuState {
    /// The CPU's time, unless it is the one that runs now.
    pub(crate) clock_ps: u64,
    /// The thread that has it.
    pub(crate) current: u32,
    /// The thread that had it last.
    pub(crate) last: u32,
    /// Threads that wait for it.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) slice_end_ps: u64,
    /// Others want it, and only a lock has kept it from them.
    pub(crate) is_overdue: bool,
    /// Time taken by interrupts, not charged yet.
    pub(crate) stolen_ps: u64,
    /// The CPU's place among those with equal times.
    pub(crate) position: usize,
    pub(crate) idle_ps: u64,
    pub(crate) spin_ps: u64,
    pub(crate) switches: u64,
    pub(crate) fair: FairCpu,
}

impl CpuState {
    /// An idle CPU at the beginning of time, with its place among those with equal times.
    pub(crate) fn new(position: usize) -> Self {
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
    pub(crate) fn times(&self, end_ps: u64) -> CpuTimes {
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
pub(crate) struct FairCpu {
    /// Since when the run time of its thread is not yet counted.
    pub(crate) since_ps: u64,
    /// Run time of the one that had run least when it last chose.
    pub(crate) least_ps: u64,
}
