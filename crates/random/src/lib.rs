//! Pseudorandom numbers: the same seed gives the same numbers in every build.
//!
//! The numbers are not fit for secrets.

#![doc = include_str!("../README.md")]
#![no_std]

/// SplitMix64 generator: one word of state; any seed is as good as another.
///
/// # Source
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; the
/// constants are those of Vigna's `splitmix64.c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Increment of the state: 2^64 divided by the golden ratio. It is odd, so the state takes
    /// every value.
    pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates a generator from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// Returns the next number.
    #[inline]
    #[allow(clippy::should_implement_trait)] // An iterator would wrap each number in an option.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        mixed(self.0)
    }

    /// Returns a number from 0 to `end` - 1. `end` must be above 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from 0 to below 1, in steps of 2^-53.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Hashes a number with the finaliser of [`SplitMix64`], a bijection.
#[inline]
#[must_use]
pub const fn mixed(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Xorshift64 generator: cheaper than [`SplitMix64`], so that a benchmark's random numbers add
/// little to the measured time.
///
/// # Source
/// Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8 (14), 2003.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XorShift64(u64);

impl XorShift64 {
    /// Creates a generator with the state `state | 1`, because a state of 0 would stay 0.
    #[must_use]
    pub const fn new(state: u64) -> XorShift64 {
        XorShift64(state | 1)
    }

    /// Creates a generator from a seed. Neighbouring seeds start far from each other.
    #[must_use]
    pub const fn of_seed(seed: u64) -> XorShift64 {
        XorShift64::new(seed.wrapping_mul(SplitMix64::STEP))
    }

    /// Returns the next number.
    #[inline]
    #[allow(clippy::should_implement_trait)] // An iterator would wrap each number in an option.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_the_published_numbers() {
        // Of Vigna's `splitmix64.c`, seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        let numbers = [random.next(), random.next(), random.next()];
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers, published);
    }

    #[test]
    fn numbers_stay_below_their_ends() {
        let mut random = SplitMix64::new(0);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.fraction())));
    }

    #[test]
    fn xorshift_never_stands_still() {
        let mut random = XorShift64::new(0);
        assert_eq!([random.next(), random.next()], [0x4082_2041, 0x1000_4106_0c01_1441]);
        assert_ne!(XorShift64::of_seed(1).next(), XorShift64::of_seed(2).next());
    }
}
