//! `Coalescing`: a host adapter that interrupts once for many completions of all its drives.
//!
//! As isci, 4.4, sets Intel's SCU: `isci_host_completion_routine` writes, each time it has taken
//! what is done, that the next interrupt comes once as many commands are done as are still in
//! flight, or after a time that doubles with each doubling of these: code 9 (`ISCI_COALESCE_BASE`)
//! and the logarithm. The table beside `sci_controller_set_interrupt_coalescence` has the times:
//! code 7 is 853.3 to 1,280 ns, each next one twice that; here their mean. The time runs from the
//! first completion on. As many as are in flight are done before that only above 230,000 a second,
//! more than four drives of 50,000 do: so the number is not modelled.
//!
//! Shared by the queues of all drives behind the adapter, each of which has a `Gate`; called by
//! host_adapter.rs. It is the adapter's own knowledge, so that nobody pays for reading it: a plain
//! mutex, never held over a call to the machine. Not modelled: one tasklet on one CPU takes the
//! completions of all drives and sends each on to the CPU that submitted; here each queue's server
//! finds its own, all at the time of the interrupt.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_block::{CompletionBatch, DriverQueue};
use millrace_machine::Machine;

/// How long a completion waits for others at most with one command in flight: code 9, the mean of
/// 3,413 and 5,120 ns.
const WAIT_NS: u64 = 4_267;

/// An adapter's interrupts.
#[derive(Debug)]
pub(super) struct Coalescing(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Commands in flight at all drives.
    active: u32,
    /// When the first is done that no interrupt has told of; `u64::MAX` if none is known.
    first_ns: u64,
    /// How long it waits for others.
    wait_ns: u64,
    /// Interrupts so far.
    round: u64,
}

impl State {
    fn due_ns(&self) -> u64 {
        self.first_ns.saturating_add(self.wait_ns)
    }
}

impl Coalescing {
    /// One with nothing in flight.
    pub(super) fn new() -> Coalescing {
        Coalescing(Mutex::new(State { active: 0, first_ns: u64::MAX, wait_ns: 0, round: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command goes to a drive.
    pub(super) fn begin(&self) {
        self.state().active += 1;
    }

    /// Whether an interrupt has come since a queue was last let through, or comes now; if not, when
    /// it comes.
    fn admits(&self, seen: &mut u64, now_ns: u64) -> Result<(), u64> {
        let mut state = self.state();
        if *seen == state.round && now_ns < state.due_ns() {
            return Err(state.due_ns());
        }
        if *seen == state.round {
            state.round += 1;
            state.first_ns = u64::MAX;
        }
        *seen = state.round;
        Ok(())
    }

    /// A queue took so many, and its drive is done with its next at a time, if that has any; gives
    /// the time of the next interrupt.
    fn took(&self, count: u32, next_ns: Option<u64>) -> u64 {
        let mut state = self.state();
        state.active = state.active.saturating_sub(count);
        if count > 0 {
            state.wait_ns =
                state.active.checked_ilog2().map_or(0, |doublings| WAIT_NS << doublings);
        }
        state.first_ns = state.first_ns.min(next_ns.unwrap_or(u64::MAX));
        state.due_ns()
    }
}

/// One queue's view of its adapter's interrupts.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The last interrupt that let it through.
    seen: u64,
    /// The adapter has been told when this queue's next command is done.
    told: bool,
}

impl Gate {
    /// Polls the drive's queue if an interrupt came, else asks to be polled when it comes.
    pub(super) fn poll<M: Machine>(
        &mut self,
        inner: &mut dyn DriverQueue<M>,
        adapter: &Coalescing,
        batch: &mut CompletionBatch,
    ) {
        if self.told
            && let Err(due_ns) = adapter.admits(&mut self.seen, M::now())
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
        let due_ns = adapter.took(count, next_ns.filter(|_| self.told));
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
        let (mut a, mut b) = (0, 0);
        (0..9).for_each(|_| adapter.begin());
        assert_eq!(adapter.took(0, Some(1_000)), 1_000, "the first interrupt waits for nothing");
        assert_eq!(adapter.admits(&mut a, 999), Err(1_000));
        assert_eq!(adapter.admits(&mut a, 1_000), Ok(()));
        let due_ns = 2_000 + 8 * WAIT_NS;
        assert_eq!(adapter.took(1, Some(2_000)), due_ns, "eight are left");
        assert_eq!(adapter.admits(&mut b, 1_500), Ok(()), "the interrupt was for all queues");
        assert_eq!(adapter.took(1, Some(3_000)), 2_000 + 4 * WAIT_NS, "seven are left");
        assert_eq!(adapter.admits(&mut b, 3_000), Err(2_000 + 4 * WAIT_NS));
        assert_eq!(adapter.admits(&mut b, 2_000 + 4 * WAIT_NS), Ok(()));
        assert_eq!(adapter.took(7, None), u64::MAX, "nothing is left");
    }
}
