//! Log-linear histograms of nanoseconds: always on, one writer, 2 KiB of buckets each.
//!
//! There is one bucket for each value below 8 ns, then eight buckets for each power of two up to 17
//! s, so a value is known to within 12.5 %. One thread at a time writes a histogram through
//! `Machine::Counter`s; readers take and merge `Snapshot`s. The bucket rule is that of fio's and
//! HdrHistogram's log-linear plots.

use alloc::boxed::Box;
use alloc::vec::Vec;

use millrace_machine::{Counter, Machine};

/// Number of buckets of a histogram.
pub const BUCKETS: usize = 256;

/// Returns the index of the bucket that holds `value_ns`.
#[inline]
#[must_use]
pub fn bucket_of(value_ns: u64) -> usize {
    // The exponent and the top 3 mantissa bits of a float, read as one number, give the log-linear
    // bucket. Values too large for an exact float belong to the last bucket anyway.
    let place = ((value_ns as i64 as f64).to_bits() >> 49).wrapping_sub((1023 + 2) * 8);
    // One comparison finds both special cases: values below 8 ns, and values in the last bucket.
    match place.wrapping_sub(8) < BUCKETS as u64 - 9 {
        true => place as usize,
        false => bucket_at_an_end(value_ns).into(),
    }
}

#[cold]
fn bucket_at_an_end(value_ns: u64) -> u8 {
    if value_ns < 8 { value_ns as u8 } else { (BUCKETS - 1) as u8 }
}

/// Returns the smallest value of a bucket, in nanoseconds.
#[must_use]
pub fn bucket_start(bucket: usize) -> u64 {
    match bucket {
        0..8 => bucket as u64,
        _ => (8 + bucket as u64 % 8) << (bucket / 8 - 1),
    }
}

/// A histogram that one thread writes.
pub struct Histogram<M: Machine> {
    counts: Box<[M::Counter; BUCKETS]>,
    sum: M::Counter,
    max: M::Counter,
}

impl<M: Machine> Histogram<M> {
    pub(crate) fn new() -> Self {
        let counts: Box<[M::Counter]> = (0..BUCKETS).map(|_| M::Counter::new()).collect();
        let counts = counts.try_into().unwrap_or_else(|_| unreachable!("made with that length"));
        Histogram { counts, sum: M::Counter::new(), max: M::Counter::new() }
    }

    #[inline(always)]
    pub(crate) fn record(&self, value_ns: u64, times: u64) {
        self.record_in(bucket_of(value_ns), value_ns, times);
    }

    #[inline(always)]
    pub(crate) fn record_in(&self, bucket: usize, value_ns: u64, times: u64) {
        self.tally(bucket, value_ns, times);
        self.sum.add(value_ns.wrapping_mul(times));
    }

    /// Adds `times` to the number of I/Os in the bucket. Does not change the histogram's sum:
    /// [`Snapshot::with_sum`] sets the sum later.
    #[inline(always)]
    pub(crate) fn tally(&self, bucket: usize, value_ns: u64, times: u64) {
        self.counts[bucket].add(times);
        self.max.raise(value_ns);
    }

    pub(crate) fn is_empty(&self) -> bool {
        // A recorded 0 does not raise the maximum, but is counted in the first bucket.
        self.max.get() == 0 && self.counts[0].get() == 0
    }

    /// Returns a copy of the current counts.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let counts = match self.is_empty() {
            true => Vec::new(),
            false => self.counts.iter().map(Counter::get).collect(),
        };
        Snapshot { counts, sum_ns: self.sum.get(), max_ns: self.max.get() }
    }
}

