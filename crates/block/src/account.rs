//! Always-on accounting of the I/Os that one thread ran through one hardware queue of a drive.
//!
//! A `DiskStats` belongs to one thread and one hardware queue, so it has one writer and shares no
//! cache line with others. The drive keeps all of them in a ledger and sums them on request. I/Os
//! of a batch with equal times are recorded by one addition. Times are named as in btt: Q
//! submitted, G got a request, I inserted into a queue, D dispatched, C completed. Most I/Os go
//! straight from the plug to the driver: their G equals Q and their I equals D, so three histograms
//! describe them. I/Os that waited in a queue have four more. Kernel counterpart: `part_stat_*`.

pub(crate) mod decisions;
pub(crate) mod disk_counter;
pub(crate) mod failures;
pub(crate) mod held;
pub(crate) mod histogram;
pub(crate) mod hold;
pub(crate) mod ledger;
pub(crate) mod stats;
pub(crate) mod tenants;
pub(crate) mod waits;

use alloc::boxed::Box;

use millrace_machine::{Counter, Machine};

use crate::account::disk_counter::DiskCounter;
use crate::account::histogram::{Histogram, bucket_of};
use crate::account::ledger::LedgerEntry;
use crate::account::stats::{BATCH_SIZES, OpSnapshot, StatsSnapshot};
use crate::account::tenants::{TenantIos, Tenants};
use crate::bio::{AccountKey, OPS, Op};
use crate::chain::bio_set::BioSet;
use crate::chain::slot::{BioSlot, BioStage};

struct OpStats<M: Machine> {
    sectors: M::Counter,
    errors: M::Counter,
    merges: M::Counter,
    /// Times from submission (Q) to dispatch (D) of I/Os that went straight to the driver.
    straight: Histogram<M>,
    waited: WaitStats<M>,
    service: Histogram<M>,
    /// Times from submission (Q) to completion (C). The sum of these times is not stored. It is
    /// computed from other sums: Q to D (`straight` and `waited.q2d`) plus D to C (`service`).
    total: Histogram<M>,
}

struct WaitStats<M: Machine> {
    q2g: Histogram<M>,
    g2i: Histogram<M>,
    i2d: Histogram<M>,
    q2d: Histogram<M>,
}

