//! Accounting, always on: what one thread did to one drive, and how long it took.
//!
//! A `DiskStats` belongs to one channel (so it has one writer and shares no line with others) and
//! one drive; the drive keeps a list of them and adds them up when somebody asks. I/Os of a batch
//! that carry the same stamps are recorded as one addition. Kernel counterpart: `part_stat_*` per
//! CPU.

use alloc::boxed::Box;
use alloc::vec::Vec;

use millrace_machine::{Counter, Machine};

use crate::bio::{OPS, Op};
use crate::histogram::{Histogram, Snapshot};

/// Counters and histograms of one operation.
pub struct OpStats<M: Machine> {
    ios: M::Counter,
    sectors: M::Counter,
    errors: M::Counter,
    merges: M::Counter,
    /// Q to D: waiting in the layer.
    queue: Histogram<M>,
    /// D to C: in the drive.
    service: Histogram<M>,
    /// Q to C.
    total: Histogram<M>,
}

/// What one thread did to one drive.
pub struct DiskStats<M: Machine> {
    ops: Box<[OpStats<M>; OPS]>,
    pub(crate) queued: M::Counter,
    pub(crate) parts: M::Counter,
    pub(crate) requeues: M::Counter,
    pub(crate) timeouts: M::Counter,
    pub(crate) tag_waits: M::Counter,
    pub(crate) dispatches: M::Counter,
    pub(crate) requests: M::Counter,
}

/// I/Os with equal stamps, not yet added to the statistics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    op: Op,
    q_ns: u64,
    d_ns: u64,
    c_ns: u64,
    ios: u64,
    sectors: u64,
}

impl Run {
    pub(crate) const EMPTY: Run =
        Run { op: Op::Read, q_ns: 0, d_ns: 0, c_ns: 0, ios: 0, sectors: 0 };

    /// No I/O yet, of an operation and with times that I/Os may share.
    #[inline]
    pub(crate) fn like(op: Op, (q_ns, d_ns, c_ns): (u64, u64, u64)) -> Run {
        Run { op, q_ns, d_ns, c_ns, ios: 0, sectors: 0 }
    }

    /// Whether an I/O has the same operation and times, but for the completion.
    #[inline(always)]
    pub(crate) fn is_like(&self, op: Op, q_ns: u64, d_ns: u64) -> bool {
        self.op == op && self.q_ns == q_ns && self.d_ns == d_ns
    }

    /// When they were complete.
    pub(crate) fn c_ns(&self) -> u64 {
        self.c_ns
    }

    /// Adds I/Os like it.
    #[inline(always)]
    pub(crate) fn add(&mut self, ios: u64, sectors: u64) {
        self.ios += ios;
        self.sectors += sectors;
    }
}

impl<M: Machine> DiskStats<M> {
    pub(crate) fn new() -> Self {
        let op = || OpStats {
            ios: M::Counter::new(),
            sectors: M::Counter::new(),
            errors: M::Counter::new(),
            merges: M::Counter::new(),
            queue: Histogram::new(),
            service: Histogram::new(),
            total: Histogram::new(),
        };
        let ops: Box<[OpStats<M>]> = (0..OPS).map(|_| op()).collect();
        DiskStats {
            ops: ops.try_into().unwrap_or_else(|_| unreachable!("made with that length")),
            queued: M::Counter::new(),
            parts: M::Counter::new(),
            requeues: M::Counter::new(),
            timeouts: M::Counter::new(),
            tag_waits: M::Counter::new(),
            dispatches: M::Counter::new(),
            requests: M::Counter::new(),
        }
    }

    /// Adds one completed bio to a run of equals, or records the run and starts another.
    #[inline(always)]
    pub(crate) fn count(&self, run: &mut Run, op: Op, stamps: (u64, u64, u64), sectors: u32) {
        if (run.op, run.q_ns, run.d_ns, run.c_ns) != (op, stamps.0, stamps.1, stamps.2) {
            self.record(run);
            (run.op, run.q_ns, run.d_ns, run.c_ns) = (op, stamps.0, stamps.1, stamps.2);
        }
        run.ios += 1;
        run.sectors += u64::from(sectors);
    }

    /// Records what a run holds.
    #[inline]
    pub(crate) fn record(&self, run: &mut Run) {
        if run.ios == 0 {
            return;
        }
        self.record_run(run);
        (run.ios, run.sectors) = (0, 0);
    }

    #[inline(always)]
    fn record_run(&self, run: &Run) {
        let op = &self.ops[run.op as usize];
        op.ios.add(run.ios);
        op.sectors.add(run.sectors);
        op.queue.record(run.d_ns.saturating_sub(run.q_ns), run.ios);
        op.service.record(run.c_ns.saturating_sub(run.d_ns), run.ios);
        op.total.record(run.c_ns.saturating_sub(run.q_ns), run.ios);
    }

