//! `Gate`: one limit of a group, that all its threads go through: when may the next I/O go?
//!
//! A word that holds when the next one may, which each I/O moves on by what it costs: so a thread
//! needs one atomic addition, those who wait have a time each and need not ask again, and it is
//! first come, first served over all threads. What is not used is saved up for `burst`. Bound: in
//! any window of length W no more starts than rate * (W + burst) and one I/O. An I/O that costs
//! more than a second's worth goes in its turn, and those behind it pay. Source: the leaky bucket
//! as a meter (ITU-T I.371, the generic cell rate algorithm). Kernel counterpart: block/blk-
//! throttle.c, `tg_dispatch_time`.

use millrace_machine::{Machine, Order, Word};

use crate::bio::{Op, SectorCount};
use crate::group::config::GroupLimits;

/// Parts of a nanosecond in which times are held: a rate of 3 M a second is kept to 0.001 %.
const FRACTION_BITS: u32 = 8;
/// Further parts of what a sector costs.
const SECTOR_BITS: u32 = 16;

/// How many gates an I/O of one way goes through at most.
pub(crate) const GATES: usize = 4;

/// What one gate takes for an I/O, in parts of a nanosecond.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Toll {
    /// For each I/O.
    io: u64,
    /// For each sector, in still smaller parts.
    sector: u64,
}

impl Toll {
    fn ios(rate: Option<u64>) -> Toll {
        Toll {
            io: rate.map_or(0, |rate| (1_000_000_000 << FRACTION_BITS) / rate.max(1)),
            sector: 0,
        }
    }

    fn bytes(rate: Option<u64>) -> Toll {
        let whole = 512_000_000_000u128 << FRACTION_BITS << SECTOR_BITS;
        Toll { io: 0, sector: rate.map_or(0, |rate| (whole / u128::from(rate.max(1))) as u64) }
    }

    /// Whether the gate stands open.
    pub(crate) fn is_free(self) -> bool {
        self.io == 0 && self.sector == 0
    }

    /// For an I/O that moves so many sectors.
    pub(crate) fn of(self, sectors: SectorCount) -> u64 {
        let bytes = (u128::from(self.sector) * u128::from(sectors)) >> SECTOR_BITS;
        self.io + bytes.min(1 << 56) as u64
    }
}

/// What a group's gates take for reads and for writes, and what is saved up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tolls {
    read: [Toll; GATES],
    write: [Toll; GATES],
    /// In parts of a nanosecond.
    burst: u64,
}

impl Tolls {
    pub(crate) fn new(limits: &GroupLimits) -> Tolls {
        let both = [Toll::ios(limits.iops), Toll::bytes(limits.bandwidth)];
        let way = |iops, bytes| [Toll::ios(iops), Toll::bytes(bytes), both[0], both[1]];
        Tolls {
            read: way(limits.read_iops, limits.read_bandwidth),
            write: way(limits.write_iops, limits.write_bandwidth),
            burst: limits.burst_ns << FRACTION_BITS,
        }
    }

    /// What the gate at `stage` takes for an operation.
    pub(crate) fn at(&self, stage: usize, op: Op) -> Toll {
        if op == Op::Read { self.read[stage] } else { self.write[stage] }
    }
}

/// The gates of a group: of reads two, of writes two, of both two.
pub(crate) struct Gates<M: Machine>([M::Word; GATES + 2]);

impl<M: Machine> Gates<M> {
    pub(crate) fn new(now_ns: u64) -> Gates<M> {
        Gates(core::array::from_fn(|_| M::Word::new(now_ns << FRACTION_BITS)))
    }

    /// Forgets what was promised to those who wait, who will ask again.
    pub(crate) fn reset(&self, now_ns: u64) {
        // Relaxed: the table's version, raised behind it, says that it happened.
        self.0.iter().for_each(|word| word.store(now_ns << FRACTION_BITS, Order::Relaxed));
    }

    /// Takes what an I/O of `sectors` costs at the gate of a stage; when it may go, in nanoseconds
    /// on the clock of the machine.
    pub(crate) fn reserve(
        &self,
        tolls: &Tolls,
        (stage, op, sectors): (usize, Op, SectorCount),
        now_ns: u64,
    ) -> u64 {
        let toll = tolls.at(stage, op);
        let own_way = if op == Op::Read { stage } else { stage + GATES };
        // Stages 2 and 3 are those of both ways.
        let word = &self.0[if stage < 2 { own_way } else { stage }];
        let earliest = (now_ns << FRACTION_BITS).saturating_sub(tolls.burst);
        // Relaxed: a count that nothing else hangs on.
        let mut next = word.load(Order::Relaxed);
        while next < earliest {
            match word.compare_exchange(next, earliest, Order::Relaxed, Order::Relaxed) {
                Ok(_) => break,
                Err(found) => next = found,
            }
        }
        word.fetch_add(toll.of(sectors), Order::Relaxed) >> FRACTION_BITS
    }
}
