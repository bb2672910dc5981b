//! `CpuState`: a simulated CPU: its clock, its run queue, and its time statistics.
//!
//! Plain data, owned and changed by the scheduler; the times appear in the report.

use std::collections::VecDeque;

use crate::model::time::{BEGIN_PS, PS_PER_NS};
use crate::report::CpuTimes;
use crate::scheduler::pool::NO_THREAD;

#[derive(Debug)]
pub(crate) struct CpuState {
    /// Clock in picoseconds. Outdated for the running CPU, whose time is in `Scheduler::now_ps`.
    pub(crate) clock_ps: u64,
    /// Thread that occupies the CPU, or `NO_THREAD`.
    pub(crate) current: u32,
    pub(crate) last: u32,
    pub(crate) queue: VecDeque<u32>,
    pub(crate) slice_end_ps: u64,
    /// True if the current thread has used up its time slice and other threads wait for the CPU,
    /// but the thread is not preempted yet, because it holds a lock.
    pub(crate) is_overdue: bool,
    /// Time spent on interrupts that is not yet part of `clock_ps`, in picoseconds.
    pub(crate) stolen_ps: u64,
    /// Position in `Clocks::tree`. Of CPUs whose clocks are equal, the lowest position runs first.
    pub(crate) position: usize,
    pub(crate) idle_ps: u64,
    pub(crate) spin_ps: u64,
    pub(crate) switches: u64,
    pub(crate) fair: FairCpu,
}

impl CpuState {
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
    /// Minimum run time of ready threads, which never decreases, like `min_vruntime` of CFS.
    pub(crate) least_ps: u64,
}
