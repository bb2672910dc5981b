//! `Random`: the only source of chance in a scenario: SplitMix64, from a seed.
//!
//! Called by everything in `explore` that decides something. A seed gives equal numbers in every
//! build, so a scenario is a pure function of its seed.

use millrace_random::SplitMix64;

/// An odd number, so that streams of one seed start apart from each other.
const STREAM: u64 = 0xd605_1d4b_2af3_8e55;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(SplitMix64);

impl Random {
    /// The stream number `stream` of a seed; streams of one seed have nothing in common.
    pub(super) fn new(seed: u64, stream: u64) -> Random {
        let mut random = SplitMix64::new(seed ^ stream.wrapping_mul(STREAM));
        random.next();
        Random(SplitMix64::new(random.next()))
    }

    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end`, which is above 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number from `least` to `most`, both included.
    pub(super) fn within(&mut self, least: u32, most: u32) -> u32 {
        least + self.below(u64::from(most.saturating_sub(least)) + 1) as u32
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// True so many times of a thousand.
    pub(super) fn per_mille(&mut self, chance: u32) -> bool {
        chance > 0 && self.below(1_000) < u64::from(chance)
    }
}
