//! `RunningClock` and `Deadline`: time limits that count only time in which their owner ran.
//!
//! A process makes no progress while it is stopped by a signal, frozen with its cgroup, paused with
//! its host, or without a CPU. The clock goes on meanwhile, and so do drives and clients, so a
//! plain time limit would blame them for the pause. Therefore the owner checks its clock at regular
//! intervals while a limit runs. If a check comes too late, the time since the check was due does
//! not count. Rule for every owner: first process what has arrived (completions, bytes, answers),
//! then judge what is late.

use core::marker::PhantomData;
use core::time::Duration;

use crate::Machine;

/// Longest interval in nanoseconds between two checks of a [`Deadline`]. A check that comes much
/// later shows that the checking thread was paused, and extends the deadline.
pub const LOOK_NS: u64 = 1_000_000_000;
/// Maximum delay of a check, in nanoseconds, that counts as normal scheduling. A longer delay
/// counts as a pause.
const SLACK_NS: u64 = 100_000_000;

/// Converts a time to nanoseconds, the unit of [`Machine::now`]. Times longer than `u64::MAX` ns,
/// 584 years, are clamped to that value.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Detects pauses, which are times in which the thread or process that owns this clock did not run.
#[derive(Debug, Clone, Copy)]
pub struct RunningClock {
    /// Time at which this clock was last checked, in nanoseconds; 0 before the first check.
    looked_ns: u64,
    due_ns: u64,
}

impl Default for RunningClock {
    fn default() -> Self {
        RunningClock::new()
    }
}

impl RunningClock {
    /// Creates a clock. The first call of [`RunningClock::look`] returns 0 (no pause), because
    /// there is no earlier check to compare with.
    #[must_use]
    pub const fn new() -> RunningClock {
        RunningClock { looked_ns: 0, due_ns: u64::MAX }
    }

    /// Records a check of the clock at `now_ns`. The next check is due `next_within_ns` later.
    /// Returns the length of the pause in nanoseconds: the delay of this check after its due time.
    /// A delay of up to 100 ms counts as normal scheduling, and the result is then 0.
    pub fn look(&mut self, now_ns: u64, next_within_ns: u64) -> u64 {
        let late_ns = now_ns.saturating_sub(self.due_ns);
        (self.looked_ns, self.due_ns) = (now_ns, now_ns.saturating_add(next_within_ns));
        if late_ns > SLACK_NS { late_ns } else { 0 }
    }

    /// Sets the time at which the next call of [`RunningClock::look`] is due, for an owner that is
    /// about to sleep. `None` means that no call is due. Has no effect before the first call of
    /// `look`.
    pub fn expect(&mut self, due_ns: Option<u64>) {
        if self.looked_ns > 0 {
            self.due_ns = due_ns.map_or(u64::MAX, |due_ns| due_ns.max(self.looked_ns));
        }
    }
}

/// A time limit that is extended by pauses of its owner. The owner must check it at least every
/// [`LOOK_NS`]: longer intervals count as pauses.
#[derive(Debug)]
pub struct Deadline<M> {
    until_ns: u64,
    clock: RunningClock,
    machine: PhantomData<M>,
}

impl<M: Machine> Deadline<M> {
    /// Creates a deadline that is `time` from now.
    #[must_use]
    pub fn after(time: Duration) -> Deadline<M> {
        Deadline::after_ns(nanoseconds(time))
    }

    /// Creates a deadline that is `time_ns` nanoseconds from now.
    #[must_use]
    pub fn after_ns(time_ns: u64) -> Deadline<M> {
        Deadline::at(M::now().saturating_add(time_ns))
    }

    /// Creates a deadline at `until_ns` of the machine's clock. Pauses of the owner after this call
    /// postpone the deadline.
    #[must_use]
    pub fn at(until_ns: u64) -> Deadline<M> {
        let mut clock = RunningClock::new();
        clock.look(M::now(), LOOK_NS);
        Deadline { until_ns, clock, machine: PhantomData }
    }

    /// Checks the clock. Returns the nanoseconds left until the deadline, or 0 after the deadline.
    pub fn left_ns(&mut self) -> u64 {
        self.left_with_ns(0)
    }

    /// Checks the clock. Returns the nanoseconds left until a time `more_ns` later than the
    /// deadline, or 0 after that time.
    pub fn left_with_ns(&mut self, more_ns: u64) -> u64 {
        let now_ns = M::now();
        let pause_ns = self.clock.look(now_ns, LOOK_NS);
        self.until_ns = self.until_ns.saturating_add(pause_ns);
        self.until_ns.saturating_add(more_ns).saturating_sub(now_ns)
    }

    /// Checks the clock. Returns true if the deadline has passed.
    pub fn is_over(&mut self) -> bool {
        self.left_ns() == 0
    }

    /// Returns the maximum time until the deadline must be checked again. Returns `None` if the
    /// deadline has passed.
    pub fn slice(&mut self) -> Option<Duration> {
        match self.left_ns().min(LOOK_NS) {
            0 => None,
            slice_ns => Some(Duration::from_nanos(slice_ns)),
        }
    }

    /// Runs `body` with a time limit: the smaller of `most` and the time left until the deadline.
    /// If `body` exceeds the limit by more than 100 ms, the excess counts as a pause and postpones
    /// the deadline. Returns `None` without running `body` if the deadline has passed.
    pub fn block<T>(&mut self, most: Duration, body: impl FnOnce(Duration) -> T) -> Option<T> {
        let most = most.min(Duration::from_nanos(self.left_ns()));
        let most_ns = nanoseconds(most);
        self.clock.expect(Some(M::now().saturating_add(most_ns)));
        (most_ns > 0).then(|| body(most))
    }

    /// Runs `body` with a second deadline, `time` from now, which `body` must check instead of
    /// `self`. Pauses during `body` postpone both deadlines.
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
    /// Waits for a message. Returns `None` after the deadline, or if the sender no longer exists.
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
