//! Chooses the blocks of random I/Os: by a distribution, or each block once.
//!
//! `Distribution` is the setting of a job file: uniform, Zipf, Pareto, normal or zoned.
//! `BlockSequence` draws blocks by the distribution. `Map` has a bit for each block, and finds a
//! block that had no I/O yet. `source` calls this file.
//!
//! Ranks of the Zipf distribution are drawn exactly, for every exponent. A bijection then spreads
//! the ranks of Zipf and Pareto over the blocks, so that hot blocks are not neighbours. fio spreads
//! the ranks with a hash, which lets some ranks share a block.
//!
//! Sources: Hoermann and Derflinger, "Rejection-inversion to generate variates from monotone
//! discrete distributions", ACM TOMACS 6 (3), 1996; Box and Muller, "A note on the generation of
//! random normal deviates", 1958; Pareto's rule in the form of fio's manual: with `pareto:h`, the
//! fraction h of the blocks gets the fraction 1 - h of the I/Os.

use millrace_random::SplitMix64;

use super::value::float;

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Distribution {
    #[default]
    Uniform,
    /// Zipf: the probability of the i-th hottest block is proportional to i^-theta. Fields: theta,
    /// and the position of the hottest block as a fraction of the blocks.
    Zipf(f64, Option<f64>),
    /// Pareto distribution. Fields: the fraction h (`pareto:h` in fio), and the position of the
    /// hottest block as a fraction of the blocks.
    Pareto(f64, Option<f64>),
    /// Normal distribution. Fields: standard deviation in percent of all blocks, and the centre as
    /// a fraction of the blocks.
    Normal(f64, Option<f64>),
    /// Zones of the region in order. Fields of a zone: cumulative percentage of the I/Os, and
    /// cumulative percentage of the blocks, up to the end of the zone.
    Zoned(Vec<(u32, u32)>),
}

pub(super) fn distribution(text: &str) -> Result<Distribution, String> {
    if let Some(parts) = text.strip_prefix("zoned:") {
        return zoned(parts);
    }
    let mut parts = text.split(':').map(str::trim);
    let name = parts.next().unwrap_or("");
    let first = parts.next().map(float).transpose()?;
    let center = parts.next().map(float).transpose()?;
    if parts.next().is_some() || center.is_some_and(|center| !(0.0..=1.0).contains(&center)) {
        return Err(format!(
            "{text:?}: write, for example, zipf:1.2 or zipf:1.2:0.5, with a centre from 0 to 1"
        ));
    }
    match (name, first) {
        ("random", None) => Ok(Distribution::Uniform),
        ("zipf", Some(theta)) if theta > 0.0 && theta <= 100.0 => {
            Ok(Distribution::Zipf(theta, center))
        }
        ("pareto", Some(h)) if h > 0.0 && h < 1.0 => Ok(Distribution::Pareto(h, center)),
        ("normal", Some(dev)) if dev > 0.0 && dev <= 100.0 => Ok(Distribution::Normal(dev, center)),
        ("zoned_abs", _) => Err(format!(
            "{text:?}: write zoned:ACCESS/SIZE:... with sizes in percent instead of zoned_abs"
        )),
        _ => Err(format!(
            "{text:?}: write random, zipf:THETA (above 0), pareto:H (between 0 and 1), \
             normal:DEVIATION (above 0, up to 100) or zoned:ACCESS/SIZE:..."
        )),
    }
}

/// Parses fio's `zoned` distribution of one direction, such as `60/10:30/20:10/`. Zones without a
/// size share the remaining blocks. Blocks after the last zone get no I/Os.
fn zoned(text: &str) -> Result<Distribution, String> {
    let wrong = || {
        format!(
            "{text:?}: write zoned:ACCESS/SIZE:..., where accesses add up to 100 % and sizes to at most 100 %"
        )
    };
    let mut zones = Vec::new();
    for part in text.split(':').map(str::trim).take_while(|part| !part.is_empty()) {
        let (access, size) = part.split_once('/').unwrap_or((part, ""));
        let percent = |text: &str| text.trim().parse::<u32>().ok().filter(|part| *part <= 100);
        let size = match size.trim() {
            "" | "0" => None,
            size => Some(percent(size).ok_or_else(wrong)?),
        };
        zones.push((percent(access).ok_or_else(wrong)?, size));
    }
    let accesses: u32 = zones.iter().map(|(access, _)| access).sum();
    let given: u32 = zones.iter().filter_map(|(_, size)| *size).sum();
    let open = zones.iter().filter(|(_, size)| size.is_none()).count() as u32;
    if accesses != 100 || given > 100 {
        return Err(wrong());
    }
    let left = (100 - given) / open.max(1);
    let (mut access_to, mut size_to) = (0, 0);
    let sums = zones.into_iter().map(|(access, size)| {
        (access_to, size_to) = (access_to + access, size_to + size.unwrap_or(left));
        (access_to, size_to)
    });
    Ok(Distribution::Zoned(sums.collect()))
}

