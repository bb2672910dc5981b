//! `Tally`: counts and latencies of a job, in the statistics that fio reports.
//!
//! One worker owns the counts while its job runs; afterwards the counts of a group's jobs are added
//! up. Like fio's, the histogram has 64 buckets for each power of two, so percentiles are accurate
//! to 1/128.

const OCTAVE: u64 = 64;
const BUCKETS: usize = 64 * 59;

/// Minimum, maximum, mean and standard deviation of values. Keeps exact sums instead of a running
/// mean, which would cost a division for each value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Spread {
    pub(super) count: u64,
    pub(super) min: u64,
    pub(super) max: u64,
    sum: u64,
    squares: u128,
}

impl Spread {
    #[inline]
    pub(super) fn add(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
        self.squares = self.squares.wrapping_add(u128::from(value) * u128::from(value));
    }

    pub(super) fn merge(&mut self, other: &Spread) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.squares = self.squares.wrapping_add(other.squares);
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    pub(super) fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        // Sum of squared deviations: the sum of squares minus sum^2 / count. Subtract as integers,
        // because a float has too few digits for the difference of two large numbers.
        let (sum, count) = (u128::from(self.sum), u128::from(self.count));
        let (whole, rest) = (sum / count * sum, sum % count * sum);
        let squares = self.squares.saturating_sub(whole) as f64 - rest as f64 / count as f64;
        (squares.max(0.0) / (self.count - 1) as f64).sqrt()
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Buckets(Vec<u64>);

impl Buckets {
    fn add(&mut self, value: u64) {
        if self.0.is_empty() {
            self.0 = vec![0; BUCKETS];
        }
        let place = match value {
            0..OCTAVE => value,
            _ => {
                let shift = u64::from(value.ilog2() - OCTAVE.ilog2());
                (shift + 1) * OCTAVE + ((value >> shift) - OCTAVE)
            }
        };
        self.0[place as usize] += 1;
    }

    fn merge(&mut self, other: &Buckets) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Returns the buckets that are not empty, each with its middle value and its count.
    pub(super) fn bins(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let middle = |place: u64| match place {
            0..OCTAVE => place,
            _ => {
                let shift = place / OCTAVE - 1;
                ((OCTAVE + place % OCTAVE) << shift) + ((1 << shift) >> 1)
            }
        };
        let some = (0..).zip(&self.0).filter(|(_, count)| **count > 0);
        some.map(move |(place, count)| (middle(place), *count))
    }

