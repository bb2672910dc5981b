//! `ReplaySeries`: number of I/Os over time, in bounded memory.
//!
//! Owns the counts of up to 512 equal intervals. The interval starts at 100 ms and doubles whenever
//! all counts are in use, so replays of more than a minute, even of months, have between 256 and
//! 512 counts.

use serde::Serialize;

const COUNTS_MAX: usize = 512;
const INTERVAL_NS: u64 = 100_000_000;

/// Counts of I/Os in intervals of equal length since the start of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplaySeries {
    /// Length of each interval in nanoseconds.
    pub interval_ns: u64,
    /// Number of I/Os in each interval.
    pub ios: Vec<u64>,
}

impl Default for ReplaySeries {
    fn default() -> ReplaySeries {
        ReplaySeries { interval_ns: INTERVAL_NS, ios: Vec::new() }
    }
}

impl ReplaySeries {
    pub(crate) fn add(&mut self, at_ns: u64) {
        let mut at = (at_ns / self.interval_ns) as usize;
        while at >= COUNTS_MAX {
            self.ios = self.ios.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.interval_ns = self.interval_ns.saturating_mul(2);
            at = (at_ns / self.interval_ns) as usize;
        }
        if self.ios.len() <= at {
            self.ios.resize(at + 1, 0);
        }
        self.ios[at] += 1;
    }

    /// Divides `total_ns` into at most `columns` spans of equal length, and returns the I/Os per
    /// second in each.
    pub fn rates(&self, columns: usize, total_ns: u64) -> Vec<f64> {
        let intervals = (total_ns.div_ceil(self.interval_ns).max(1) as usize).max(self.ios.len());
        let each = intervals.div_ceil(columns.max(1));
        let rate = |first: usize| {
            let last = (first + each).min(self.ios.len());
            let ios: u64 = self.ios.get(first..last).unwrap_or_default().iter().sum();
            // The last column may cover less time than the other columns.
            let begin_ns = (first as u64).saturating_mul(self.interval_ns);
            let whole_ns = (each as u64).saturating_mul(self.interval_ns);
            let span_ns = total_ns.saturating_sub(begin_ns).clamp(1, whole_ns);
            ios as f64 * 1e9 / span_ns as f64
        };
        (0..intervals).step_by(each).map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_keeps_all_counts_however_long_it_gets() {
        let mut series = ReplaySeries::default();
        for at in 0..10_000 {
            series.add(at * 77_000_000);
        }
        assert_eq!(series.ios.iter().sum::<u64>(), 10_000);
        assert!((256..=512).contains(&series.ios.len()), "{}", series.ios.len());
        series.add(u64::MAX);
        assert_eq!(series.ios.iter().sum::<u64>(), 10_001);
        assert!(series.ios.len() <= 512);
    }

    #[test]
    fn rates_are_of_whole_spans_and_of_the_rest_of_the_last_one() {
        let mut series = ReplaySeries::default();
        (0..250).for_each(|at| series.add(at * 1_000_000));
        let rates = series.rates(2, 250_000_000);
        assert_eq!(rates, [1_000.0, 1_000.0]);
    }
}
