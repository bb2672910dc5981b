//! Workload-aware batch submission: decides whether a submission should wait for more requests.
//!
//! The functions read no clock: their callers, I/O threads and the simulator, pass all times.
//!
//! Waiting delays the requests taken so far and can save the fixed cost of one submission. So the
//! longest wait is the mean measured cost of a submission (0 until a submission has needed a system
//! call) or a configured maximum, whichever is shorter. Within this limit the thread waits only
//! while more requests are likely: they arrive at short intervals, and the client has fewer
//! requests outstanding than its recent peak. A client at its peak sends nothing until a request
//! completes. Paper: \[MIOT\] workload-aware batch submission.

/// Weight of a new value in an average: 1/2^`WEIGHT_SHIFT`.
const WEIGHT_SHIFT: u32 = 3;
/// Averages are kept in units of 1/16 ns, so that small averages change in spite of rounding.
const FRACTION_SHIFT: u32 = 4;
/// Upper limit of a measured gap between requests, as a multiple of the longest time for which a
/// submission may wait. Without the limit, one pause would keep the average gap large for long.
const PAUSE_MAX_BOUNDS: u64 = 2;
/// Length of the pause that ends a burst of requests, as a multiple of the average gap between
/// arrivals.
const OVERDUE_GAPS: u64 = 4;
/// Minimum length of a measurement window, as a number of arriving requests. In each window, the
/// peak of outstanding requests is measured. If the peak is above 16, the window is four times the
/// peak.
const WINDOW_MIN: u32 = 64;
const TIME_MAX_NS: u64 = 1 << 32;

/// Arrival statistics, which decide whether a submission waits for more requests.
#[derive(Debug, Clone)]
pub struct BatchPacer {
    wait_max_ns: u64,
    /// Time of the last arrival; 0 before the first.
    last_ns: u64,
    gap: TimeAverage,
    cost: TimeAverage,
    outstanding: u32,
    peaks: OutstandingPeaks,
}

/// Weighted moving average of times, such as gaps between requests, in 1/16 ns.
#[derive(Debug, Clone, Copy, Default)]
struct TimeAverage(u64);

impl TimeAverage {
    #[inline]
    fn add(&mut self, sample_ns: u64) {
        let sample = sample_ns.min(TIME_MAX_NS) << FRACTION_SHIFT;
        self.0 = self.0 - (self.0 >> WEIGHT_SHIFT) + (sample >> WEIGHT_SHIFT);
    }

    #[inline]
    fn ns(self) -> u64 {
        self.0 >> FRACTION_SHIFT
    }
}

/// Peak of outstanding requests in the current and the previous window. Each window is a number of
/// arrivals, [`WINDOW_MIN`] or more.
#[derive(Debug, Clone, Copy, Default)]
struct OutstandingPeaks {
    now: u32,
    before: u32,
    arrivals: u32,
}

impl OutstandingPeaks {
    #[inline]
    fn note(&mut self, outstanding: u32, arrivals: u32) {
        self.now = self.now.max(outstanding);
        self.arrivals = self.arrivals.saturating_add(arrivals);
        if self.arrivals >= self.peak().saturating_mul(4).max(WINDOW_MIN) {
            *self = OutstandingPeaks { now: outstanding, before: self.now, arrivals: 0 };
        }
    }

    #[inline]
    fn peak(self) -> u32 {
        self.now.max(self.before)
    }
}

impl BatchPacer {
    /// Creates a pacer without measurements, which at first lets no request wait. Later a request
    /// waits for at most `wait_max_ns`; 0 disables waiting.
    #[must_use]
    pub fn new(wait_max_ns: u64) -> BatchPacer {
        BatchPacer {
            wait_max_ns: wait_max_ns.min(TIME_MAX_NS),
            last_ns: 0,
            gap: TimeAverage::default(),
            cost: TimeAverage::default(),
            outstanding: 0,
            peaks: OutstandingPeaks::default(),
        }
    }

