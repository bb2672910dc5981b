//! Fair scheduling by run time, with wake-up preemption, for models that set `fairness`.
//!
//! Called by the scheduler. A CPU picks the thread that has run least. A woken thread preempts the
//! current thread if the current thread has run longer by more than the model's granularity. A
//! thread that sleeps falls behind the others in run time, but by no more than the model's credit.
//! A thread that holds or waits for a lock is preempted only after it has released the lock. Not
//! modelled: weights, groups, migration. Kernel counterpart: `check_preempt_wakeup` and
//! `place_entity` of CFS.

use crate::model::prices::FairPrices;
use crate::scheduler::Scheduler;

impl Scheduler {
    pub(crate) fn count_run_time(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let ran_ps = state.clock_ps.saturating_sub(state.fair.since_ps);
        state.fair.since_ps = state.clock_ps;
        if let Some(Some(thread)) = self.pool.threads.get_mut(state.current as usize) {
            thread.ran_ps += ran_ps;
        }
    }

    pub(crate) fn take_next(&mut self, cpu: usize) -> Option<u32> {
        if self.prices.fairness.is_none() {
            return self.cpus[cpu].queue.pop_front();
        }
        let queue = &self.cpus[cpu].queue;
        let ran_ps = |place: &usize| self.pool.thread(queue[*place]).ran_ps;
        let place = (0..queue.len()).min_by_key(ran_ps)?;
        let next = queue[place];
        let least_ps = self.pool.thread(next).ran_ps;
        let state = &mut self.cpus[cpu];
        state.queue.remove(place);
        state.fair.least_ps = state.fair.least_ps.max(least_ps);
        Some(next)
    }

    /// Raises the run time of a woken thread, if necessary, to the CPU's minimum run time less
    /// `FairPrices::credit`. Limits the advantage of a thread that has slept for long.
    pub(crate) fn limit_credit(&mut self, thread: u32) {
        let Some(FairPrices { credit, .. }) = self.prices.fairness else { return };
        let cpu = self.pool.thread(thread).cpu;
        let least_ps = self.cpus[cpu].fair.least_ps.saturating_sub(credit);
        let state = self.pool.thread_mut(thread);
        state.ran_ps = state.ran_ps.max(least_ps);
    }

    /// Lets the woken `thread` preempt the current thread of its CPU. Does so only if the current
    /// thread has run longer than `thread` by more than the model's granularity.
    pub(crate) fn preempt(&mut self, thread: u32, time_ps: u64) {
        let Some(FairPrices { granularity, .. }) = self.prices.fairness else { return };
        let cpu = self.pool.thread(thread).cpu;
        let (own, state) = (cpu == self.cpu, &self.cpus[cpu]);
        let now_ps = if own { self.now_ps } else { state.clock_ps };
        let running = self.pool.thread(state.current);
        let ran_ps = running.ran_ps + now_ps.saturating_sub(state.fair.since_ps);
        if ran_ps <= self.pool.thread(thread).ran_ps.saturating_add(granularity) {
            return;
        }
        let runs_now = own && state.current == self.thread;
        let state = &mut self.cpus[cpu];
        state.slice_end_ps = state.slice_end_ps.min(time_ps);
        if runs_now {
            self.end_turn(time_ps);
        }
    }
}
