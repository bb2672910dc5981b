//! `Workload`: kind, size and number of a job's I/Os, in fio's terms, and the generator of their
//! offsets.
//!
//! The command line or an experiment creates a workload, which is plain data; job.rs reads it.
//! Random offsets come from a seeded xorshift generator, so a run can be repeated. A block may be
//! drawn again before all blocks were drawn, as with fio's norandommap.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use std::fmt;
use std::str::FromStr;

use millrace_block::Op;
use millrace_random::{SplitMix64, XorShift64};

/// Kind of I/O, by fio's names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rw {
    #[default]
    Read,
    Write,
    RandRead,
    RandWrite,
    RandRw {
        read_percent: u8,
    },
}

impl Rw {
    /// Random reads and writes, half of each: the meaning of `randrw` without a percentage.
    pub const HALF: Rw = Rw::RandRw { read_percent: 50 };

    const NAMES: [(Rw, &'static str); 5] = [
        (Rw::Read, "read"),
        (Rw::Write, "write"),
        (Rw::RandRead, "randread"),
        (Rw::RandWrite, "randwrite"),
        (Rw::HALF, "randrw"),
    ];

    /// Returns fio's name.
    pub fn name(self) -> &'static str {
        let named = if matches!(self, Rw::RandRw { .. }) { Rw::HALF } else { self };
        Rw::NAMES.iter().find(|(rw, _)| *rw == named).map_or("", |(_, name)| name)
    }

    /// Returns the percentage of reads of `randrw`; `None` for other kinds.
    pub fn read_percent(self) -> Option<u8> {
        match self {
            Rw::RandRw { read_percent } => Some(read_percent),
            _ => None,
        }
    }

    /// Returns true for I/Os at ascending offsets, false for I/Os at random offsets.
    pub fn is_sequential(self) -> bool {
        matches!(self, Rw::Read | Rw::Write)
    }

    /// Returns true if some I/Os are writes.
    pub fn writes(self) -> bool {
        !matches!(self, Rw::Read | Rw::RandRead | Rw::RandRw { read_percent: 100 })
    }
}

macro_rules! text_by_words {
    ($kind:ty) => {
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<$kind, String> {
                let names: Vec<&str> = <$kind>::WORDS.iter().map(|(_, name)| *name).collect();
                <$kind>::from_word(text).ok_or_else(|| format!("one of {}", names.join(", ")))
            }
        }
    };
}
pub(crate) use text_by_words;

impl fmt::Display for Rw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Rw {
    type Err = String;

    fn from_str(text: &str) -> Result<Rw, String> {
        let found = Rw::NAMES.iter().find(|(_, name)| *name == text);
        let names = Rw::NAMES.map(|(_, name)| name).join(", ");
        found.map(|(rw, _)| *rw).ok_or_else(|| format!("rw={text}: one of {names}"))
    }
}

/// Workload of each job of a measured configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Kind of I/O.
    pub rw: Rw,
    /// Size of an I/O in bytes: a multiple of 512.
    pub bs_bytes: u32,
    /// Number of I/Os in flight, 1 or more.
    pub iodepth: u32,
    /// If true, writes carry a pattern that is read back and checked at the end.
    pub verify: bool,
    /// Seed of the random offsets.
    pub seed: u64,
}

/// Generator of the offsets of one job's I/Os, in units of the I/O size.
#[derive(Debug, Clone)]
pub struct Offsets {
    random: XorShift64,
    next: u64,
    first: u64,
    blocks: u64,
    rw: Rw,
}

impl Offsets {
    /// Creates the generator for job `job` (from 0) of `jobs` jobs, on a device of `blocks` blocks.
    /// Random offsets cover the whole device. With sequential I/O or `verify`, offsets cover only
    /// the job's own part of the device.
    pub fn new(workload: &Workload, blocks: u64, (job, jobs): (u64, u64)) -> Self {
        let share = (blocks / jobs).max(1);
        let whole = !workload.verify && !workload.rw.is_sequential();
        let (first, count) = if whole { (0, blocks) } else { (job * share % blocks, share) };
        let state = (workload.seed + 1).wrapping_mul(SplitMix64::STEP) ^ (job << 32 | 1);
        Offsets {
            random: XorShift64::new(state),
            next: 0,
            first,
            blocks: count.max(1),
            rw: workload.rw,
        }
    }

    /// Returns the next block, and the operation on this block.
    #[inline]
    pub fn next_io(&mut self) -> (u64, Op) {
        if self.rw == Rw::RandRead {
            // Test for random reads first, the most common kind of I/O.
            return (self.first + self.draw().1, Op::Read);
        }
        if self.rw.is_sequential() {
            let block = self.first + self.next;
            self.next = if self.next + 1 == self.blocks { 0 } else { self.next + 1 };
            let op = if self.rw == Rw::Read { Op::Read } else { Op::Write };
            return (block, op);
        }
        let (drawn, block) = self.draw();
        let op = match self.rw {
            // `draw` chooses the block by the high bits of `drawn`, so choose the operation by the
            // low bits.
            Rw::RandRw { read_percent } if part(drawn, 100) < read_percent.into() => Op::Read,
            _ => Op::Write,
        };
        (self.first + block, op)
    }

    /// Draws a random number. Returns the number, and the block selected by its high bits.
    #[inline]
    fn draw(&mut self) -> (u64, u64) {
        let drawn = self.random.next();
        (drawn, ((u128::from(drawn) * u128::from(self.blocks)) >> 64) as u64)
    }
}

#[inline]
fn part(random: u64, count: u64) -> u64 {
    ((random & u64::from(u32::MAX)) * count) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_themselves() {
        for (rw, name) in Rw::NAMES {
            assert_eq!((name.parse(), rw.to_string()), (Ok(rw), name.to_string()));
        }
        assert!("randwrit".parse::<Rw>().is_err());
    }

    #[test]
    fn sequential_jobs_keep_to_their_own_shares() {
        let workload =
            Workload { rw: Rw::Write, bs_bytes: 4096, iodepth: 1, verify: false, seed: 1 };
        let mut second = Offsets::new(&workload, 10, (1, 2));
        let blocks: Vec<u64> = (0..6).map(|_| second.next_io().0).collect();
        assert_eq!(blocks, [5, 6, 7, 8, 9, 5]);
    }

    #[test]
    fn random_offsets_stay_inside_and_spread() {
        let workload =
            Workload { rw: Rw::RandRead, bs_bytes: 512, iodepth: 1, verify: false, seed: 7 };
        let mut offsets = Offsets::new(&workload, 16, (0, 1));
        let mut seen = [0u32; 16];
        (0..16_000).for_each(|_| seen[offsets.next_io().0 as usize] += 1);
        assert!(seen.iter().all(|n| (700..1300).contains(n)), "{seen:?}");
    }

    #[test]
    fn a_mix_has_as_many_reads_as_it_says() {
        for read_percent in [0, 1, 30, 50, 100] {
            let rw = Rw::RandRw { read_percent };
            let workload = Workload { rw, bs_bytes: 512, iodepth: 1, verify: false, seed: 7 };
            let mut offsets = Offsets::new(&workload, 1024, (0, 1));
            let ops = (0..20_000).map(|_| offsets.next_io().1);
            let reads = ops.filter(|op| *op == Op::Read).count() as f64 / 200.0;
            let off = (reads - f64::from(read_percent)).abs();
            let exact = matches!(read_percent, 0 | 100);
            assert!(if exact { off == 0.0 } else { off < 1.0 }, "{read_percent}: {reads}");
            assert_eq!(rw.writes(), reads < 100.0, "{read_percent}");
        }
    }
}
