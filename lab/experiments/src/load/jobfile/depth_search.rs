//! `DepthSearch`: finds the largest queue depth at which I/Os meet a latency target (fio's
//! `latency_target`).
//!
//! A job's `Worker` owns the search and keeps at most `depth` I/Os in flight. Each depth is tried
//! for a window of `latency_window`; I/Os issued before the window do not count. The depth doubles
//! while it meets the target; then the search bisects between the largest depth that met the target
//! and the smallest that missed it. The job ends with the search, unless `latency_run` is set: then
//! the search starts again when the found depth misses the target, and tries a larger depth after
//! `PROBE_WINDOWS` good windows.

/// Number of windows that must meet the target before `latency_run` tries a larger depth.
const PROBE_WINDOWS: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LatencyTarget {
    pub(super) target_ns: u64,
    pub(super) window_ns: u64,
    pub(super) percent: f64,
    /// True if the job continues after the search (`latency_run`).
    pub(super) run: bool,
}

#[derive(Debug)]
pub(super) struct DepthSearch {
    target: LatencyTarget,
    depth: u32,
    /// Largest depth that met the target; 0 if none has met it yet.
    good: u32,
    /// Smallest depth that missed the target; `iodepth` + 1 if none has missed it yet.
    bad: u32,
    iodepth: u32,
    window_ns: u64,
    /// Number of I/Os that completed in the present window; `late` of them missed the target.
    ios: u64,
    late: u64,
    settled: u32,
    is_over: bool,
}

impl DepthSearch {
    pub(super) fn new(target: LatencyTarget, iodepth: u32, now_ns: u64) -> DepthSearch {
        DepthSearch {
            target,
            depth: 1,
            good: 0,
            bad: iodepth + 1,
            iodepth,
            window_ns: now_ns,
            ios: 0,
            late: 0,
            settled: 0,
            is_over: false,
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth as usize
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn note(&mut self, issue_ns: u64, clat_ns: u64) {
        if issue_ns >= self.window_ns {
            self.ios += 1;
            self.late += u64::from(clat_ns > self.target.target_ns);
        }
    }

    /// Evaluates the window once its time is over. A window in which no I/O completed is extended.
    pub(super) fn turn(&mut self, now_ns: u64) {
        let ends_ns = self.window_ns.saturating_add(self.target.window_ns);
        if self.is_over || now_ns < ends_ns || self.ios == 0 {
            return;
        }
        let in_time = (self.ios - self.late) as f64 * 100.0 / self.ios as f64;
        let is_good = in_time >= self.target.percent;
        if is_good {
            self.good = self.good.max(self.depth);
        } else {
            self.bad = self.bad.min(self.depth);
            // A depth that met the target before may miss it now.
            self.good = self.good.min(self.bad - 1);
        }
        self.settled = if is_good && self.depth + 1 == self.bad { self.settled + 1 } else { 0 };
        if self.settled >= PROBE_WINDOWS {
            (self.settled, self.bad) = (0, self.iodepth + 1);
        }
        let is_found = self.is_settled();
        let deeper = match self.bad > self.iodepth {
            true => self.good.saturating_mul(2).clamp(1, self.iodepth),
            false => self.good.midpoint(self.bad),
        };
        self.is_over = is_found && !self.target.run || self.bad == 1;
        self.depth = if is_found { self.good.max(1) } else { deeper };
        (self.window_ns, self.ios, self.late) = (now_ns, 0, 0);
    }

    /// Returns true if the next larger depth is known to miss the target, or exceeds `iodepth`.
    pub(super) fn is_settled(&self) -> bool {
        self.good + 1 == self.bad
    }

    /// Returns the largest depth that met the target; `None` if the job ended before any depth was
    /// tried.
    pub(super) fn result(&self) -> Result<Option<u32>, String> {
        if self.bad == 1 {
            let LatencyTarget { target_ns, percent, .. } = self.target;
            let target_us = target_ns as f64 / 1e3;
            return Err(format!(
                "latency_target={target_us}us: fewer than {percent} % of I/Os are as fast, even one \
                 at a time; raise it"
            ));
        }
        Ok(Some(self.good).filter(|good| *good > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: LatencyTarget =
        LatencyTarget { target_ns: 1_000_000, window_ns: 1_000, percent: 90.0, run: false };

    /// Simulates a window of 100 I/Os on a drive that meets the target up to a depth; returns the
    /// depth.
    fn window(search: &mut DepthSearch, holds: usize) -> usize {
        let (depth, begin_ns) = (search.depth(), search.window_ns);
        // Of those in time at a good depth, 5 are late; I/Os of the last window do not count.
        let late = if depth <= holds { 5 } else { 50 };
        (0..50).for_each(|_| search.note(begin_ns.wrapping_sub(1), u64::MAX));
        (0..100).for_each(|io| search.note(begin_ns, if io < late { 1_000_001 } else { 7 }));
        search.turn(begin_ns + 1_000);
        depth
    }

    #[test]
    fn every_depth_is_found_in_twice_the_logarithm_of_the_windows() {
        for holds in 1..=128 {
            let mut search = DepthSearch::new(TARGET, 128, 50);
            let mut windows = 0;
            while !search.is_over() {
                window(&mut search, holds);
                windows += 1;
            }
            assert_eq!(search.result(), Ok(Some(holds as u32)));
            assert!(windows <= 15, "{holds}: {windows}");
        }
    }

    #[test]
    fn a_target_that_one_io_at_a_time_misses_is_an_error() {
        let mut search = DepthSearch::new(TARGET, 128, 50);
        assert_eq!(search.result(), Ok(None));
        window(&mut search, 0);
        assert!(search.is_over());
        let text = search.result().unwrap_err();
        assert!(text.starts_with("latency_target=1000us: fewer than 90 %"), "{text}");
    }

    #[test]
    fn a_window_without_ios_goes_on() {
        let mut search = DepthSearch::new(TARGET, 8, 0);
        search.turn(1 << 40);
        assert_eq!((search.depth(), search.result()), (1, Ok(None)));
    }

    #[test]
    fn running_job_follows_a_drive_that_changes_its_speed() {
        let mut search = DepthSearch::new(LatencyTarget { run: true, ..TARGET }, 64, 1);
        for holds in [20, 3, 64] {
            (0..40).for_each(|_| _ = window(&mut search, holds));
            assert_eq!(search.result(), Ok(Some(holds as u32)));
            assert!(!search.is_over());
        }
    }
}
