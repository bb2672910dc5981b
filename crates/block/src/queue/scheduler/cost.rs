//! `CostModel`: estimates the time for which one I/O occupies an idle drive.
//!
//! An I/O costs a base time, plus a time for each byte. The model is part of a disk's settings,
//! derived from rates that `millrace-lab bench --calibrate` measures. The schedulers `fair` and
//! `latency` use it to divide the drive's time among groups; only the ratios of costs matter.
//! Kernel counterpart: `struct ioc_params`, the coefficients of `io.cost.model`.

use crate::bio::{Op, Sector, SectorCount};

/// Measured rates of a drive for reads or writes alone, with enough requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpRates {
    /// Rate of random 4 KiB I/Os, in I/Os per second; at least 1.
    pub random_iops: u64,
    /// Rate of sequential 4 KiB I/Os, each sent as one request, in I/Os per second; at least 1.
    pub sequential_iops: u64,
    /// Rate at which large sequential I/Os transfer data, in bytes per second; at least 4,096.
    pub bytes_per_s: u64,
}

/// Costs of a drive's reads, or of its writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpCost {
    /// Base cost in nanoseconds of an I/O that does not start at the sector where the previous I/O
    /// ended.
    pub random_ns: u32,
    /// Base cost in nanoseconds of an I/O that starts at the sector where the previous I/O ended.
    pub sequential_ns: u32,
    /// Cost of each byte, in picoseconds.
    pub byte_ps: u32,
}

impl OpCost {
    /// Computes costs from measured rates. The cost of a byte is the time that a byte takes in
    /// large sequential I/Os. A base cost is the time of a 4 KiB I/O minus the cost of its bytes,
    /// but not below 0.
    ///
    /// # Source
    /// `calc_lcoefs` of the kernel's block/blk-iocost.c.
    #[must_use]
    pub fn from_rates(rates: &OpRates) -> OpCost {
        let least = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let byte_ps = 1_000_000_000_000 / rates.bytes_per_s.max(1);
        let base_ns = |iops: u64| {
            let each_ps = 1_000_000_000_000 / iops.max(1);
            least(each_ps.saturating_sub(byte_ps.saturating_mul(4_096)) / 1_000)
        };
        OpCost {
            random_ns: base_ns(rates.random_iops),
            sequential_ns: base_ns(rates.sequential_iops),
            byte_ps: least(byte_ps),
        }
    }

    /// Returns the cost in nanoseconds, at least 1, of a random I/O of `bytes` bytes.
    pub(crate) fn of_bytes(&self, bytes: u64) -> u64 {
        (u64::from(self.random_ns) + bytes * u64::from(self.byte_ps) / 1_000).max(1)
    }
}

/// Costs of a drive's reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostModel {
    /// Cost of reads.
    pub read: OpCost,
    /// Cost of writes, discards and write-zeroes. Discards and write-zeroes transfer no data, so
    /// they cost only the base cost.
    pub write: OpCost,
}

impl Default for CostModel {
    /// Returns the model of a SATA-class drive. Each second, the drive does 100,000 I/Os of 4 KiB,
    /// or transfers 500 MB in large I/Os. Reads and writes cost the same.
    fn default() -> Self {
        // A 4 KiB I/O costs 1,808 ns plus 8,192 ns for its bytes: 100,000 I/Os a second.
        let op = OpCost { random_ns: 1_808, sequential_ns: 1_808, byte_ps: 2_000 };
        CostModel { read: op, write: op }
    }
}

impl CostModel {
    /// Returns the cost of an I/O in nanoseconds, at least 1. `last_end` is the sector at which the
    /// last I/O of the same group ended.
    #[inline]
    #[must_use]
    pub fn of(&self, op: Op, (sector, sectors): (Sector, SectorCount), last_end: Sector) -> u64 {
        let cost = if op == Op::Read { &self.read } else { &self.write };
        let base_ns = if sector == last_end { cost.sequential_ns } else { cost.random_ns };
        let bytes = if op.has_data() { u64::from(sectors) << 9 } else { 0 };
        // At most 2 GiB (2^31 bytes) are charged, and `byte_ps` is less than 2^32. So the product
        // fits 64 bits.
        let moved_ns = bytes.min(1 << 31) * u64::from(cost.byte_ps) / 1_000;
        (u64::from(base_ns) + moved_ns).max(1)
    }
}

