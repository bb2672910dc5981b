//! `Coalescing`: a host adapter that interrupts once for many completions of all its drives.
//!
//! So isci, 4.4, sets Intel's SCU: `isci_host_completion_routine` writes, each time it has taken
//! what is done, that the next interrupt comes once as many commands are done as are still in
//! flight, or after a time that doubles with each doubling of these: code 9 (`ISCI_COALESCE_BASE`)
//! and the logarithm. The table beside `sci_controller_set_interrupt_coalescence` has the times:
//! code 7 is 853.3 to 1,280 ns, each next one twice that; the model has their mean. The time runs
//! from the first completion on. As many as are in flight are done before that only above 230,000 a
//! second, more than four drives of 50,000 do: so the number is not modelled.
//!
//! Shared by the queues of all drives behind the adapter, each of which has a `QueueInterrupts`;
//! called by host_adapter.rs. It is the adapter's own knowledge, so that nobody pays for reading
//! it: a plain mutex, never held over a call to the machine. An interrupt tells of what is done by
//! its time, and of nothing later. Not modelled: one tasklet on one CPU takes the completions of
//! all drives and sends each on to the CPU that submitted; here each queue's server finds its own
//! when it looks, for which it asks at the time that the interrupt was expected at when it looked
//! last.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_block::{CompletionBatch, DriverQueue};
use millrace_machine::Machine;

/// How long a completion waits for others at most with one command in flight: code 9, the mean of
/// 3,413 and 5,120 ns.
const WAIT_NS: u64 = 4_267;

/// An adapter's interrupts.
#[derive(Debug)]
pub(super) struct Coalescing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Commands in flight at all drives.
    active: u32,
    /// When each queue's drive is done with its next command; `u64::MAX` where none is known.
    next_ns: Vec<u64>,
    /// How long the first completion waits for others.
    wait_ns: u64,
    /// The last interrupt.
    last_ns: u64,
}

impl State {
    /// When the next interrupt comes: behind the first completion that none has told of;
    /// `u64::MAX` if none is known.
    fn due_ns(&self) -> u64 {
        let untold = self.next_ns.iter().filter(|next_ns| **next_ns > self.last_ns);
        untold.min().map_or(u64::MAX, |first_ns| first_ns.saturating_add(self.wait_ns))
    }

    /// Lets the interrupts come that are due by a time, and gives the time of the one after them.
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
    /// One with nothing in flight.
    pub(super) fn new() -> Coalescing {
        Coalescing(Mutex::default())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue comes: its view of the interrupts.
    pub(super) fn gate(&self) -> QueueInterrupts {
        let mut state = self.state();
        state.next_ns.push(u64::MAX);
        QueueInterrupts { queue: state.next_ns.len() - 1, told: false }
    }

    /// A command goes to a drive.
    pub(super) fn begin(&self) {
        self.state().active += 1;
    }

    /// A command was not sent after all.
    pub(super) fn take_back(&self) {
        self.state().active -= 1;
    }

    /// Whether an interrupt has told of a queue's next completion; if not, when the next one comes.
    fn admits(&self, queue: usize, now_ns: u64) -> Result<(), u64> {
        let mut state = self.state();
        let due_ns = state.pass(now_ns);
        if state.next_ns[queue] <= state.last_ns { Ok(()) } else { Err(due_ns) }
    }

    /// A queue took so many, and its drive is done with its next at a time, if that has any; gives
    /// the time of the next interrupt.
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

/// One queue's view of its adapter's interrupts.
#[derive(Debug)]
pub(super) struct QueueInterrupts {
    /// Its number among the adapter's queues.
    queue: usize,
    /// The adapter has been told when this queue's next command is done.
    told: bool,
}

impl QueueInterrupts {
    /// Polls the drive's queue if an interrupt told of its next completion, else asks to be polled
    /// when the interrupt comes.
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
        // What a full batch has no room for is taken by the next look, without another interrupt.
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