/// Counters and histograms of one thread for one hardware queue of a drive.
pub struct DiskStats<M: Machine> {
    hctx: u16,
    ops: Box<[OpStats<M>; OPS]>,
    counts: [M::Counter; DiskCounter::ALL.len()],
    batches: [M::Counter; BATCH_SIZES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoOwner {
    pub(crate) account_key: AccountKey,
    pub(crate) stage: BioStage,
    /// True if the thread that counts the I/O also submitted it.
    pub(crate) own: bool,
}

impl IoOwner {
    #[inline(always)]
    pub(crate) fn of<M: Machine>(bio: &BioSlot<M>, bio_set: *const BioSet<M>) -> IoOwner {
        IoOwner { account_key: bio.bio.account_key, stage: bio.stage, own: bio.bio_set == bio_set }
    }

    /// Returns true if the thread that completes the I/O counts it for the tenant. Otherwise the
    /// submitting thread does.
    #[inline(always)]
    pub(crate) fn is_counted(self) -> bool {
        self.own && self.stage == BioStage::Whole
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoTimes {
    pub(crate) q_ns: u64,
    /// Time at which the bio got its request (G), and time of its insertion into a queue (I).
    /// `None` if the bio went straight to the driver.
    pub(crate) waits: Option<(u64, u64)>,
    pub(crate) d_ns: u64,
    pub(crate) c_ns: u64,
}

/// Number of successive I/Os with equal operation, times, group and tenant, not yet recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EqualIos {
    op: Op,
    times: IoTimes,
    whose: IoOwner,
    ios: u64,
    sectors: u64,
}

impl EqualIos {
    pub(crate) const EMPTY: EqualIos = EqualIos::like(
        Op::Read,
        IoOwner { account_key: AccountKey::DEFAULT, stage: BioStage::Child, own: false },
        IoTimes { q_ns: 0, waits: None, d_ns: 0, c_ns: 0 },
    );

    #[inline(always)]
    pub(crate) const fn like(op: Op, whose: IoOwner, times: IoTimes) -> EqualIos {
        EqualIos { op, whose, times, ios: 0, sectors: 0 }
    }

    /// Creates a count that holds a single I/O, `bio`, which went straight to the driver.
    #[inline(always)]
    fn straight<M: Machine>(bio: &BioSlot<M>, whose: IoOwner, d_ns: u64, c_ns: u64) -> EqualIos {
        let times = IoTimes { q_ns: bio.q_ns, waits: None, d_ns, c_ns };
        EqualIos { op: bio.op(), whose, times, ios: 1, sectors: bio.bio.nr_sectors.into() }
    }

    /// Returns true if `bio` can be counted with the I/Os in `self`. Operation, group, tenant,
    /// stage, and the times of submission (Q) and dispatch (D) must be equal. The caller makes sure
    /// that this thread submitted `bio` and that `bio` waited in no queue.
    #[inline(always)]
    pub(crate) fn is_like<M: Machine>(&self, op: Op, bio: &BioSlot<M>, d_ns: u64) -> bool {
        self.op == op
            && self.times.q_ns == bio.q_ns
            && self.times.d_ns == d_ns
            && self.whose.account_key == bio.bio.account_key
            && self.whose.stage == bio.stage
    }

    pub(crate) fn is_straight(&self) -> bool {
        self.whose.own && self.times.waits.is_none()
    }

    /// Makes [`EqualIos::is_like`] false for all later bios: no bio has the submission time
    /// `u64::MAX`. Called if the I/Os in `self` waited in a queue or came from another thread.
    /// `is_like` does not check for either case.
    pub(crate) fn forget(&mut self) {
        self.times.q_ns = u64::MAX;
    }

    pub(crate) fn c_ns(&self) -> u64 {
        self.times.c_ns
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, ios: u64, sectors: u64) {
        self.ios += ios;
        self.sectors += sectors;
    }
}

impl<M: Machine> DiskStats<M> {
    pub(crate) fn new(hctx: u16) -> Self {
        let op = || OpStats {
            sectors: M::Counter::new(),
            errors: M::Counter::new(),
            merges: M::Counter::new(),
            straight: Histogram::new(),
            waited: WaitStats {
                q2g: Histogram::new(),
                g2i: Histogram::new(),
                i2d: Histogram::new(),
                q2d: Histogram::new(),
            },
            service: Histogram::new(),
            total: Histogram::new(),
        };
        DiskStats {
            hctx,
            ops: Box::new(core::array::from_fn(|_| op())),
            counts: core::array::from_fn(|_| M::Counter::new()),
            batches: core::array::from_fn(|_| M::Counter::new()),
        }
    }

    /// Prepares `run`, a count of equal I/Os, for I/Os like `next`. If `next` differs in operation
    /// or times, first records the I/Os counted in `run`.
    #[inline(always)]
    pub(crate) fn begin(&self, run: &mut EqualIos, next: EqualIos, tenants: &mut Tenants<M>) {
        if run.op != next.op || run.times != next.times {
            self.record(run, tenants);
            *run = next;
        }
    }

    #[inline(always)]
    pub(crate) fn count(
        &self,
        run: &mut EqualIos,
        bio: &BioSlot<M>,
        whose: IoOwner,
        tenants: &mut Tenants<M>,
    ) {
        if run.times.q_ns != bio.q_ns || run.whose != whose {
            self.record(run, tenants);
            (run.times.q_ns, run.whose) = (bio.q_ns, whose);
        }
        run.add(1, bio.bio.nr_sectors.into());
    }

    #[inline]
    pub(crate) fn record(&self, run: &mut EqualIos, tenants: &mut Tenants<M>) {
        if run.ios == 0 {
            return;
        }
        match run.times.waits {
            None => self.record_straight(run, tenants),
            Some(waits) => self.record_waited(run, waits, tenants),
        }
        (run.ios, run.sectors) = (0, 0);
    }

    #[inline(always)]
    fn record_straight(&self, run: &EqualIos, tenants: &mut Tenants<M>) {
        let stats = &self.ops[run.op as usize];
        let IoTimes { q_ns, d_ns, .. } = run.times;
        let q2d_ns = d_ns.saturating_sub(q_ns);
        stats.straight.record(q2d_ns, run.ios);
        self.record_end(stats, run, q2d_ns, tenants);
    }

    /// Records the service time (D to C) and the total time (Q to C), which every I/O has.
    #[inline(always)]
    fn record_end(
        &self,
        stats: &OpStats<M>,
        run: &EqualIos,
        q2d_ns: u64,
        tenants: &mut Tenants<M>,
    ) {
        let d2c_ns = run.times.c_ns.saturating_sub(run.times.d_ns);
        let total_ns = q2d_ns + d2c_ns;
        let bucket = bucket_of(total_ns);
        let EqualIos { op, whose, ios, sectors, .. } = *run;
        stats.sectors.add(sectors);
        stats.service.record(d2c_ns, ios);
        stats.total.tally(bucket, total_ns, ios);
        if whose.is_counted() {
            let account_key = whose.account_key;
            tenants.count(&TenantIos { account_key, op, bucket, total_ns, ios, sectors });
        }
    }

    /// Records I/Os that waited in a queue. A bio may be merged into a request that is older than
    /// the bio. Then the request's time G (got a request) or I (inserted) may be earlier than the
    /// bio's submission (Q). In that case, the time Q replaces the earlier time.
    #[inline(never)]
    fn record_waited(&self, run: &EqualIos, (g_ns, i_ns): (u64, u64), tenants: &mut Tenants<M>) {
        let (stats, IoTimes { q_ns, d_ns, .. }) = (&self.ops[run.op as usize], run.times);
        let q2d_ns = d_ns.saturating_sub(q_ns);
        let (g_ns, i_ns) = (g_ns.clamp(q_ns, q_ns + q2d_ns), i_ns.clamp(q_ns, q_ns + q2d_ns));
        let g_ns = g_ns.min(i_ns);
        stats.waited.q2g.record(g_ns - q_ns, run.ios);
        stats.waited.g2i.record(i_ns - g_ns, run.ios);
        stats.waited.i2d.record(q_ns + q2d_ns - i_ns, run.ios);
        stats.waited.q2d.record(q2d_ns, run.ios);
        self.record_end(stats, run, q2d_ns, tenants);
    }

    /// Records one completed bio that this thread submitted and that went straight to the driver.
    #[inline(always)]
    pub(crate) fn record_one(
        &self,
        bio: &BioSlot<M>,
        (d_ns, c_ns): (u64, u64),
        tenants: &mut Tenants<M>,
    ) {
        let whose = IoOwner { account_key: bio.bio.account_key, stage: bio.stage, own: true };
        self.record_straight(&EqualIos::straight(bio, whose, d_ns, c_ns), tenants);
    }

    #[cold]
    pub(crate) fn count_aborted(&self, bio: &BioSlot<M>, now_ns: u64) {
        // The submitting thread counts the I/O for its tenant.
        let whose = IoOwner { account_key: bio.bio.account_key, stage: bio.stage, own: false };
        let one = EqualIos::straight(bio, whose, now_ns, now_ns);
        self.record_straight(&one, &mut Tenants::new(None));
        self.count_error(bio.op());
    }

    #[cold]
    pub(crate) fn count_error(&self, op: Op) {
        self.ops[op as usize].errors.add(1);
    }

    #[inline]
    pub(crate) fn count_merge(&self, op: Op) {
        self.ops[op as usize].merges.add(1);
    }

    #[inline(always)]
    pub(crate) fn add(&self, counter: DiskCounter, count: u64) {
        self.counts[counter as usize].add(count);
    }

    #[inline(always)]
    pub(crate) fn count_batch(&self, requests: u32) {
        self.batches[(requests | 1).ilog2().min(BATCH_SIZES as u32 - 1) as usize].add(1);
        self.add(DiskCounter::Requests, requests.into());
    }
}

impl<M: Machine> LedgerEntry for DiskStats<M> {
    type Key = u16;
    type Sum = StatsSnapshot;

    fn key(&self) -> u16 {
        self.hctx
    }

    fn add_to(&self, total: &mut StatsSnapshot) {
        for (op, sum) in self.ops.iter().zip(&mut total.ops) {
            op.add_to(sum);
        }
        for (count, sum) in self.counts.iter().zip(&mut total.counts) {
            *sum += count.get();
        }
        for (count, sum) in self.batches.iter().zip(&mut total.batches) {
            let batches = count.get();
            *sum += batches;
            total.counts[DiskCounter::Dispatches as usize] += batches;
        }
    }
}

impl<M: Machine> OpStats<M> {
    fn add_to(&self, sum: &mut OpSnapshot) {
        sum.sectors += self.sectors.get();
        sum.errors += self.errors.get();
        sum.merges += self.merges.get();
        if self.total.is_empty() {
            // An operation without I/Os has only empty histograms, which add nothing.
            return;
        }
        let (straight, waited) = (self.straight.snapshot(), &self.waited);
        let q2d = waited.q2d.snapshot();
        let service = self.service.snapshot();
        let total = self
            .total
            .snapshot()
            .with_sum(straight.sum_ns().wrapping_add(q2d.sum_ns()).wrapping_add(service.sum_ns()));
        sum.ios += total.count();
        for (waited, sum) in [(&waited.q2g, &mut sum.q2g), (&waited.i2d, &mut sum.i2d)] {
            sum.add(0, straight.count());
            sum.merge(&waited.snapshot());
        }
        sum.g2i.merge(&straight);
        sum.g2i.merge(&waited.g2i.snapshot());
        sum.queue.merge(&straight);
        sum.queue.merge(&q2d);
        sum.service.merge(&service);
        sum.total.merge(&total);
    }
}

#[cfg(test)]
mod tests;