/// Depth units that a random 4 KiB request takes. A drive's depth (its limit on requests in flight)
/// is counted in these units, so that larger requests can take more of the depth.
pub(crate) const REQUEST: u32 = 16;
/// Service time, in nanoseconds, from which a drive counts as slow.
pub(crate) const SLOW_NS: u64 = 2_000_000;

/// Weights that convert the length of a read or write to depth units. A drive's depth (its limit on
/// requests in flight) is counted in depth units; a small (4 KiB) request takes 16.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DepthWeights {
    read: OpWeight,
    write: OpWeight,
}

/// Depth units that a request takes, in 1,024ths: `base`, plus `sector` for each sector. A random 4
/// KiB request takes 16 depth units.
#[derive(Debug, Clone, Copy)]
struct OpWeight {
    base: u64,
    sector: u64,
}

impl OpWeight {
    fn of(cost: &OpCost) -> OpWeight {
        let unit = u64::from(REQUEST) << 10;
        let (base_ps, byte_ps) = (u64::from(cost.random_ns) * 1_000, u64::from(cost.byte_ps));
        let request_ps = (base_ps + 4_096 * byte_ps).max(1);
        OpWeight { base: base_ps * unit / request_ps, sector: 512 * byte_ps * unit / request_ps }
    }
}

impl DepthWeights {
    pub(crate) fn of(cost: &CostModel) -> DepthWeights {
        DepthWeights { read: OpWeight::of(&cost.read), write: OpWeight::of(&cost.write) }
    }

    /// Returns the number of depth units that a request takes. A small (4 KiB) request takes 16
    /// units ([`REQUEST`]), and no request takes less.
    #[inline]
    pub(crate) fn weight(&self, op: Op, sectors: SectorCount) -> u32 {
        let weight = if op == Op::Read { &self.read } else { &self.write };
        let sectors = if op.has_data() { u64::from(sectors) } else { 0 };
        // The result fits 32 bits: `base` is at most 2^14, `sector` at most 2^11, and a request has
        // less than 2^23 sectors.
        (((weight.base + sectors * weight.sector) >> 10) as u32).max(REQUEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_weigh_their_cost_and_at_least_a_small_one() {
        let weights = DepthWeights::of(&CostModel::default());
        let of = |op, kib: u32| weights.weight(op, kib * 2);
        assert_eq!((of(Op::Read, 4), of(Op::Write, 4), of(Op::Read, 0)), (16, 16, 16));
        assert_eq!((of(Op::Read, 64), of(Op::Write, 1_024)), (212, 3_356));
        assert_eq!(of(Op::Discard, 1 << 20), 16, "it moves nothing");
        // On a rotating disk, the seek takes nearly all of the time.
        let seek = OpCost { random_ns: 8_000_000, sequential_ns: 100_000, byte_ps: 5_000 };
        let weights = DepthWeights::of(&CostModel { read: seek, write: seek });
        assert_eq!((weights.weight(Op::Read, 128), weights.weight(Op::Read, 2_048)), (16, 25));
    }

    #[test]
    fn io_of_4_kib_and_long_one_cost_what_they_take_at_their_rates() {
        let rates =
            OpRates { random_iops: 98_000, sequential_iops: 120_000, bytes_per_s: 540_000_000 };
        let read = OpCost::from_rates(&rates);
        assert_eq!(read, OpCost { random_ns: 2_622, sequential_ns: 751, byte_ps: 1_851 });
        let model = CostModel { read, ..CostModel::default() };
        let cost = |sectors, last_end| model.of(Op::Read, (0, sectors), last_end);
        assert_eq!((cost(8, 1), cost(8, 0)), (10_203, 8_332));
        // A mebibyte at 540 MB/s is 1.942 ms.
        assert_eq!(cost(2048, 0), 1_941_665);
    }

    #[test]
    fn rates_that_bytes_alone_explain_leave_no_base() {
        let rates = OpRates { random_iops: 1, sequential_iops: 400_000, bytes_per_s: 1 << 30 };
        let cost = OpCost::from_rates(&rates);
        assert_eq!((cost.random_ns, cost.sequential_ns, cost.byte_ps), (999_996_186, 0, 931));
        let slowest = OpRates { random_iops: 0, sequential_iops: 0, bytes_per_s: 0 };
        assert_eq!(OpCost::from_rates(&slowest).byte_ps, u32::MAX);
    }
}
