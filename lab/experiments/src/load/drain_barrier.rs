//! `Together`: threads of a run that end together.
//!
//! Where a drive has fewer hardware queues than there are threads, as on an NBD server with one
//! connection, what a thread submits may stand before the queue of another, which alone serves it.
//! So no thread ends its channel before the I/O of all has come back. Used by jobs, clients and
//! programs on this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_block::{Channel, Error};
use millrace_machine::{Machine, Native};
use millrace_runtime::IoContext;

/// First sleep of a thread that has no I/O of its own, and its longest: each is twice as long as
/// the one before, so that thousands of threads that wait leave the others their CPUs.
const LOOK_NS: u64 = 5_000_000;
const LOOK_MAX_NS: u64 = 80_000_000;

/// How many threads of a run still have I/O, or may have.
pub(crate) struct Together {
    at_work: AtomicUsize,
}

/// A thread's part in it, which ends with the value at the latest.
pub(crate) struct Member<'a> {
    together: &'a Together,
    is_at_work: bool,
}

impl Together {
    /// Of so many threads, each of which asks for its part.
    pub(crate) fn of(threads: usize) -> Together {
        Together { at_work: AtomicUsize::new(threads) }
    }

    /// The part of one of them.
    pub(crate) fn member(&self) -> Member<'_> {
        Member { together: self, is_at_work: true }
    }
}

impl Member<'_> {
    fn leave(&mut self) {
        if std::mem::take(&mut self.is_at_work) {
            // Relaxed: it orders nothing; whoever looks too early looks again.
            self.together.at_work.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// This thread has no I/O in flight: it serves what others put before its queues until they
    /// have none, either.
    ///
    /// # Errors
    /// `System` if the ring itself fails.
    pub(crate) fn linger(
        mut self,
        context: &mut IoContext,
        channel: &mut Channel<Native>,
    ) -> Result<(), Error> {
        self.leave();
        let goes_on = || self.together.at_work.load(Ordering::Relaxed) > 0;
        serve_while(context, channel, u64::MAX, goes_on)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Serves what others put before this thread's queues until a time of the layer's clock, as long as
/// `goes_on` says so, which is asked every few milliseconds, and less often after a while.
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
        let together = Together::of(3);
        let at_work = || together.at_work.load(Ordering::Relaxed);
        let mut first = together.member();
        first.leave();
        first.leave();
        drop(first);
        assert_eq!(at_work(), 2);
        drop(together.member());
        drop(together.member());
        assert_eq!(at_work(), 0);
    }
}
