//! `RateLimit`: computes the time at which the next I/O of a direction may be issued, from `rate`
//! and `rate_iops`.
//!
//! As in fio, an I/O may be issued when the job, at the given rate, would have issued all bytes
//! before it. So a job that fell behind issues I/Os without a delay until it has caught up. With
//! `rate_process=poisson` the intervals between I/Os are random, with an exponential distribution.
//! `worker` uses this file.

use millrace_random::SplitMix64;

use super::spec::JobSpec;

#[derive(Debug, Clone)]
pub(super) struct RateLimit {
    rates: [Option<Rate>; 3],
    random: SplitMix64,
    poisson: bool,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    bytes_per_s: u64,
    begin_ns: u64,
    issued: u64,
    due_ns: u64,
}

impl RateLimit {
    pub(super) fn new(job: &JobSpec, now_ns: u64, seed: u64) -> RateLimit {
        let rate = |direction: usize| {
            // As in fio, convert `rate_iops` to bytes per second by the size of the smallest I/O.
            let least = u64::from(job.shape.sizes[direction].least());
            let by_ios = job.flow.rate_iops[direction].map(|iops| iops.saturating_mul(least));
            let bytes_per_s = by_ios.or(job.flow.rate[direction])?;
            Some(Rate { bytes_per_s, begin_ns: now_ns, issued: 0, due_ns: now_ns })
        };
        let rates = [0, 1, 2].map(rate);
        RateLimit { rates, random: SplitMix64::new(seed), poisson: job.flow.poisson }
    }

    /// Returns the time at which the next I/O of a direction may be issued; 0 for any time.
    pub(super) fn due_ns(&self, direction: usize) -> u64 {
        self.rates[direction].map_or(0, |rate| rate.due_ns)
    }

    pub(super) fn issued(&mut self, direction: usize, bytes: u32) {
        let Some(rate) = &mut self.rates[direction] else { return };
        rate.issued += u64::from(bytes);
        let time_ns = |bytes: u64| {
            let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.bytes_per_s.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        rate.due_ns = match self.poisson {
            true => {
                let share = -(1.0 - self.random.fraction()).ln();
                rate.due_ns.saturating_add((time_ns(bytes.into()) as f64 * share) as u64)
            }
            false => rate.begin_ns.saturating_add(time_ns(rate.issued)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::MemoryFiles;
    use super::super::spec::JobFile;
    use super::*;

    fn pace(words: &str) -> RateLimit {
        let text = format!("[j]\n{}\n", words.replace(' ', "\n"));
        let file = JobFile::parse("t.fio", text.as_bytes(), &MemoryFiles(&[])).unwrap();
        RateLimit::new(&file.jobs[0], 1_000, 3)
    }

    #[test]
    fn an_io_is_due_when_all_before_it_would_have_gone() {
        let mut pace = pace("bs=4k rate_iops=1000,500");
        assert_eq!((pace.due_ns(0), pace.due_ns(1)), (1_000, 1_000));
        (0..3).for_each(|_| pace.issued(0, 4096));
        pace.issued(1, 4096);
        assert_eq!((pace.due_ns(0), pace.due_ns(1)), (3_001_000, 2_001_000));
        let mut bytes = self::pace("rate=1m,");
        bytes.issued(0, 1 << 20);
        bytes.issued(1, 1 << 20);
        assert_eq!((bytes.due_ns(0), bytes.due_ns(1)), (1_000_001_000, 0));
    }

    #[test]
    fn poisson_times_have_exponential_mean_and_deviation() {
        let mut pace = pace("bs=4k rate_iops=1000 rate_process=poisson");
        let mut gaps = Vec::new();
        for _ in 0..20_000 {
            let before = pace.due_ns(0);
            pace.issued(0, 4096);
            gaps.push((pace.due_ns(0) - before) as f64 / 1e6);
        }
        let mean = gaps.iter().sum::<f64>() / 20_000.0;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.03 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
    }
}
