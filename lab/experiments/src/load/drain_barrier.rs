//! `DrainBarrier`: keeps every thread of a run serving its queues until no thread has I/O.
//!
//! Where a drive has fewer hardware queues than there are threads, as on an NBD server with one
//! connection, the I/O of one thread may wait in the queue of another, which alone serves it. So no
//! thread closes its channel before the I/O of all threads has completed. Used by jobs, clients and
//! programs on this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_block::{Channel, Error};
use millrace_machine::{Machine, Native};
use millrace_runtime::IoContext;

/// First sleep of a thread that has no I/O of its own, and its longest: each is twice as long as
/// the one before, so that thousands of threads that wait leave the others their CPUs.
const LOOK_NS: u64 = 5_000_000;
const LOOK_MAX_NS: u64 = 80_000_000;

/// Counts the threads of a run that may still have I/O.
pub(crate) struct DrainBarrier {
    at_work: AtomicUsize,
}

/// Membership of one thread, which counts until `linger`, or until the value is dropped.
pub(crate) struct DrainMember<'a> {
    barrier: &'a DrainBarrier,
    is_at_work: bool,
}

impl DrainBarrier {
    /// A barrier of `threads` threads, each of which calls `member` once.
    pub(crate) fn new(threads: usize) -> DrainBarrier {
        DrainBarrier { at_work: AtomicUsize::new(threads) }
    }

    /// Membership of the calling thread.
    pub(crate) fn member(&self) -> DrainMember<'_> {
        DrainMember { barrier: self, is_at_work: true }
    }
}

impl DrainMember<'_> {
    fn leave(&mut self) {
        if std::mem::take(&mut self.is_at_work) {
            // Relaxed: it orders nothing; whoever looks too early looks again.
            self.barrier.at_work.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Serves the I/O that other threads put into this thread's queues until no thread has any.
    /// The calling thread must have none in flight.
    ///
    /// # Errors
    /// `System` if the ring itself fails.
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

/// Serves the I/O that other threads put into this thread's queues until `until_ns`, a time of the
/// layer's clock, or until `goes_on` returns false. `goes_on` is called every few milliseconds, and
/// less often after a while.
///
/// # Errors
/// `System` if the ring itself fails.
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
