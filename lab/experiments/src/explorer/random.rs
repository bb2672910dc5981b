//! `Random`: the only source of randomness in a scenario, a SplitMix64 generator.
//!
//! A seed gives the same numbers in every build, so a scenario is a pure function of its seed.

use millrace_random::SplitMix64;

/// Factor for stream numbers. A generator starts from the seed, XORed with the product. An odd
/// factor gives each stream of a seed a different start.
const STREAM: u64 = 0xd605_1d4b_2af3_8e55;

#[derive(Debug, Clone)]
pub(super) struct Random(SplitMix64);

impl Random {
    /// Creates stream number `stream` of a seed. Streams are independent: draws from one stream do
    /// not change the numbers of another.
    pub(super) fn new(seed: u64, stream: u64) -> Random {
        let mut random = SplitMix64::new(seed ^ stream.wrapping_mul(STREAM));
        random.next();
        Random(SplitMix64::new(random.next()))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number in `0..end`; `end` must be above 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn within(&mut self, least: u32, most: u32) -> u32 {
        least + self.below(u64::from(most.saturating_sub(least)) + 1) as u32
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    pub(super) fn per_mille(&mut self, chance: u32) -> bool {
        chance > 0 && self.below(1_000) < u64::from(chance)
    }
}