    /// Records that `count` requests arrived in the ring at `now_ns`.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64, count: u32) {
        if count == 0 {
            return;
        }
        let pause_ns = now_ns.saturating_sub(self.last_ns);
        let gap_ns = if count == 1 { pause_ns } else { pause_ns / u64::from(count) };
        self.gap.add(gap_ns.min(PAUSE_MAX_BOUNDS * self.bound_ns()));
        self.last_ns = now_ns;
        self.outstanding = self.outstanding.saturating_add(count);
        self.peaks.note(self.outstanding, count);
    }

    /// Records a submission of `count` requests. `cost_ns` is the time of the system call, or 0
    /// without a system call.
    #[inline]
    pub fn submitted(&mut self, cost_ns: u64, count: u32) {
        if count > 0 {
            self.cost.add(cost_ns);
        }
    }

    /// Records that `count` requests completed.
    #[inline]
    pub fn completed(&mut self, count: u32) {
        self.outstanding = self.outstanding.saturating_sub(count);
    }

    /// Returns the time until which `in_hand` requests should wait for more to join their
    /// submission, or `None` to submit now. The first of them arrived at `since_ns`.
    #[inline]
    #[must_use]
    pub fn hold_until(&self, now_ns: u64, in_hand: u32, since_ns: u64) -> Option<u64> {
        let until_ns = since_ns.saturating_add(self.bound_ns());
        if in_hand == 0 || now_ns >= until_ns || self.outstanding >= self.peaks.peak() {
            return None;
        }
        // Uses an average gap of at least 1 ns. If the gap were 0, `expected` would always be
        // false, and the thread would never wait for another request.
        let gap_ns = self.gap.ns().max(1);
        let quiet_ns = now_ns.saturating_sub(self.last_ns);
        let expected = quiet_ns < OVERDUE_GAPS * gap_ns && now_ns + gap_ns <= until_ns;
        expected.then_some(until_ns)
    }

    #[cfg(test)]
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    #[inline]
    fn bound_ns(&self) -> u64 {
        self.wait_max_ns.min(self.cost.ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT_MAX_NS: u64 = 10_000;

    fn pace() -> BatchPacer {
        BatchPacer::new(WAIT_MAX_NS)
    }

    /// Bursts of `depth` requests, `gap_ns` apart, all submitted at `cost_ns` and completed after a
    /// pause; returns the time after the last.
    fn rounds(pace: &mut BatchPacer, depth: u32, gap_ns: u64, cost_ns: u64) -> u64 {
        let mut now_ns = 1_000;
        for _ in 0..20 {
            for _ in 0..depth {
                now_ns += gap_ns;
                pace.arrived(now_ns, 1);
                pace.submitted(cost_ns, 1);
            }
            now_ns += 50_000;
            pace.completed(depth);
        }
        now_ns
    }

    #[test]
    fn a_burst_is_held_for_as_long_as_a_submission_costs() {
        let mut pace = pace();
        let mut now_ns = rounds(&mut pace, 32, 300, 2_000);
        for _ in 0..8 {
            now_ns += 300;
            pace.arrived(now_ns, 1);
        }
        let until_ns = pace.hold_until(now_ns, 1, now_ns).expect("more is to come");
        assert!((1_900..=2_000).contains(&(until_ns - now_ns)), "{}", until_ns - now_ns);
        // A request that has waited already is held only for the rest of that time.
        assert_eq!(pace.hold_until(now_ns, 2, now_ns - 500), Some(until_ns - 500));
        assert_eq!(pace.hold_until(now_ns, 2, now_ns - 2_000), None);
    }

    #[test]
    fn nothing_is_held_longer_than_was_set() {
        let mut pace = pace();
        let mut now_ns = rounds(&mut pace, 32, 300, 1_000_000);
        for _ in 0..20 {
            now_ns += 300;
            pace.arrived(now_ns, 1);
        }
        assert_eq!(pace.hold_until(now_ns, 1, now_ns), Some(now_ns + WAIT_MAX_NS));
        let mut off = BatchPacer::new(0);
        let now_ns = rounds(&mut off, 32, 300, 2_000);
        off.arrived(now_ns + 300, 1);
        assert_eq!(off.hold_until(now_ns + 300, 1, now_ns + 300), None);
    }

    #[test]
    fn without_system_calls_nothing_is_ever_held() {
        let mut pace = pace();
        let now_ns = rounds(&mut pace, 32, 300, 0);
        pace.arrived(now_ns + 300, 1);
        assert_eq!(pace.hold_until(now_ns + 300, 1, now_ns + 300), None);
    }

    #[test]
    fn a_light_load_is_submitted_at_once() {
        let mut pace = pace();
        // Never more than a few outstanding, but the peak would allow for more.
        let mut now_ns = rounds(&mut pace, 32, 300, 2_000);
        for _ in 0..40 {
            now_ns += 100_000;
            pace.arrived(now_ns, 1);
            pace.completed(1);
        }
        pace.arrived(now_ns, 1);
        assert_eq!(pace.hold_until(now_ns, 1, now_ns), None);
    }

    #[test]
    fn a_client_at_its_peak_is_not_waited_for() {
        let mut pace = pace();
        let mut now_ns = rounds(&mut pace, 4, 300, 2_000);
        for arrived in 1..=4 {
            now_ns += 300;
            pace.arrived(now_ns, 1);
            let held = pace.hold_until(now_ns, arrived, now_ns).is_some();
            assert_eq!(held, arrived < 4, "{arrived} in hand");
        }
        let mut single = self::pace();
        let now_ns = rounds(&mut single, 1, 300, 2_000);
        single.arrived(now_ns + 300, 1);
        assert_eq!(single.hold_until(now_ns + 300, 1, now_ns + 300), None);
    }

    #[test]
    fn a_peak_of_long_ago_is_forgotten() {
        let mut pace = pace();
        rounds(&mut pace, 32, 300, 2_000);
        assert_eq!(pace.peaks.peak(), 32);
        for _ in 0..10 {
            rounds(&mut pace, 4, 300, 2_000);
        }
        assert_eq!(pace.peaks.peak(), 4);
    }

    #[test]
    fn a_burst_that_has_ended_is_not_waited_for() {
        let mut pace = pace();
        let mut now_ns = rounds(&mut pace, 32, 100, 8_000);
        for _ in 0..20 {
            now_ns += 100;
            pace.arrived(now_ns, 1);
        }
        assert!(pace.hold_until(now_ns, 1, now_ns).is_some());
        assert_eq!(pace.hold_until(now_ns + 3_000, 1, now_ns), None);
    }

    /// A client with eight outstanding of a peak of nine, whose last request came at 50,000, one
    /// each `gap_ns`; a submission costs 2,000.
    fn steady(gap_ns: u64) -> BatchPacer {
        let (gap, cost) =
            (TimeAverage(gap_ns << FRACTION_SHIFT), TimeAverage(2_000 << FRACTION_SHIFT));
        let peaks = OutstandingPeaks { now: 9, before: 0, arrivals: 0 };
        BatchPacer { gap, cost, peaks, last_ns: 50_000, outstanding: 8, ..pace() }
    }

    #[test]
    fn it_waits_while_next_is_due_before_end_and_not_long_overdue() {
        let pace = steady(100);
        let held = |now_ns, in_hand, since_ns| pace.hold_until(now_ns, in_hand, since_ns).is_some();
        assert!(held(50_000, 1, 50_000) && !held(50_000, 0, 50_000));
        assert_eq!([399, 400].map(|late| held(50_000 + late, 1, 50_000)), [true, false]);
        // The wait ends at 52,000 less what is past of it.
        assert_eq!([1_900, 1_901].map(|past| held(50_000, 1, 50_000 - past)), [true, false]);
        let full = BatchPacer { outstanding: 9, ..steady(100) };
        assert_eq!(full.hold_until(50_000, 1, 50_000), None);
    }

    #[test]
    fn several_at_once_came_each_after_its_part_of_the_pause() {
        let gap = |count: u32, pause_ns: u64| {
            let mut pace = steady(0);
            pace.arrived(50_000 + pause_ns, count);
            pace.gap.0 << WEIGHT_SHIFT >> FRACTION_SHIFT
        };
        assert_eq!([gap(1, 800), gap(4, 800), gap(8, 8_000)], [800, 200, 1_000]);
        // A pause counts for twice what can be waited, and no more.
        assert_eq!([gap(1, 4_000), gap(1, 4_008), gap(2, 80_000)], [4_000; 3]);
    }

    #[test]
    fn a_submission_of_nothing_costs_nothing() {
        let mut pace = steady(100);
        pace.submitted(0, 0);
        assert_eq!(pace.cost.ns(), 2_000);
        pace.submitted(10_000, 1);
        assert_eq!(pace.cost.ns(), 3_000);
        pace.arrived(u64::MAX, 0);
        assert_eq!((pace.last_ns, pace.outstanding), (50_000, 8));
    }

    #[test]
    fn numbers_without_sense_do_no_harm() {
        let mut pace = pace();
        pace.completed(9);
        pace.arrived(u64::MAX, u32::MAX);
        pace.arrived(0, u32::MAX);
        pace.submitted(u64::MAX, u32::MAX);
        assert_eq!(pace.hold_until(u64::MAX, 1, u64::MAX), None);
        assert_eq!(pace.hold_until(5, 0, 5), None);
    }
}