/// The contents of a histogram at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Counts by bucket. Empty, to save memory, if no value was recorded.
    counts: Vec<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Snapshot {
    /// Adds the counts of another snapshot.
    pub fn merge(&mut self, other: &Snapshot) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        }
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the counts since an earlier snapshot of the same histogram. The maximum, however,
    /// covers the histogram's whole lifetime.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut counts = self.counts.clone();
        for (now, then) in counts.iter_mut().zip(&earlier.counts) {
            *now = now.saturating_sub(*then);
        }
        if counts.iter().all(|count| *count == 0) {
            counts = Vec::new();
        }
        Snapshot { counts, sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns), max_ns: self.max_ns }
    }

    /// Counts `times` I/Os that took `value_ns`.
    pub fn add(&mut self, value_ns: u64, times: u64) {
        if times > 0 {
            self.counts.resize(BUCKETS, 0);
            self.counts[bucket_of(value_ns)] += times;
        }
        self.sum_ns += value_ns.wrapping_mul(times);
        self.max_ns = self.max_ns.max(value_ns);
    }

    #[must_use]
    pub(crate) fn with_sum(self, sum_ns: u64) -> Snapshot {
        Snapshot { sum_ns, ..self }
    }

    /// Returns the number of I/Os counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Builds a snapshot from stored parts: the start and count of each bucket as
    /// [`Snapshot::buckets`] returns them, the sum of all values, and the largest value.
    #[must_use]
    pub fn from_parts(buckets: &[(u64, u64)], sum_ns: u64, max_ns: u64) -> Snapshot {
        let mut snapshot = Snapshot { sum_ns, max_ns, ..Snapshot::default() };
        for (start_ns, count) in buckets {
            snapshot.counts.resize(BUCKETS, 0);
            let place = &mut snapshot.counts[bucket_of(*start_ns)];
            *place = place.saturating_add(*count);
        }
        snapshot
    }

    /// Returns the smallest value and the count of each bucket that is not empty.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (bucket_start(bucket), *count))
    }

    /// Returns the sum of all values in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the mean in nanoseconds; 0 if nothing was counted.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// Returns the largest value in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the quantile at `fraction` (0 to 1) in nanoseconds; 0 if nothing was counted. The
    /// result is the middle of the quantile's bucket, but at most the largest value.
    #[must_use]
    pub fn quantile_ns(&self, fraction: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            // A snapshot made by `since` may have a maximum but no counts, because its maximum
            // covers the histogram's whole lifetime. Without counts, the quantile is 0.
            return 0;
        }
        let rank = ((count as f64 * fraction) as u64).min(count.saturating_sub(1));
        let mut seen = 0;
        for (bucket, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen > rank {
                let middle = u64::midpoint(bucket_start(bucket), bucket_start(bucket + 1));
                return middle.min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use millrace_machine::Native;
    use proptest::prelude::*;

    #[test]
    fn a_histogram_fits_its_two_kib() {
        assert!(BUCKETS * size_of::<u64>() <= 2048);
    }

    #[test]
    fn quantiles_of_a_hundred_values_are_within_a_bucket() {
        let histogram = Histogram::<Native>::new();
        (1..=100).for_each(|n| histogram.record(n * 1000, 1));
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.max_ns()), (100, 100_000));
        assert!(snapshot.quantile_ns(0.5).abs_diff(50_000) < 50_000 / 8);
        assert!(snapshot.quantile_ns(0.99).abs_diff(99_000) < 99_000 / 8);
    }

    #[test]
    fn buckets_are_whole_numbers_at_first_and_then_eight_an_octave() {
        let starts: Vec<u64> = (0..BUCKETS).map(bucket_start).collect();
        assert_eq!(starts[..18], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18]);
        assert_eq!((starts[24], starts[31], starts[32]), (32, 60, 64));
        assert_eq!(starts[BUCKETS - 1], 15 << 30);
        for (bucket, start) in starts.iter().enumerate() {
            assert_eq!(bucket_of(*start), bucket);
            assert!(bucket == 0 || bucket_of(start - 1) == bucket - 1, "{bucket}");
        }
        // The last bucket has no upper end.
        for long in [16 << 30, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX] {
            assert_eq!(bucket_of(long), BUCKETS - 1, "{long}");
        }
    }

    #[test]
    fn quantile_is_middle_of_its_bucket_and_at_most_longest() {
        let mut snapshot = Snapshot::default();
        let quantiles =
            |snapshot: &Snapshot| [0.0, 0.5, 0.99, 1.0].map(|f| snapshot.quantile_ns(f));
        assert_eq!((quantiles(&snapshot), snapshot.mean_ns()), ([0; 4], 0));
        snapshot.add(1000, 1);
        // All values are in the bucket of 960 to 1023 ns.
        assert_eq!((quantiles(&snapshot), snapshot.mean_ns()), ([992; 4], 1000));
        (1..=7).for_each(|ns| snapshot.add(ns, 1));
        assert_eq!(quantiles(&snapshot), [1, 5, 992, 992]);
        assert_eq!((snapshot.mean_ns(), snapshot.max_ns()), (1028 / 8, 1000));
        let mut short = Snapshot::default();
        short.add(961, 3);
        assert_eq!((quantiles(&short), short.mean_ns()), ([961; 4], 961));
        // No value was added between the two snapshots, however large the earlier values were.
        assert_eq!((quantiles(&short.since(&short)), short.since(&short).max_ns()), ([0; 4], 961));
    }

    proptest! {
        #[test]
        fn histogram_holds_recorded_values_and_knows_if_empty(
            values in prop::collection::vec((0u64..5000, 1u64..4), 0..20)
        ) {
            let histogram = Histogram::<Native>::new();
            let mut expected = Snapshot::default();
            prop_assert!(histogram.is_empty());
            for (value, times) in values {
                histogram.record(value, times);
                expected.add(value, times);
                prop_assert!(!histogram.is_empty());
            }
            prop_assert_eq!(histogram.snapshot(), expected);
        }

        #[test]
        fn sums_of_snapshots_hold_both_and_what_came_since_is_the_rest(
            first in prop::collection::vec((0u64..1 << 40, 1u64..4), 0..20),
            second in prop::collection::vec((0u64..1 << 40, 1u64..4), 0..20),
        ) {
            let of = |values: &[(u64, u64)]| {
                let mut snapshot = Snapshot::default();
                values.iter().for_each(|(value, times)| snapshot.add(*value, *times));
                snapshot
            };
            let (one, other) = (of(&first), of(&second));
            let mut sum = one.clone();
            sum.merge(&other);
            let all: Vec<_> = first.iter().chain(&second).copied().collect();
            prop_assert_eq!(&sum, &of(&all));
            let mut filled = BTreeMap::new();
            for (value, times) in &all {
                *filled.entry(bucket_start(bucket_of(*value))).or_insert(0) += times;
            }
            prop_assert_eq!(sum.buckets().collect::<BTreeMap<_, _>>(), filled);
            prop_assert!(sum.buckets().is_sorted());
            let plain: u64 = all.iter().map(|(value, times)| value * times).sum();
            prop_assert_eq!(sum.sum_ns(), plain);
            prop_assert_eq!(sum.max_ns(), all.iter().map(|(value, _)| *value).max().unwrap_or(0));
            let rest = Snapshot { max_ns: other.max_ns(), ..sum.since(&one) };
            prop_assert_eq!(rest, other);
        }

        #[test]
        fn a_snapshot_is_its_parts(values in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut snapshot = Snapshot::default();
            values.iter().for_each(|value| snapshot.add(value >> 10, 3));
            let buckets: Vec<_> = snapshot.buckets().collect();
            let again = Snapshot::from_parts(&buckets, snapshot.sum_ns(), snapshot.max_ns());
            prop_assert_eq!(again, snapshot);
        }

        #[test]
        fn every_value_lies_in_its_bucket(value in 0u64..17_000_000_000) {
            let bucket = bucket_of(value);
            prop_assert!(bucket_start(bucket) <= value);
            prop_assert!(value < bucket_start(bucket + 1));
        }
    }
}
