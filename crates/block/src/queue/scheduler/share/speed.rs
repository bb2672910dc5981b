//! `DriveSpeed`: decides whether a drive that only one group uses needs a depth limit.
//!
//! A fast drive needs none: another group's first request waits a moment at most. On a slow drive
//! that request would wait for all requests in flight, so a slow drive, or one of unknown speed,
//! has a limit before another group comes. agreement.rs calls `look` for each allocation of the
//! drive.

use crate::queue::scheduler::cost::SLOW_NS;
use crate::queue::scheduler::share::times::ClassSums;

/// Time with a depth limit after a drive was found slow, in nanoseconds; idle time does not count.
const SLOW_FOR_NS: u64 = 1_000_000_000;
/// Time with a depth limit for a drive of unknown speed, in nanoseconds; idle time does not count.
const UNKNOWN_FOR_NS: u64 = 100_000_000;
/// Number of requests with a mean service time below an eighth of [`SLOW_NS`] that show that a
/// drive is fast. All must complete between two divisions of the drive among groups.
const FAST_IOS: u64 = 32;
/// Longest time that counts between two allocations, in nanoseconds.
const IDLE_NS: u64 = 5_000_000;

/// Observations of a drive between two allocations.
pub(crate) struct SpeedSample<'a> {
    pub(crate) sums: &'a ClassSums,
    /// True if the drive's hardware queues share so few tags that another group would find none
    /// free.
    pub(crate) is_short: bool,
    /// True if requests would take [`SLOW_NS`] or longer without the drive's depth limit. `None` if
    /// the drive has no depth limit: the service times in `sums` then show how long requests take.
    pub(crate) is_overloaded: Option<bool>,
}

pub(crate) struct DriveSpeed {
    /// Nanoseconds for which a slow drive, or one of unknown speed, still has a depth limit.
    slow_for_ns: u64,
    /// True if the last requests that a sample contained took [`SLOW_NS`] or longer.
    was_slow: bool,
    looked_ns: u64,
}

impl DriveSpeed {
    pub(crate) fn new() -> DriveSpeed {
        DriveSpeed { slow_for_ns: UNKNOWN_FOR_NS, was_slow: false, looked_ns: 0 }
    }

    pub(crate) fn needs_limit(&self) -> bool {
        self.slow_for_ns > 0
    }

    pub(crate) fn look(&mut self, sample: &SpeedSample<'_>, now_ns: u64) {
        let (ios, usual_ns) = (sample.sums.ios(), sample.sums.usual_ns());
        // Without a limit, two samples in a row must show slow requests. Requests seem slow once if
        // a busy host suspends the thread that would take their completions.
        let is_slow_again = self.was_slow && usual_ns >= SLOW_NS;
        if ios > 0 {
            self.was_slow = usual_ns >= SLOW_NS;
        }
        let is_slow = sample.is_short || sample.is_overloaded.unwrap_or(is_slow_again);
        let is_fast = ios >= FAST_IOS && usual_ns < SLOW_NS / 8;
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns).min(IDLE_NS);
        self.looked_ns = now_ns;
        self.slow_for_ns = match is_slow {
            true => SLOW_FOR_NS,
            false if is_fast && self.slow_for_ns <= UNKNOWN_FOR_NS => 0,
            false => self.slow_for_ns.saturating_sub(elapsed_ns),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Op;
    use crate::bio::group_id::GroupId;
    use crate::bio::status::Status;
    use crate::queue::scheduler::CompletedChain;

    const MS: u64 = 1_000_000;

    /// Shows 64 requests of this service time to a drive without a depth limit.
    fn look(speed: &mut DriveSpeed, service_ns: u64, now_ns: u64) -> bool {
        let mut sums = ClassSums::default();
        let done = CompletedChain {
            op: Op::Read,
            nr_sectors: 8,
            tenant: 0,
            group: GroupId::DEFAULT,
            queued_ns: 0,
            picked_ns: 0,
            done_ns: service_ns,
            status: Some(Status::Ok),
        };
        (0..64).for_each(|_| sums.count(&done));
        let sample = SpeedSample { sums: &sums, is_short: false, is_overloaded: None };
        speed.look(&sample, now_ns);
        speed.needs_limit()
    }

    #[test]
    fn a_suspended_thread_does_not_make_a_drive_slow() {
        let mut speed = DriveSpeed::new();
        assert!(!look(&mut speed, 1_000, MS), "64 fast requests show a fast drive");
        for at in 1..100 {
            let service_ns = if at % 2 == 0 { 1_000 } else { 4 * MS };
            assert!(!look(&mut speed, service_ns, at * 10 * MS), "at {at}");
        }
    }

    #[test]
    fn a_drive_is_slow_after_two_slow_samples() {
        let mut speed = DriveSpeed::new();
        assert!(!look(&mut speed, 1_000, MS));
        assert!(!look(&mut speed, 4 * MS, 2 * MS));
        // A sample without completions shows nothing.
        let empty = ClassSums::default();
        let sample = SpeedSample { sums: &empty, is_short: false, is_overloaded: None };
        speed.look(&sample, 3 * MS);
        assert!(!speed.needs_limit());
        assert!(look(&mut speed, 4 * MS, 4 * MS));
        assert!(look(&mut speed, 1_000, 500 * MS), "the limit stays for a second");
    }
}