    /// Returns the percentiles of the values for `percents`, which must be in ascending order.
    pub(super) fn percentiles(&self, percents: &[f64]) -> Vec<u64> {
        let total: u64 = self.0.iter().sum();
        let mut bins = self.bins();
        let (mut seen, mut value) = (0, 0);
        let below = |percent: &f64| {
            while (seen as f64) < percent / 100.0 * total as f64 {
                let Some((middle, count)) = bins.next() else { break };
                (seen, value) = (seen + count, middle);
            }
            value
        };
        percents.iter().map(below).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Times {
    pub(super) spread: Spread,
    pub(super) buckets: Buckets,
}

impl Times {
    pub(super) fn add(&mut self, time_ns: u64) {
        self.spread.add(time_ns);
        self.buckets.add(time_ns);
    }

    fn merge(&mut self, other: &Times) {
        self.spread.merge(&other.spread);
        self.buckets.merge(&other.buckets);
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct DirectionTally {
    pub(super) bytes: u64,
    pub(super) ios: u64,
    pub(super) runtime_ns: u64,
    pub(super) slat: Spread,
    pub(super) clat: Times,
    pub(super) lat: Spread,
    /// Bandwidth in KiB/s and IOPS, each from samples of half a second.
    pub(super) bw: Spread,
    pub(super) iops: Spread,
    since: (u64, u64),
}

impl DirectionTally {
    pub(super) fn sample(&mut self, length_ns: u64) {
        let (bytes, ios) = (self.bytes - self.since.0, self.ios - self.since.1);
        if bytes > 0 {
            let each =
                |count: u64| u128::from(count) * 1_000_000_000 / u128::from(length_ns.max(1));
            self.bw.add((each(bytes) / 1024) as u64);
            self.iops.add(each(ios) as u64);
        }
        self.since = (self.bytes, self.ios);
    }

    fn merge(&mut self, other: &DirectionTally) {
        self.bytes += other.bytes;
        self.ios += other.ios;
        self.runtime_ns = self.runtime_ns.max(other.runtime_ns);
        self.slat.merge(&other.slat);
        self.clat.merge(&other.clat);
        self.lat.merge(&other.lat);
        self.bw.merge(&other.bw);
        self.iops.merge(&other.iops);
    }
}

/// Histogram of queue depths or batch sizes. The classes are 0, 1, 2 to 3, 4 to 7, and so on, up to
/// 64 and more.
pub(super) type Levels = [u64; 8];

/// Upper limits of fio's latency classes, for each unit. `Tally::slower` counts latencies of one
/// second or more.
pub(super) const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Tally {
    pub(super) flows: [DirectionTally; 3],
    pub(super) sync: Times,
    pub(super) depth: Levels,
    pub(super) submitted: Levels,
    pub(super) completed: Levels,
    /// Number of I/Os in each latency class. The three arrays have the classes in nanoseconds,
    /// microseconds and milliseconds; `CLASSES` has the upper limits. `slower` has two more counts:
    /// I/Os of 1 to 2 seconds, and I/Os of 2 seconds or more.
    pub(super) classes: [[u64; 10]; 3],
    pub(super) slower: [u64; 2],
    pub(super) runtime_ns: u64,
    pub(super) usage: Usage,
    pub(super) errors: u64,
    pub(super) errno: i32,
    pub(super) first_error: Option<String>,
    pub(super) verified: u64,
    /// Largest queue depth that met `latency_target`. The flag is true if the search for the depth
    /// is complete.
    pub(super) depth_found: Option<(u32, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) switches: u64,
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
}

impl Usage {
    pub(super) fn since(self, before: Usage) -> Usage {
        self.with(before, |now, then| now - then)
    }

    fn with(self, other: Usage, of: fn(u64, u64) -> u64) -> Usage {
        Usage {
            user_us: of(self.user_us, other.user_us),
            system_us: of(self.system_us, other.system_us),
            switches: of(self.switches, other.switches),
            major_faults: of(self.major_faults, other.major_faults),
            minor_faults: of(self.minor_faults, other.minor_faults),
        }
    }
}

#[inline]
pub(super) fn level(depth: u32) -> usize {
    match depth {
        0 => 0,
        depth => (depth.ilog2() as usize + 1).min(7),
    }
}

impl Tally {
    #[inline]
    pub(super) fn done(&mut self, direction: usize, bytes: u32, (slat, clat): (u64, u64)) {
        let flow = &mut self.flows[direction];
        flow.bytes += u64::from(bytes);
        flow.ios += 1;
        flow.slat.add(slat);
        flow.clat.add(clat);
        let lat = slat + clat;
        flow.lat.add(lat);
        let (unit, value) = match lat {
            0..1_000 => (0, lat),
            1_000..1_000_000 => (1, lat / 1_000),
            _ => (2, lat / 1_000_000),
        };
        match CLASSES.iter().position(|end| value < *end) {
            Some(class) => self.classes[unit][class] += 1,
            None => self.slower[usize::from(value >= 2_000)] += 1,
        }
    }

    pub(super) fn check(&mut self, found: Result<(), String>) {
        match found {
            Ok(()) => self.verified += 1,
            Err(text) => {
                self.errors += 1;
                // Errno that fio reports for blocks that fail verification.
                self.errno = libc::EILSEQ;
                self.first_error.get_or_insert_with(|| format!("verify: {text}"));
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Tally) {
        self.flows.iter_mut().zip(&other.flows).for_each(|(mine, theirs)| mine.merge(theirs));
        self.sync.merge(&other.sync);
        let levels = [
            (&mut self.depth, &other.depth),
            (&mut self.submitted, &other.submitted),
            (&mut self.completed, &other.completed),
        ];
        for (mine, theirs) in levels {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
        let classes = self.classes.as_flattened_mut().iter_mut().chain(&mut self.slower);
        let theirs = other.classes.as_flattened().iter().chain(&other.slower);
        classes.zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        // Sum the jobs' run times: reports give the processor time as a fraction of this sum.
        self.runtime_ns += other.runtime_ns;
        self.usage = self.usage.with(other.usage, |mine, theirs| mine + theirs);
        self.errors += other.errors;
        self.verified += other.verified;
        self.depth_found = self.depth_found.into_iter().chain(other.depth_found).min();
        if self.errno == 0 {
            self.errno = other.errno;
        }
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_random::SplitMix64;

    #[test]
    fn a_spread_of_parts_is_that_of_the_whole() {
        let mut random = SplitMix64::new(1);
        let values: Vec<u64> = (0..1000).map(|_| random.below(1 << 20)).collect();
        let of = |values: &[u64]| {
            let mut spread = Spread::default();
            values.iter().for_each(|value| spread.add(*value));
            spread
        };
        let (whole, mut parts) = (of(&values), of(&values[..300]));
        parts.merge(&of(&values[300..]));
        assert_eq!((whole.count, whole.min, whole.max), (parts.count, parts.min, parts.max));
        assert!((whole.mean() - parts.mean()).abs() < 1e-6);
        assert!((whole.deviation() - parts.deviation()).abs() < 1e-6);
        let two = of(&[2, 4]);
        assert!((two.deviation() - 2f64.sqrt()).abs() < 1e-12, "of a sample, as in fio");
    }

    #[test]
    fn a_bucket_is_as_wide_as_a_sixty_fourth_of_its_octave() {
        for value in [0, 1, 63, 64, 127, 128, 1000, 27_000, 1 << 40, u64::MAX] {
            let mut buckets = Buckets::default();
            buckets.add(value);
            let (middle, count) = buckets.bins().next().expect("one value");
            assert_eq!(count, 1);
            assert!(middle.abs_diff(value) <= value / 128, "{value}: {middle}");
        }
    }

    #[test]
    fn percentiles_are_those_of_sorted_values() {
        let mut times = Times::default();
        (1..=10_000u64).for_each(|value| times.add(value));
        let found = times.buckets.percentiles(&[1.0, 50.0, 99.0, 100.0]);
        for (found, exact) in found.iter().zip([100u64, 5_000, 9_900, 10_000]) {
            assert!(found.abs_diff(exact) <= exact / 64, "{found} {exact}");
        }
        assert_eq!(Buckets::default().percentiles(&[50.0]), [0]);
    }

    #[test]
    fn depths_have_the_levels_of_fio() {
        let levels: Vec<_> = [0, 1, 2, 3, 4, 31, 32, 63, 64, 9999].map(level).to_vec();
        assert_eq!(levels, [0, 1, 2, 2, 3, 5, 6, 6, 7, 7]);
    }
}
