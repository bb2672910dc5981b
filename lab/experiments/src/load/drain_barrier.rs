//! `DrainBarrier`: makes every thread of a run serve its queues until no thread has I/O in flight.
//!
//! If a drive has fewer hardware queues than there are threads, such as an NBD server with one
//! connection, the I/O of one thread may wait in a queue that only another thread serves. So no
//! thread may close its channel before the I/O of all threads has completed. Jobs, clients and
//! programs on this machine use the barrier.

use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_block::{Channel, Error};
use millrace_machine::{Machine, Native};
use millrace_runtime::IoContext;

/// First sleep of a thread that waits at the barrier, in nanoseconds. Each further sleep is twice
/// as long, up to [`LOOK_MAX_NS`]. So thousands of waiting threads do not take the CPUs from busy
/// threads.
const LOOK_NS: u64 = 5_000_000;
const LOOK_MAX_NS: u64 = 80_000_000;

pub(crate) struct DrainBarrier {
    at_work: AtomicUsize,
}

/// Membership of one thread in a barrier. The barrier counts the thread as busy until `linger` is
/// called or the membership is dropped.
pub(crate) struct DrainMember<'a> {
    barrier: &'a DrainBarrier,
    is_at_work: bool,
}

impl DrainBarrier {
    pub(crate) fn new(threads: usize) -> DrainBarrier {
        DrainBarrier { at_work: AtomicUsize::new(threads) }
    }

    pub(crate) fn member(&self) -> DrainMember<'_> {
        DrainMember { barrier: self, is_at_work: true }
    }
}

impl DrainMember<'_> {
    fn leave(&mut self) {
        if std::mem::take(&mut self.is_at_work) {
            // Relaxed: `at_work`, the number of busy threads, publishes no other data. A thread
            // that reads an old value reads the counter again soon.
            self.barrier.at_work.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Serves I/O that other threads put into this thread's queues, until no thread has I/O in
    /// flight. The calling thread's own I/O must have completed.
    pub(crate) fn linger(
        mut self,
        context: &mut IoContext,
        channel: &mut Channel<Native>,
    ) -> Result<(), Error> {
        self.leave();
        let goes_on = || self.barrier.at_work.load(Ordering::Relaxed) > 0;
        serve_while(context, channel, u64::MAX, goes_on)
    }
}

impl Drop for DrainMember<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Serves I/O that other threads put into this thread's queues, until the time `until_ns` (by
/// `Native::now`) or until `goes_on`, called every 5 to 80 ms, returns false.
pub(crate) fn serve_while(
    context: &mut IoContext,
    channel: &mut Channel<Native>,
    until_ns: u64,
    goes_on: impl Fn() -> bool,
) -> Result<(), Error> {
    let mut sleep_ns = LOOK_NS;
    while goes_on() && Native::now() < until_ns {
        let look_ns = (Native::now() + sleep_ns).min(until_ns);
        sleep_ns = (2 * sleep_ns).min(LOOK_MAX_NS);
        let due_ns = channel.sleep_until().map_or(look_ns, |due_ns| due_ns.min(look_ns));
        context.turn(Some(due_ns), || channel.has_work())?;
        channel.poll(|_| ());
        channel.tick();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_ends_early_or_fails_keeps_nobody() {
        let barrier = DrainBarrier::new(3);
        let at_work = || barrier.at_work.load(Ordering::Relaxed);
        let mut first = barrier.member();
        first.leave();
        first.leave();
        drop(first);
        assert_eq!(at_work(), 2);
        drop(barrier.member());
        drop(barrier.member());
        assert_eq!(at_work(), 0);
    }
}