    /// Records one completed bio.
    #[inline(always)]
    pub(crate) fn record_one(&self, op: Op, (q_ns, d_ns, c_ns): (u64, u64, u64), sectors: u32) {
        let mut one = Run::like(op, (q_ns, d_ns, c_ns));
        one.add(1, sectors.into());
        self.record_run(&one);
    }

    #[cold]
    pub(crate) fn count_error(&self, op: Op) {
        self.ops[op as usize].errors.add(1);
    }

    #[inline]
    pub(crate) fn count_merge(&self, op: Op) {
        self.ops[op as usize].merges.add(1);
    }

    /// Adds this to a total.
    pub fn add_to(&self, total: &mut StatsSnapshot) {
        for (op, sum) in self.ops.iter().zip(&mut total.ops) {
            sum.ios += op.ios.get();
            sum.sectors += op.sectors.get();
            sum.errors += op.errors.get();
            sum.merges += op.merges.get();
            sum.queue.merge(&op.queue.snapshot());
            sum.service.merge(&op.service.snapshot());
            sum.total.merge(&op.total.snapshot());
        }
        total.queued += self.queued.get();
        total.parts += self.parts.get();
        total.requeues += self.requeues.get();
        total.timeouts += self.timeouts.get();
        total.tag_waits += self.tag_waits.get();
        total.dispatches += self.dispatches.get();
        total.requests += self.requests.get();
    }
}

/// Sums of one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpSnapshot {
    /// Completed bios.
    pub ios: u64,
    /// Their sectors.
    pub sectors: u64,
    /// Those that failed.
    pub errors: u64,
    /// Those merged into another's request.
    pub merges: u64,
    /// Q to D.
    pub queue: Snapshot,
    /// D to C.
    pub service: Snapshot,
    /// Q to C.
    pub total: Snapshot,
}

/// Sums of a drive at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// By operation, in the order of `Op::ALL`.
    pub ops: Vec<OpSnapshot>,
    /// Bios handed to the drive's queues so far.
    pub queued: u64,
    /// Of these, parts of bios that were split.
    pub parts: u64,
    /// Requests that the driver gave back as busy.
    pub requeues: u64,
    /// Requests that the drive did not answer in time.
    pub timeouts: u64,
    /// Times that a hardware queue found no tag, or had out what its drive takes.
    pub tag_waits: u64,
    /// Batches handed to the driver.
    pub dispatches: u64,
    /// Requests in them.
    pub requests: u64,
}

impl Default for StatsSnapshot {
    fn default() -> Self {
        StatsSnapshot {
            ops: alloc::vec![OpSnapshot::default(); OPS],
            queued: 0,
            parts: 0,
            requeues: 0,
            timeouts: 0,
            tag_waits: 0,
            dispatches: 0,
            requests: 0,
        }
    }
}

impl OpSnapshot {
    fn since(&self, earlier: &OpSnapshot) -> OpSnapshot {
        OpSnapshot {
            ios: self.ios - earlier.ios,
            sectors: self.sectors - earlier.sectors,
            errors: self.errors - earlier.errors,
            merges: self.merges - earlier.merges,
            queue: self.queue.since(&earlier.queue),
            service: self.service.since(&earlier.service),
            total: self.total.since(&earlier.total),
        }
    }
}

impl StatsSnapshot {
    /// What came in between an earlier moment of the same drive and this one.
    #[must_use]
    pub fn since(&self, earlier: &StatsSnapshot) -> StatsSnapshot {
        let ops = self.ops.iter().zip(&earlier.ops);
        StatsSnapshot {
            ops: ops.map(|(now, before)| now.since(before)).collect(),
            queued: self.queued - earlier.queued,
            parts: self.parts - earlier.parts,
            requeues: self.requeues - earlier.requeues,
            timeouts: self.timeouts - earlier.timeouts,
            tag_waits: self.tag_waits - earlier.tag_waits,
            dispatches: self.dispatches - earlier.dispatches,
            requests: self.requests - earlier.requests,
        }
    }

    /// Completed bios of all operations.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }

    /// I/Os accepted and not completed, as far as the counters agree at this moment.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.queued.saturating_sub(self.ios())
    }

    /// Q to C of all operations.
    #[must_use]
    pub fn total(&self) -> Snapshot {
        let mut sum = Snapshot::default();
        self.ops.iter().for_each(|op| sum.merge(&op.total));
        sum
    }
}
