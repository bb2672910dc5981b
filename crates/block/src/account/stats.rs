//! Snapshots of the layer's counters: sums over threads, by drive and hardware queue.
//!
//! A snapshot is a plain value, made from the accounts (account.rs, tenants.rs) on request. Sums
//! only grow, so the difference of two snapshots covers the time in between. Snapshots are taken
//! while I/O goes on, so different counters may be from slightly different moments. Names of stages
//! are those of btt.

use alloc::vec::Vec;
use core::array;

use crate::account::disk_counter::DiskCounter;
use crate::account::histogram::Snapshot;
use crate::bio::OPS;

/// Number of size classes of batches, by powers of two: 1, 2 to 3, 4 to 7, ... 256 and more.
pub const BATCH_SIZES: usize = 9;

/// Sums over all I/Os of one operation since the disk was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpSnapshot {
    /// Completed bios.
    pub ios: u64,
    /// Sectors of the completed bios.
    pub sectors: u64,
    /// Bios that ended with an error.
    pub errors: u64,
    /// Bios merged into another bio's request.
    pub merges: u64,
    /// Q to G: from submission until the bio gets its request.
    pub q2g: Snapshot,
    /// G to I: from getting the request to insertion into a queue.
    pub g2i: Snapshot,
    /// I to D: from insertion to dispatch; 0 for an I/O that bypassed the queue.
    pub i2d: Snapshot,
    /// Q to D: from submission to dispatch, the whole time in the block layer.
    pub queue: Snapshot,
    /// D to C: from dispatch to completion, the time in the drive.
    pub service: Snapshot,
    /// Q to C: from submission to completion, the whole time of the I/O.
    pub total: Snapshot,
}

/// Statistics of a drive, or of one of its hardware queues, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// I/Os, sectors, errors, merges and times of each operation, in the order of `Op::ALL`.
    pub ops: Vec<OpSnapshot>,
    /// Values indexed by `DiskCounter`; each counter also has a method of its name.
    pub counts: [u64; DiskCounter::ALL.len()],
    /// Number of batches of requests handed to the driver, by size class (see [`BATCH_SIZES`]).
    pub batches: [u64; BATCH_SIZES],
}

impl Default for StatsSnapshot {
    fn default() -> Self {
        StatsSnapshot {
            ops: alloc::vec![OpSnapshot::default(); OPS],
            counts: [0; DiskCounter::ALL.len()],
            batches: [0; BATCH_SIZES],
        }
    }
}

impl OpSnapshot {
    fn merge(&mut self, other: &OpSnapshot) {
        self.ios += other.ios;
        self.sectors += other.sectors;
        self.errors += other.errors;
        self.merges += other.merges;
        self.q2g.merge(&other.q2g);
        self.g2i.merge(&other.g2i);
        self.i2d.merge(&other.i2d);
        self.queue.merge(&other.queue);
        self.service.merge(&other.service);
        self.total.merge(&other.total);
    }

    fn since(&self, earlier: &OpSnapshot) -> OpSnapshot {
        OpSnapshot {
            ios: self.ios - earlier.ios,
            sectors: self.sectors - earlier.sectors,
            errors: self.errors - earlier.errors,
            merges: self.merges - earlier.merges,
            q2g: self.q2g.since(&earlier.q2g),
            g2i: self.g2i.since(&earlier.g2i),
            i2d: self.i2d.since(&earlier.i2d),
            queue: self.queue.since(&earlier.queue),
            service: self.service.since(&earlier.service),
            total: self.total.since(&earlier.total),
        }
    }
}

