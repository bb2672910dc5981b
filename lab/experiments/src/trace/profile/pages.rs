//! `PageSketch`: estimates the number of distinct pages touched, in 16 KiB of memory, with an error
//! of 0.8 %.
//!
//! A HyperLogLog of 16,384 registers over 64-bit hashes; the standard error is 1.04 / 128. The
//! existing crates are unmaintained, or need tables to correct small counts; the estimator here
//! needs no tables, and is off by about one page at most while pages are few.
//!
//! Source: Flajolet et al., "HyperLogLog", AofA '07; Ertl, "New cardinality estimation algorithms
//! for HyperLogLog sketches", 2017, algorithm 6.

use millrace_random::mixed;

pub(super) const PAGE_BYTES: u64 = 4_096;
/// Number of bits of a page's hash that select the HyperLogLog register.
const CHOOSING: u32 = 14;
const REGISTERS: usize = 1 << CHOOSING;
const RANK_MAX: usize = 65 - CHOOSING as usize;

#[derive(Debug, Clone)]
pub(super) struct PageSketch {
    ranks: Box<[u8]>,
}

impl Default for PageSketch {
    fn default() -> PageSketch {
        PageSketch { ranks: vec![0; REGISTERS].into() }
    }
}

impl PageSketch {
    pub(super) fn add(&mut self, device: u32, page: u64) {
        let hash = mixed(mixed(u64::from(device)) ^ page);
        let register = (hash >> (64 - CHOOSING)) as usize;
        let rank = ((hash << CHOOSING).leading_zeros() + 1).min(RANK_MAX as u32) as u8;
        self.ranks[register] = self.ranks[register].max(rank);
    }

    pub(super) fn with(&self, other: &PageSketch) -> PageSketch {
        let ranks = self.ranks.iter().zip(&other.ranks).map(|(one, other)| *one.max(other));
        PageSketch { ranks: ranks.collect() }
    }

    pub(super) fn count(&self) -> f64 {
        let mut counts = [0_u32; RANK_MAX + 1];
        self.ranks.iter().for_each(|rank| counts[usize::from(*rank)] += 1);
        let all = REGISTERS as f64;
        if f64::from(counts[0]) == all {
            return 0.0;
        }
        let mut sum = all * tau(1.0 - f64::from(counts[RANK_MAX]) / all);
        for count in counts[1..RANK_MAX].iter().rev() {
            sum = 0.5 * (sum + f64::from(*count));
        }
        sum += all * sigma(f64::from(counts[0]) / all);
        all * all / (2.0 * std::f64::consts::LN_2 * sum)
    }
}

/// Returns Ertl's correction of the HyperLogLog estimate for empty registers. `share` is the
/// fraction of registers that are empty, below 1.
fn sigma(mut share: f64) -> f64 {
    let (mut factor, mut sum) = (1.0, share);
    loop {
        share *= share;
        let before = sum;
        sum += share * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

/// Returns Ertl's correction of the HyperLogLog estimate for registers at their maximum. `share` is
/// the fraction of registers below their maximum.
fn tau(mut share: f64) -> f64 {
    if share == 0.0 || share == 1.0 {
        return 0.0;
    }
    let (mut factor, mut sum) = (1.0, 1.0 - share);
    loop {
        share = share.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - share).powi(2) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_within_three_errors_from_one_page_to_ten_million() {
        let mut sketch = PageSketch::default();
        let mut touched = 0_u64;
        for goal in [0, 1, 5, 100, 10_000, 40_000, 80_000, 1_000_000, 10_000_000] {
            while touched < goal {
                sketch.add((touched % 3) as u32, touched / 3);
                // Touched again: not counted again.
                sketch.add(0, touched / 9);
                touched += 1;
            }
            let off = (sketch.count() - goal as f64).abs();
            assert!(off <= 0.5 + goal as f64 * 3.0 * 0.0081, "{goal}: {}", sketch.count());
        }
    }

    #[test]
    fn what_either_has_seen_is_counted_once() {
        let (mut one, mut other) = (PageSketch::default(), PageSketch::default());
        (0..60).for_each(|page| one.add(0, page));
        (40..100).for_each(|page| other.add(0, page));
        assert_eq!(one.with(&other).count().round(), 100.0);
    }
}
