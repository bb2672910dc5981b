//! `Coalescing`: a host adapter that raises one interrupt for many completions of all its drives.
//!
//! Models isci, the driver of Intel's SCU, in Linux 4.4. After each interrupt,
//! `isci_host_completion_routine` sets two limits for the next interrupt:
//!
//! - A number of completions, equal to the number of commands still in flight. This limit is not
//!   modelled, because four drives of 50,000 IOPS do not reach it.
//! - A time after the first completion, given as a code: 9 (`ISCI_COALESCE_BASE`) plus the binary
//!   logarithm of the number of commands in flight. The table beside
//!   `sci_controller_set_interrupt_coalescence` has a range for each code. Code 7 is 853.3 to 1,280
//!   ns, and each further code doubles the range. The model uses the mean of the range.
//!
//! The queues of all drives behind the adapter share a `Coalescing`; each queue has a
//! `QueueInterrupts`. host_adapter.rs calls this file. The state stands for hardware, so access
//! must take no virtual time: the state is behind a plain mutex, which is never held across a call
//! to the machine. In isci, one tasklet on one CPU takes the completions of all drives and forwards
//! each to the submitting CPU. Here, the thread that serves a queue finds the queue's completions
//! when the thread polls.

use std::sync::{Mutex, MutexGuard};

use millrace_block::{CompletionBatch, DriverQueue};
use millrace_machine::Machine;

use millrace_machine::lock_unpoisoned;

/// Maximum time from a completion to its interrupt if one command is in flight, in nanoseconds. The
/// isci driver's table has a range of 3,413 to 5,120 ns for this case (code 9). The constant is the
/// mean of this range.
const WAIT_NS: u64 = 4_267;

#[derive(Debug)]
pub(super) struct Coalescing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    active: u32,
    /// For each queue, the time of the drive's next completion; `u64::MAX` if unknown.
    next_ns: Vec<u64>,
    wait_ns: u64,
    last_ns: u64,
}

impl State {
    /// Returns the time of the next interrupt, `wait_ns` after the first unreported completion;
    /// `u64::MAX` if no completion is known.
    fn due_ns(&self) -> u64 {
        let untold = self.next_ns.iter().filter(|next_ns| **next_ns > self.last_ns);
        untold.min().map_or(u64::MAX, |first_ns| first_ns.saturating_add(self.wait_ns))
    }

    fn pass(&mut self, now_ns: u64) -> u64 {
        loop {
            match self.due_ns() {
                due_ns if due_ns > now_ns => return due_ns,
                due_ns => self.last_ns = due_ns,
            }
        }
    }
}

impl Coalescing {
    pub(super) fn new() -> Coalescing {
        Coalescing(Mutex::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock_unpoisoned(&self.0)
    }

    pub(super) fn gate(&self) -> QueueInterrupts {
        let mut state = self.state();
        state.next_ns.push(u64::MAX);
        QueueInterrupts { queue: state.next_ns.len() - 1, told: false }
    }

    pub(super) fn begin(&self) {
        self.state().active += 1;
    }

    pub(super) fn take_back(&self) {
        self.state().active -= 1;
    }

    /// Returns `Ok` if an interrupt has already reported the queue's next completion, otherwise the
    /// time of the next interrupt.
    fn admits(&self, queue: usize, now_ns: u64) -> Result<(), u64> {
        let mut state = self.state();
        let due_ns = state.pass(now_ns);
        if state.next_ns[queue] <= state.last_ns { Ok(()) } else { Err(due_ns) }
    }

    /// Records that a poll took `count` completions from a queue, and that the next completion of
    /// the queue's drive is due at `next_ns` (`None` if no command is in flight). Returns the time
    /// of the next interrupt.
    fn took(&self, queue: usize, count: u32, next_ns: Option<u64>) -> u64 {
        let mut state = self.state();
        state.active = state.active.saturating_sub(count);
        if count > 0 {
            state.wait_ns =
                state.active.checked_ilog2().map_or(0, |doublings| WAIT_NS << doublings);
        }
        state.next_ns[queue] = next_ns.unwrap_or(u64::MAX);
        state.due_ns()
    }
}

#[derive(Debug)]
pub(super) struct QueueInterrupts {
    queue: usize,
    told: bool,
}

impl QueueInterrupts {
    /// Polls the drive's queue. If no interrupt has reported the queue's next completion yet, only
    /// requests a poll at the time of the next interrupt.
    pub(super) fn poll<M: Machine>(
        &mut self,
        inner: &mut dyn DriverQueue<M>,
        adapter: &Coalescing,
        batch: &mut CompletionBatch,
    ) {
        if self.told
            && let Err(due_ns) = adapter.admits(self.queue, M::now())
        {
            return batch.wake_at(due_ns);
        }
        let (before, others_ns) = (batch.entries().len(), batch.take_wake());
        inner.poll(batch);
        let next_ns = batch.take_wake();
        // A full `batch` may leave completions of this interrupt behind. The next poll takes them
        // without another interrupt.
        let rest_ns = next_ns.filter(|_| batch.is_full());
        self.told = next_ns.is_some() && rest_ns.is_none();
        let count = (batch.entries().len() - before) as u32;
        let due_ns = adapter.took(self.queue, count, next_ns.filter(|_| self.told));
        let own_ns = rest_ns.or(next_ns.map(|_| due_ns));
        own_ns.into_iter().chain(others_ns).for_each(|ns| batch.wake_at(ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_wait_for_others_for_longer_the_more_is_in_flight() {
        let adapter = Coalescing::new();
        let (a, b) = (adapter.gate().queue, adapter.gate().queue);
        (0..9).for_each(|_| adapter.begin());
        assert_eq!(adapter.took(a, 0, Some(1_000)), 1_000, "the first interrupt waits for nothing");
        assert_eq!(adapter.took(b, 0, Some(1_000)), 1_000);
        assert_eq!(adapter.admits(a, 999), Err(1_000));
        assert_eq!(adapter.admits(a, 1_000), Ok(()));
        let due_ns = 2_000 + 8 * WAIT_NS;
        assert_eq!(adapter.took(a, 1, Some(2_000)), due_ns, "eight are left");
        assert_eq!(adapter.admits(b, 1_500), Ok(()), "the interrupt told of both");
        assert_eq!(adapter.took(b, 1, Some(3_000)), 2_000 + 4 * WAIT_NS, "seven are left");
        assert_eq!(adapter.admits(b, 3_000), Err(2_000 + 4 * WAIT_NS));
        assert_eq!(adapter.admits(b, 2_000 + 4 * WAIT_NS), Ok(()));
        assert_eq!(adapter.took(a, 3, None), u64::MAX, "what b has is told");
        assert_eq!(adapter.took(b, 4, None), u64::MAX, "nothing is left");
    }

    #[test]
    fn an_interrupt_tells_of_nothing_that_is_done_later() {
        let adapter = Coalescing::new();
        let (a, b) = (adapter.gate().queue, adapter.gate().queue);
        (0..3).for_each(|_| adapter.begin());
        adapter.take_back();
        adapter.took(a, 0, Some(50_000));
        assert_eq!(adapter.took(b, 0, Some(100_000)), 50_000);
        assert_eq!(adapter.admits(a, 50_000), Ok(()));
        assert_eq!(adapter.took(a, 1, None), 100_000 + WAIT_NS, "what b announced is kept");
        assert_eq!(adapter.admits(b, 101_000), Err(100_000 + WAIT_NS));
        assert_eq!(adapter.admits(b, 100_000 + WAIT_NS), Ok(()));
    }
}
