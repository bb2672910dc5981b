//! `CpuState`: a simulated CPU: its clock, its run queue, and its time statistics.
//!
//! Plain data. The scheduler owns and changes it; its times appear in the report.

use std::collections::VecDeque;

use crate::model::time::{BEGIN_PS, PS_PER_NS};
use crate::report::CpuTimes;
use crate::scheduler::pool::NO_THREAD;

#[derive(Debug)]
pub(crate) struct CpuState {
    /// Clock of the CPU in picoseconds. While the CPU runs, `Scheduler::now_ps` is its clock
    /// instead.
    pub(crate) clock_ps: u64,
    /// Thread that occupies the CPU, or `NO_THREAD`.
    pub(crate) current: u32,
    /// Thread that ran last on the CPU.
    pub(crate) last: u32,
    /// Run queue: ready threads that wait for the CPU.
    pub(crate) queue: VecDeque<u32>,
    pub(crate) slice_end_ps: u64,
    /// True if the time slice is over and other threads wait, but the current thread holds a lock.
    pub(crate) is_overdue: bool,
    /// Time of interrupts that the CPU's clock does not include yet, in picoseconds.
    pub(crate) stolen_ps: u64,
    /// Rank of the CPU among CPUs whose clocks are equal.
    pub(crate) position: usize,
    pub(crate) idle_ps: u64,
    pub(crate) spin_ps: u64,
    pub(crate) switches: u64,
    pub(crate) fair: FairCpu,
}

impl CpuState {
    /// Creates an idle CPU whose clock is at the start of the simulation.
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

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FairCpu {
    /// Time up to which the run time of the current thread has been counted.
    pub(crate) since_ps: u64,
    /// Lower bound of the run times of ready threads, like `min_vruntime` of CFS. A thread that
    /// slept may be below it only by the model's credit.
    pub(crate) least_ps: u64,
}