impl StatsSnapshot {
    /// Adds the sums of another drive or hardware queue.
    pub fn merge(&mut self, other: &StatsSnapshot) {
        self.ops.iter_mut().zip(&other.ops).for_each(|(op, other)| op.merge(other));
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, other)| *sum += other);
        self.batches.iter_mut().zip(&other.batches).for_each(|(sum, other)| *sum += other);
    }

    /// Returns the difference to an earlier snapshot of the same drive or hardware queue.
    #[must_use]
    pub fn since(&self, earlier: &StatsSnapshot) -> StatsSnapshot {
        let ops = self.ops.iter().zip(&earlier.ops);
        StatsSnapshot {
            ops: ops.map(|(now, before)| now.since(before)).collect(),
            counts: array::from_fn(|counter| self.counts[counter] - earlier.counts[counter]),
            batches: array::from_fn(|size| self.batches[size] - earlier.batches[size]),
        }
    }

    /// Returns the number of completed bios of all operations.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }

    /// Returns the number of I/Os submitted and not completed. Approximate while I/O goes on.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.queued().saturating_sub(self.ios())
    }

    /// Returns the histogram of total times (submission to completion) of all operations together.
    #[must_use]
    pub fn total(&self) -> Snapshot {
        let mut sum = Snapshot::default();
        self.ops.iter().for_each(|op| sum.merge(&op.total));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a snapshot in which every number differs.
    fn filled(seed: u64) -> StatsSnapshot {
        let mut stats = StatsSnapshot::default();
        let mut next = seed;
        let mut number = || {
            next += 1 + seed;
            next
        };
        for op in &mut stats.ops {
            (op.ios, op.sectors, op.errors, op.merges) = (number(), number(), number(), number());
            let stages = [&mut op.q2g, &mut op.g2i, &mut op.i2d];
            let ends = [&mut op.queue, &mut op.service, &mut op.total];
            stages.into_iter().chain(ends).for_each(|stage| stage.add(number() << 8, 2));
        }
        stats.batches.iter_mut().for_each(|batches| *batches = number());
        stats.counts.iter_mut().for_each(|count| *count = number());
        stats
    }

    #[test]
    fn a_sum_less_one_part_is_the_other() {
        let (first, second) = (filled(3), filled(5));
        let mut sum = first.clone();
        sum.merge(&second);
        let rest = sum.since(&first);
        let of_op = |op: &OpSnapshot| [op.ios, op.sectors, op.errors, op.merges];
        let times = |op: &OpSnapshot| {
            [&op.q2g, &op.g2i, &op.i2d, &op.queue, &op.service, &op.total]
                .map(|stage| (stage.count(), stage.sum_ns()))
        };
        for (index, op) in rest.ops.iter().enumerate() {
            let (one, other) = (&first.ops[index], &second.ops[index]);
            assert_eq!((of_op(op), times(op)), (of_op(other), times(other)), "{index}");
            assert_eq!(sum.ops[index].sectors, one.sectors + other.sectors);
            assert_eq!(sum.ops[index].ios, one.ios + other.ios);
            assert_eq!(sum.ops[index].total.sum_ns(), one.total.sum_ns() + other.total.sum_ns());
        }
        assert_eq!((rest.counts, rest.batches), (second.counts, second.batches));
        assert_eq!(sum.dispatches(), first.dispatches() + second.dispatches());
        assert_eq!(sum.queued(), first.queued() + second.queued());
    }

    #[test]
    fn a_drives_sums_are_those_of_all_its_operations() {
        let mut stats = StatsSnapshot::default();
        assert_eq!((stats.ios(), stats.in_flight()), (0, 0));
        for (op, ios) in stats.ops.iter_mut().zip([3, 5, 7, 11, 13]) {
            op.ios = ios;
            op.total.add(ios * 100, ios);
        }
        stats.counts[DiskCounter::Queued as usize] = 41;
        assert_eq!((stats.ios(), stats.in_flight()), (39, 2));
        assert_eq!((stats.total().count(), stats.total().max_ns()), (39, 1300));
        // Counters are read one after another, so more I/Os may appear completed than queued.
        stats.counts[DiskCounter::Queued as usize] = 38;
        assert_eq!(stats.in_flight(), 0);
    }
}
