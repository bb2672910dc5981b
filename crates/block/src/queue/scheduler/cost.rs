//! `CostModel`: what an I/O costs a drive, as if it did nothing else: a base and a price per byte.
//!
//! Part of a disk's settings, measured by `millrace bench --calibrate`; `fair` shares by it. Only
//! ratios matter. Kernel counterpart: `struct ioc_params`, the coefficients of `io.cost.model`.

use crate::bio::{Op, Sector, SectorCount};

/// What reads, or writes, cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpCost {
    /// For each that does not begin where the last one ended, in nanoseconds.
    pub random_ns: u32,
    /// For each that does, in nanoseconds.
    pub sequential_ns: u32,
    /// For each byte, in picoseconds.
    pub byte_ps: u32,
}

/// What I/Os cost a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostModel {
    /// Reads.
    pub read: OpCost,
    /// Writes; discards and writes of zeroes cost their base.
    pub write: OpCost,
}

impl Default for CostModel {
    /// A drive of the SATA class: 100,000 I/Os or 500 MB a second, reading or writing.
    fn default() -> Self {
        let op = OpCost { random_ns: 10_000, sequential_ns: 10_000, byte_ps: 2_000 };
        CostModel { read: op, write: op }
    }
}

impl CostModel {
    /// What an I/O costs, in nanoseconds, 1 or more; `last_end` is where the last one of its group
    /// ended.
    #[inline]
    #[must_use]
    pub fn of(&self, op: Op, (sector, sectors): (Sector, SectorCount), last_end: Sector) -> u64 {
        let cost = if op == Op::Read { &self.read } else { &self.write };
        let base_ns = if sector == last_end { cost.sequential_ns } else { cost.random_ns };
        let bytes = if op.has_data() { u64::from(sectors) << 9 } else { 0 };
        // 2^32 sectors of 512 bytes at 2^32 ps are more than 64 bits: no request is that long.
        let moved_ns = bytes.min(1 << 31) * u64::from(cost.byte_ps) / 1_000;
        (u64::from(base_ns) + moved_ns).max(1)
    }
}
