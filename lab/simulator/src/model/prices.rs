//! Costs of a simulated machine, converted from its `Model` to integer picoseconds.
//!
//! Each simulation converts the costs once: `LinePrices` for cache lines, `ThreadPrices` for the
//! scheduler, `Prices` for all other operations. Fractions are integers in units of 1/65536, so
//! that no run depends on the compiler's order of floating-point operations.

use millrace_random::SplitMix64;

use crate::model::time::{PS_PER_NS, picoseconds};
use crate::model::transfer::Transfer;
use crate::model::{CacheCosts, Cost, CpuCosts, Model, ThreadCosts};
use millrace_machine::Stage;

/// Costs of accesses to cache lines, in picoseconds.
#[derive(Debug)]
pub(crate) struct LinePrices {
    pub(crate) l1: u64,
    pub(crate) memory: u64,
    /// Extra cost of an atomic instruction on a line from the CPU's own cache or from memory. The
    /// costs in `TransferPrices` already include this extra cost.
    pub(crate) locked: u64,
}

/// Costs of operations outside the caches and the scheduler, in picoseconds.
#[derive(Debug)]
pub(crate) struct Prices {
    /// Fraction of a lock's spinning CPUs that delay the lock's hand-over, in units of 1/65536
    /// (`CacheCosts::spinner`).
    pub(crate) spinner: u64,
    pub(crate) fence: u64,
    pub(crate) clock_read: u64,
    pub(crate) spin_poll: u64,
    work: [u64; 7],
    pub(crate) request_queue_lines: u64,
    /// Maximum relative deviation of the cost of work, in 1/65536.
    jitter: u64,
}

/// Costs of threads, in picoseconds.
#[derive(Debug)]
pub(crate) struct ThreadPrices {
    pub(crate) system_call: u64,
    pub(crate) context_switch: u64,
    pub(crate) wake: u64,
    pub(crate) wake_latency: u64,
    pub(crate) interrupt_send: u64,
    pub(crate) interrupt_handle: u64,
    pub(crate) time_slice: u64,
    pub(crate) fairness: Option<FairPrices>,
}

/// Parameters of `Fairness`, in picoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FairPrices {
    pub(crate) granularity: u64,
    pub(crate) credit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferKind {
    /// A read of a line that one CPU holds exclusively.
    Load,
    /// A read of a line that several CPUs share.
    Shared,
    Store,
    Atomic,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct TransferPrices([u64; 4]);

impl TransferPrices {
    /// Converts the costs of a `Transfer` from nanoseconds to picoseconds. The default cost of an
    /// atomic instruction is that of a store plus `locked`, the extra cost of a locked instruction.
    pub(crate) fn new(transfer: &Transfer, locked: &Cost) -> Self {
        let ps = |ns: f64| (ns * PS_PER_NS as f64).round() as u64;
        let (load, store) = (transfer.ns, transfer.store_ns.unwrap_or(transfer.ns));
        let shared = transfer.shared_ns.unwrap_or(load);
        let atomic = transfer.atomic_ns.unwrap_or(store + locked.ns);
        TransferPrices([load, shared, store, atomic].map(ps))
    }

    #[inline]
    pub(crate) fn of(&self, wanted: TransferKind) -> u64 {
        self.0[wanted as usize]
    }
}

impl LinePrices {
    pub(crate) fn new(cache: &CacheCosts, cpu: &CpuCosts) -> Self {
        LinePrices {
            l1: picoseconds(&cache.l1),
            memory: picoseconds(&cache.memory),
            locked: picoseconds(&cpu.locked),
        }
    }
}

impl ThreadPrices {
    pub(crate) fn new(threads: &ThreadCosts) -> Self {
        ThreadPrices {
            system_call: picoseconds(&threads.system_call),
            context_switch: picoseconds(&threads.context_switch),
            wake: picoseconds(&threads.wake),
            wake_latency: picoseconds(&threads.wake_latency),
            interrupt_send: picoseconds(&threads.interrupt_send),
            interrupt_handle: picoseconds(&threads.interrupt_handle),
            time_slice: picoseconds(&threads.time_slice),
            fairness: threads.fairness.as_ref().map(|fairness| FairPrices {
                granularity: picoseconds(&fairness.granularity),
                credit: picoseconds(&fairness.credit),
            }),
        }
    }
}

impl Prices {
    pub(crate) fn new(model: &Model) -> Self {
        let share = |share: f64| (share * 65_536.0).round() as u64;
        Prices {
            spinner: share(model.cache.spinner.share),
            fence: picoseconds(&model.cpu.fence),
            clock_read: picoseconds(&model.cpu.clock_read),
            spin_poll: picoseconds(&model.cpu.spin_poll),
            work: Stage::ALL.map(|stage| picoseconds(model.work_of(stage))),
            request_queue_lines: model.work.request_queue.lines.into(),
            jitter: share(model.work.jitter.share),
        }
    }

    pub(crate) fn work_ps(&self, stage: Stage, units: u32, random: &mut SplitMix64) -> u64 {
        let work_ps = self.work[stage as usize] * u64::from(units);
        if self.jitter == 0 || work_ps == 0 {
            return work_ps;
        }
        // Multiply the cost by a random factor of 1 plus or minus at most `jitter`, in units of
        // 1/65536.
        let spread = ((random.next() >> 48) * self.jitter) >> 15;
        (work_ps * (65_536 + spread - self.jitter)) >> 16
    }
}
