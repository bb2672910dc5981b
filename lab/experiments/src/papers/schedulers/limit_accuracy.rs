//! `LimitAccuracy`: accuracy of a rate limit, from the times at which I/Os completed.
//!
//! The drive completes I/Os at once, so an I/O's completion time is the time at which the limit let
//! the I/O pass, plus the time until a thread has woken up and polled.

use millrace_block::GroupLimits;

use super::Point;
use crate::papers::Results;

const WINDOW_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitAccuracy {
    /// Expected rate of the group: its limit, or its rate without a limit if that is smaller.
    pub(super) due_iops: f64,
    pub(super) iops: f64,
    pub(super) window_ns: u64,
    pub(super) range_iops: (f64, f64),
    /// Largest burst: number of I/Os beyond the rate limit in any window of time, divided by the
    /// token bucket's size in I/Os. Windows may include the warm-up. The first I/O of a window does
    /// not count.
    pub(super) burst: f64,
}

impl LimitAccuracy {
    pub(super) fn of(results: &Results<Point>, point: &Point, iops: u64) -> Option<LimitAccuracy> {
        let (contest, free) = (results.at(point)?, results.at(point.free())?);
        let rows = contest.clients.iter();
        let mut times: Vec<u64> = rows.flat_map(|row| &row.course.times_ns).copied().collect();
        times.sort_unstable();
        let (begin_ns, length_ns) = (point.phases.warm_up_ns, point.phases.length_ns);
        let window_ns = WINDOW_NS.min(length_ns * 2 / 3);
        let (least, most) = extremes(&times, window_ns, (begin_ns, begin_ns + length_ns));
        let per_second = 1e9 / window_ns as f64;
        let rate = iops as f64;
        let saved = rate * GroupLimits::default().burst.as_secs_f64();
        Some(LimitAccuracy {
            due_iops: rate.min(free.iops),
            iops: contest.iops,
            window_ns,
            range_iops: (least as f64 * per_second, most as f64 * per_second),
            burst: beyond(&times, rate) / saved,
        })
    }

    /// Returns two deviations from `due_iops`, as fractions. The first is the deviation of the mean
    /// rate. The second is the largest deviation of the rate in a window of `window_ns`.
    pub(super) fn off(&self) -> (f64, f64) {
        let off = |iops: f64| iops / self.due_iops - 1.0;
        let (least, most) = (off(self.range_iops.0), off(self.range_iops.1));
        (off(self.iops), if least.abs() > most.abs() { least } else { most })
    }
}

/// Returns the largest excess of I/Os over `rate` in any window. A window from the completion of
/// I/O `i` to that of I/O `j` has `j - i` I/Os and allows `rate * (t[j] - t[i])` I/Os.
fn beyond(times_ns: &[u64], rate: f64) -> f64 {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for (number, at_ns) in times_ns.iter().enumerate() {
        let ahead = number as f64 - rate * *at_ns as f64 / 1e9;
        least = least.min(ahead);
        most = most.max(ahead - least);
    }
    most
}

/// Returns the smallest and the largest number of I/Os in any window of `window_ns` between two
/// times. The largest number is in a window that begins at an I/O. The smallest number is in a
/// window that begins just after an I/O. So no other windows are checked. A pause before the first
/// I/O between the two times is not seen.
fn extremes(times_ns: &[u64], window_ns: u64, (from_ns, to_ns): (u64, u64)) -> (u64, u64) {
    let (mut least, mut most, mut end) = (u64::MAX, 0, 0);
    let first = times_ns.partition_point(|at_ns| *at_ns < from_ns);
    for number in first..times_ns.len() {
        let end_ns = times_ns[number] + window_ns;
        if end_ns > to_ns {
            break;
        }
        while times_ns.get(end).is_some_and(|at_ns| *at_ns < end_ns) {
            end += 1;
        }
        let inside = (end - number) as u64;
        (least, most) = (least.min(inside - 1), most.max(inside));
    }
    (least.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn steady_stream_has_its_rate_in_each_window_and_nothing_beyond() {
        let times: Vec<u64> = (0..1000).map(|number| 100 * MS + number * MS).collect();
        assert!(beyond(&times, 1000.0) < 1e-6);
        let (least, most) = extremes(&times, 100 * MS, (200 * MS, 1000 * MS));
        assert_eq!((least, most), (99, 100));
    }

    #[test]
    fn what_comes_at_once_is_beyond_the_rate() {
        // Eleven at one time are ten more than one I/O.
        let mut times = vec![100 * MS; 11];
        times.extend((1..100).map(|number| 100 * MS + number * MS));
        assert!((beyond(&times, 1000.0) - 10.0).abs() < 1e-6);
        assert_eq!(extremes(&times, 20 * MS, (0, 200 * MS)), (19, 30));
    }
}
