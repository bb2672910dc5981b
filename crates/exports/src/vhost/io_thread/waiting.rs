//! Idle I/O threads: poll for the time that polling.rs has decided, then sleep in the ring.
//!
//! A thread that shares its CPU does not poll, because it would keep its guests from running.
//! Invariant: before a sleep every guest was asked for a kick, and its ring was checked once more.

use millrace_block::Error;
use millrace_machine::{Machine, Native, Poll, Polled};

use super::IoThread;

impl IoThread {
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.queues.iter().flatten().any(|served| served.queue.has_news())
            || self.channel.has_work()
            || !self.state.orders.is_empty()
    }

    pub(super) fn sleep(&mut self, limit_ns: Option<u64>) -> Result<(), Error> {
        let mut available = false;
        for served in self.queues.iter_mut().flatten() {
            available |= served.queue.request_kick();
        }
        if available {
            self.suppress_kicks();
            return Ok(());
        }
        self.kicks.arm();
        let deadline_ns = [self.channel.sleep_until(), limit_ns].into_iter().flatten().min();
        let (common, state, channel) = (&self.common, &self.state, &self.channel);
        let stopping = limit_ns.is_some();
        let slept_ns = Native::now();
        self.ctx.turn(deadline_ns, || {
            channel.has_work() || !state.orders.is_empty() || (!stopping && common.stop.is_given())
        })?;
        let answered = usize::from(std::mem::take(&mut self.idle.answered));
        let spun_ns = std::mem::take(&mut self.idle.spun_ns);
        self.idle.polling[answered].slept(spun_ns, Native::now() - slept_ns);
        self.suppress_kicks();
        Ok(())
    }

    /// Polls for work, at most for the time that polling.rs has decided. Ends early if another
    /// thread keeps the CPU. Returns true if the thread has work to do.
    pub(super) fn spin(&mut self) -> Result<bool, Error> {
        let polling = usize::from(self.idle.answered);
        let spin_ns = self.idle.polling[polling].spin_ns();
        if spin_ns == 0 || self.queues.is_empty() || !self.idle.share.may_poll() {
            return Ok(false);
        }
        let turns = self.turns && self.channel.in_flight() > 0;
        let mut poll = Poll::new(Native::now().saturating_add(spin_ns));
        let Polled { came, waited_ns } = loop {
            if self.has_news() || (turns && self.turn_now(0)? > 0) {
                break self.idle.share.hit(&mut poll);
            }
            if let Some(polled) = self.idle.share.missed(&mut poll) {
                break polled;
            }
        };
        self.idle.spun_ns = if came { 0 } else { waited_ns };
        self.stats.poll_ns += waited_ns;
        self.stats.poll_hits += u64::from(came);
        self.stats.poll_misses += u64::from(!came);
        if came {
            self.idle.polling[polling].caught(waited_ns);
            self.idle.answered = false;
        }
        Ok(came)
    }

    fn suppress_kicks(&mut self) {
        for served in self.queues.iter_mut().flatten() {
            served.queue.suppress_kicks();
        }
    }
}
