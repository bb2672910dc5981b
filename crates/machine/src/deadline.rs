//! `RunningClock` and `Deadline`: time limits that count only time in which their owner ran.
//!
//! A process stands still while it is stopped by a signal, frozen with its cgroup, paused with its
//! host, or without a CPU. The clock goes on meanwhile, and so do drives and clients, so a limit by
//! the clock alone would blame them for the pause. An owner therefore looks at its clock at least
//! every so often while a limit runs. A look that comes too late shows a pause: the time since the
//! look was due counts for nobody. Rule for every owner: take what has arrived first (completions,
//! bytes, answers), judge what is late after that. Costs are paid per look, never per I/O. Kernel
//! counterpart: none; a stopped kernel stops its timers.

use core::marker::PhantomData;
use core::time::Duration;

use crate::Machine;

/// Longest time between two looks at a [`Deadline`] that counts in full, in nanoseconds.
pub const LOOK_NS: u64 = 1_000_000_000;
/// Lateness of a look that scheduling explains, and that counts as time.
const SLACK_NS: u64 = 100_000_000;

/// Finds the time in which its owner did not run.
#[derive(Debug, Clone, Copy)]
pub struct RunningClock {
    /// When the owner looked last; 0 before the first look.
    looked_ns: u64,
    /// When the next look is due at the latest.
    due_ns: u64,
}

impl Default for RunningClock {
    fn default() -> Self {
        RunningClock::new()
    }
}

impl RunningClock {
    /// A clock whose first look finds no pause.
    #[must_use]
    pub const fn new() -> RunningClock {
        RunningClock { looked_ns: 0, due_ns: u64::MAX }
    }

    /// Looks at the time; the next look is due within `next_within_ns`. Returns for how long the
    /// owner did not run before this look: 0 if the look came in time.
    pub fn look(&mut self, now_ns: u64, next_within_ns: u64) -> u64 {
        let late_ns = now_ns.saturating_sub(self.due_ns);
        (self.looked_ns, self.due_ns) = (now_ns, now_ns.saturating_add(next_within_ns));
        if late_ns > SLACK_NS { late_ns } else { 0 }
    }

    /// Says when the next look is due, for an owner that is about to sleep; `None`: at any time.
    /// A time before the last look stands for at once. Ignored before the first look.
    pub fn expect(&mut self, due_ns: Option<u64>) {
        if self.looked_ns > 0 {
            self.due_ns = due_ns.map_or(u64::MAX, |due_ns| due_ns.max(self.looked_ns));
        }
    }
}

/// A time limit that pauses of its owner extend. The owner looks at least every [`LOOK_NS`]: time
/// beyond that between two looks counts as a pause.
#[derive(Debug)]
pub struct Deadline<M> {
    until_ns: u64,
    clock: RunningClock,
    machine: PhantomData<M>,
}

impl<M: Machine> Deadline<M> {
    /// A limit that is over after this time.
    #[must_use]
    pub fn after(time: Duration) -> Deadline<M> {
        Deadline::after_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// As [`Deadline::after`], of nanoseconds.
    #[must_use]
    pub fn after_ns(time_ns: u64) -> Deadline<M> {
        Deadline::at(M::now().saturating_add(time_ns))
    }

    /// A limit at a time of the machine's clock, without the pauses from now on.
    #[must_use]
    pub fn at(until_ns: u64) -> Deadline<M> {
        let mut clock = RunningClock::new();
        clock.look(M::now(), LOOK_NS);
        Deadline { until_ns, clock, machine: PhantomData }
    }

    /// Looks at the clock: nanoseconds that are left, 0 when the limit is over.
    pub fn left_ns(&mut self) -> u64 {
        self.left_with_ns(0)
    }

    /// As [`Deadline::left_ns`], of a limit that is over `more_ns` later.
    pub fn left_with_ns(&mut self, more_ns: u64) -> u64 {
        let now_ns = M::now();
        let pause_ns = self.clock.look(now_ns, LOOK_NS);
        self.until_ns = self.until_ns.saturating_add(pause_ns);
        self.until_ns.saturating_add(more_ns).saturating_sub(now_ns)
    }

    /// Looks at the clock: whether the limit is over.
    pub fn is_over(&mut self) -> bool {
        self.left_ns() == 0
    }

    /// How long to wait at most before the next look; `None` when the limit is over.
    pub fn slice(&mut self) -> Option<Duration> {
        match self.left_ns().min(LOOK_NS) {
            0 => None,
            slice_ns => Some(Duration::from_nanos(slice_ns)),
        }
    }

    /// Does something that cannot look meanwhile and takes `most` at most: its time counts, and
    /// what it takes beyond that does not. Nothing is done, and `None` returned, when the limit is
    /// over.
    pub fn block<T>(&mut self, most: Duration, body: impl FnOnce(Duration) -> T) -> Option<T> {
        let most = most.min(Duration::from_nanos(self.left_ns()));
        let most_ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        self.clock.expect(Some(M::now().saturating_add(most_ns)));
        (most_ns > 0).then(|| body(most))
    }

    /// Does something that looks at a limit of its own instead, `time` from now at most.
    pub fn within<T>(&mut self, time: Duration, body: impl FnOnce(&mut Deadline<M>) -> T) -> T {
        self.left_ns();
        let mut inner = Deadline::after(time);
        let until_ns = inner.until_ns;
        let result = body(&mut inner);
        self.until_ns = self.until_ns.saturating_add(inner.until_ns - until_ns);
        self.clock = inner.clock;
        result
    }
}

#[cfg(feature = "std")]
impl Deadline<crate::Native> {
    /// Waits for a message until the limit is over; `None` then, or if the sender is gone.
    pub fn receive<T>(&mut self, from: &std::sync::mpsc::Receiver<T>) -> Option<T> {
        use std::sync::mpsc::RecvTimeoutError::Timeout;
        loop {
            match from.recv_timeout(self.slice().unwrap_or(Duration::ZERO)) {
                Ok(message) => return Some(message),
                Err(Timeout) if self.left_ns() > 0 => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_look_in_time_finds_no_pause() {
        let mut clock = RunningClock::new();
        assert_eq!(clock.look(5_000 * MS, 1_000 * MS), 0, "the first look has nothing to compare");
        assert_eq!(clock.look(5_100 * MS, 1_000 * MS), 0);
        assert_eq!(clock.look(6_100 * MS + SLACK_NS, 1_000 * MS), 0);
        assert_eq!(clock.look(6_200 * MS, u64::MAX), 0);
        assert_eq!(clock.look(u64::MAX, 0), 0, "no look was due");
    }

    #[test]
    fn a_late_look_finds_the_time_since_it_was_due() {
        let mut clock = RunningClock::new();
        clock.look(0, 1_000 * MS);
        assert_eq!(clock.look(36_000 * MS, 1_000 * MS), 35_000 * MS);
        clock.expect(Some(39_000 * MS));
        assert_eq!(clock.look(39_101 * MS, 0), 101 * MS);
        clock.expect(None);
        assert_eq!(clock.look(90_000 * MS, 0), 0);
    }

    #[test]
    fn a_look_that_was_due_long_ago_is_due_at_once() {
        let mut clock = RunningClock::new();
        clock.expect(Some(1));
        assert_eq!(clock.look(90_000 * MS, 1_000 * MS), 0, "the first look");
        clock.expect(Some(1));
        assert_eq!(clock.look(90_001 * MS, 1_000 * MS), 0);
        clock.expect(Some(1));
        assert_eq!(clock.look(95_001 * MS, 1_000 * MS), 5_000 * MS);
    }
}