#[derive(Debug, Clone)]
pub(super) struct BlockSequence {
    kind: Kind,
    blocks: u64,
    spread: ScatteredBlocks,
}

#[derive(Debug, Clone)]
enum Kind {
    Uniform,
    Zipf(Zipf),
    /// Pareto distribution. The exponent is computed from the job file's parameter h.
    Pareto(f64),
    /// Normal distribution: centre and deviation, in blocks.
    Normal(f64, f64),
    Zoned(Vec<(u32, u32)>),
}

impl BlockSequence {
    pub(super) fn new(of: Distribution, blocks: u64, random: &mut SplitMix64) -> BlockSequence {
        let mut at = |center: Option<f64>| match center {
            Some(center) => (center * blocks as f64) as u64 % blocks,
            None => random.below(blocks),
        };
        let (kind, first) = match of {
            Distribution::Uniform => (Kind::Uniform, 0),
            Distribution::Zipf(theta, center) => (Kind::Zipf(Zipf::new(theta, blocks)), at(center)),
            Distribution::Pareto(h, center) => (Kind::Pareto(h.ln() / (1.0 - h).ln()), at(center)),
            Distribution::Normal(dev, center) => {
                let center = center.unwrap_or(0.5) * blocks as f64;
                (Kind::Normal(center, (dev / 100.0 * blocks as f64).max(0.5)), 0)
            }
            Distribution::Zoned(zones) => (Kind::Zoned(zones), 0),
        };
        BlockSequence { kind, blocks, spread: ScatteredBlocks::new(blocks, first) }
    }

    pub(super) fn draw(&self, random: &mut SplitMix64) -> u64 {
        match &self.kind {
            Kind::Uniform => ((u128::from(random.next()) * u128::from(self.blocks)) >> 64) as u64,
            Kind::Zipf(zipf) => self.spread.place(zipf.draw(random) - 1),
            Kind::Pareto(power) => {
                let at = random.fraction().powf(*power) * self.blocks as f64;
                self.spread.place((at as u64).min(self.blocks - 1))
            }
            Kind::Normal(center, deviation) => self.normal(random, *center, *deviation),
            Kind::Zoned(zones) => {
                let drawn = random.below(100) as u32;
                let zone = zones.iter().position(|(access_to, _)| drawn < *access_to).unwrap_or(0);
                let begin = if zone == 0 { 0 } else { zones[zone - 1].1 };
                let at =
                    |percent: u32| (u128::from(self.blocks) * u128::from(percent) / 100) as u64;
                let (first, end) = (at(begin), at(zones[zone].1));
                (first + random.below((end - first).max(1))).min(self.blocks - 1)
            }
        }
    }

    /// Draws a block by the normal distribution. Draws again if the block lies outside the region.
    fn normal(&self, random: &mut SplitMix64, center: f64, deviation: f64) -> u64 {
        loop {
            let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
            let angle = std::f64::consts::TAU * random.fraction();
            let block = (center + deviation * radius * angle.cos()).floor();
            if block >= 0.0 && block < self.blocks as f64 {
                return block as u64;
            }
        }
    }
}

/// Maps hotness rank to block number, one to one. The hottest block (rank 0) is block `first`;
/// blocks of similar hotness lie far apart.
#[derive(Debug, Clone)]
struct ScatteredBlocks {
    step: u64,
    first: u64,
    blocks: u64,
}

impl ScatteredBlocks {
    fn new(blocks: u64, first: u64) -> ScatteredBlocks {
        // Consecutive ranks lie `step` blocks apart. A step near 0.618 times `blocks` (golden
        // ratio) scatters the hot blocks evenly. If `step` and `blocks` have no common divisor,
        // each block gets exactly one rank.
        let golden = (blocks as f64 * 0.618_033_988_749_895) as u64;
        let step = (golden.max(1)..).find(|step| divisor(*step, blocks) == 1).unwrap_or(1);
        ScatteredBlocks { step, first, blocks }
    }

    fn place(&self, rank: u64) -> u64 {
        let far = u128::from(rank) * u128::from(self.step) + u128::from(self.first);
        (far % u128::from(self.blocks)) as u64
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Draws ranks from 1 by Zipf's distribution: the probability of rank i is proportional to
/// i^-theta. The method is rejection-inversion.
#[derive(Debug, Clone)]
struct Zipf {
    theta: f64,
    count: f64,
    /// Range of the uniform random numbers from which ranks are drawn. For a random number, `draw`
    /// finds the x for which the integral of t^-theta from t = 1 to x equals the number. The rank
    /// is x, rounded to an integer.
    begin: f64,
    end: f64,
    /// If the rank is at most this much larger than x, `draw` accepts the rank without the
    /// rejection test.
    near: f64,
}

impl Zipf {
    fn new(theta: f64, count: u64) -> Zipf {
        let mut zipf = Zipf { theta, count: count as f64, begin: 0.0, end: 0.0, near: 0.0 };
        zipf.begin = zipf.integral(1.5) - 1.0;
        zipf.end = zipf.integral(zipf.count + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-theta));
        zipf
    }

    /// Returns the integral of x^-theta from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.theta;
        match power.abs() < 1e-9 {
            true => x.ln(),
            false => (power * x.ln()).exp_m1() / power,
        }
    }

    fn inverse(&self, integral: f64) -> f64 {
        let power = 1.0 - self.theta;
        match power.abs() < 1e-9 {
            true => integral.exp(),
            false => ((power * integral).max(-1.0).ln_1p() / power).exp(),
        }
    }

    fn draw(&self, random: &mut SplitMix64) -> u64 {
        loop {
            let at = self.end + random.fraction() * (self.begin - self.end);
            let x = self.inverse(at);
            let rank = x.round().clamp(1.0, self.count);
            let is_in =
                rank - x <= self.near || at >= self.integral(rank + 0.5) - rank.powf(-self.theta);
            if is_in {
                return rank as u64;
            }
        }
    }
}

/// Bitmap of free blocks, with summary levels for a fast search.
#[derive(Debug, Clone)]
pub(super) struct Map {
    /// Level 0 has a bit for each block, set if the block is free. Each higher level has a bit for
    /// each word of the level below, set if the word is not 0.
    levels: Vec<Vec<u64>>,
    blocks: u64,
}

impl Map {
    pub(super) fn new(blocks: u64) -> Map {
        let mut levels = Vec::new();
        let mut bits = blocks;
        loop {
            let words = bits.div_ceil(64);
            let mut level = vec![u64::MAX; words as usize];
            if let Some(last) = level.last_mut().filter(|_| !bits.is_multiple_of(64)) {
                *last = (1 << (bits % 64)) - 1;
            }
            levels.push(level);
            if words <= 1 {
                return Map { levels, blocks };
            }
            bits = words;
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn is_free(&self, block: u64) -> bool {
        block < self.blocks && self.levels[0][(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Returns the first free block at or after `block`, or else the first free block of all;
    /// `None` if no block is free.
    pub(super) fn free_from(&self, block: u64) -> Option<u64> {
        self.search(block).or_else(|| self.search(0))
    }

    fn search(&self, block: u64) -> Option<u64> {
        let (mut level, mut bit) = (0, block);
        loop {
            let word = (bit / 64) as usize;
            let left =
                self.levels[level].get(word).map_or(0, |bits| bits & (u64::MAX << (bit % 64)));
            if left != 0 {
                let mut found = (word as u64) * 64 + u64::from(left.trailing_zeros());
                for below in self.levels[..level].iter().rev() {
                    found = found * 64 + u64::from(below[found as usize].trailing_zeros());
                }
                return Some(found);
            }
            // No bit is set in the rest of this word. Continue in the next level, which has a bit
            // for each of the following words.
            level += 1;
            if level == self.levels.len() {
                return None;
            }
            bit = word as u64 + 1;
        }
    }

    pub(super) fn take(&mut self, block: u64) {
        let mut bit = block;
        for level in &mut self.levels {
            let word = &mut level[(bit / 64) as usize];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                break;
            }
            bit /= 64;
        }
    }
}

#[cfg(test)]
#[path = "block_distribution/tests.rs"]
mod tests;
