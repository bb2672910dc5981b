//! `DiskImage`: what one drive holds, what of it would survive a power cut, and which requests
//! fail.
//!
//! Part of the oracle; changed by the drive's queues (drive.rs). As unkind as a drive may be: a
//! flush makes durable what was completed before the flush was handed over, and nothing more; a
//! request takes effect when it is named as completed. Changes are numbered, and a sector is
//! durable up to a number.

use millrace_block::{Op, OpFlags, Status};

use super::random::Random;
use super::scenario::{DriveSpec, FaultSpec, LimitSpec};
use super::time::NS_PER_US;

/// One sector.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    stamp: u64,
    /// Number of its last change; 0: none yet.
    number: u32,
    /// Number of the change that would survive.
    durable: u32,
}

/// What is to become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestOutcome {
    pub(super) status: Status,
    pub(super) takes_ns: u64,
    /// The request is forgotten for so long: nobody is told when to look.
    pub(super) stuck: bool,
}

/// A drive's contents and behaviour.
pub(super) struct DiskImage {
    pub(super) limits: LimitSpec,
    faults: FaultSpec,
    latency_ns: [u32; 2],
    /// Sectors that it has by now.
    pub(super) sectors: u64,
    cells: Vec<Cell>,
    /// Sectors that may not be durable, some of them twice.
    dirty: Vec<u32>,
    changes: u32,
    random: Random,
    /// Drained and frozen: nothing may come in.
    pub(super) frozen: bool,
    /// Quiesced: nothing may come in.
    pub(super) quiesced: bool,
    /// Requests inside.
    pub(super) inside: u32,
    start_ns: u64,
}

impl DiskImage {
    /// A drive that has so many sectors at first.
    pub(super) fn new(spec: &DriveSpec, sectors: u64) -> DiskImage {
        DiskImage {
            limits: spec.limits,
            faults: spec.faults,
            latency_ns: spec.latency_ns,
            sectors,
            cells: vec![Cell::default(); spec.sectors as usize],
            dirty: Vec::new(),
            changes: 0,
            random: Random::new(0, 0),
            frozen: false,
            quiesced: false,
            inside: 0,
            start_ns: 0,
        }
    }

    /// The run begins.
    pub(super) fn start(&mut self, seed: u64, drive: usize, start_ns: u64) {
        self.random = Random::new(seed, 100 + drive as u64);
        self.start_ns = start_ns;
    }

    /// The drive has all that it will have.
    pub(super) fn grow(&mut self) {
        self.sectors = self.cells.len() as u64;
    }

    /// Nothing goes wrong any more, but what is broken stays broken.
    pub(super) fn calm(&mut self) {
        (self.faults.stuck, self.faults.busy, self.faults.slow) = (0, 0, 0);
    }

    /// Whether it takes nothing at the moment.
    pub(super) fn is_busy(&mut self) -> bool {
        self.random.per_mille(self.faults.busy)
    }

    /// A coin, for what has no rule.
    pub(super) fn coin(&mut self) -> bool {
        self.random.per_mille(500)
    }

    /// What becomes of a request that is handed over now.
    pub(super) fn fate(&mut self, op: Op, sector: u64, nr: u64) -> RequestOutcome {
        let faults = self.faults;
        let [least, most] = self.latency_ns;
        let mut takes_ns = u64::from(self.random.within(least, most));
        if self.random.per_mille(faults.slow) {
            takes_ns += u64::from(faults.slow_us) * NS_PER_US;
        }
        let mut status = Status::Ok;
        if self.random.per_mille(faults.errors) {
            status = self.random.pick(&[Status::IoError, Status::NoSpace]);
        }
        if let Some([from, to]) = faults.bad {
            let touches = sector < u64::from(to) && u64::from(from) < sector + nr;
            if touches && op != Op::Flush {
                status = Status::IoError;
            }
        }
        let stuck = self.random.per_mille(faults.stuck);
        if stuck {
            takes_ns += u64::from(faults.stuck_us) * NS_PER_US;
        }
        RequestOutcome { status, takes_ns, stuck }
    }

    /// Whether it is dead by now.
    pub(super) fn is_dead(&self, now_ns: u64) -> bool {
        let dead_ns = self.faults.dead_us.map(|us| u64::from(us) * NS_PER_US);
        dead_ns.is_some_and(|dead_ns| now_ns - self.start_ns >= dead_ns)
    }

    /// When a request is done that takes until `done_ns`: not while the drive stalls.
    pub(super) fn after_stall(&self, done_ns: u64) -> u64 {
        let Some([at_us, for_us]) = self.faults.stall_us else { return done_ns };
        let from_ns = self.start_ns + u64::from(at_us) * NS_PER_US;
        let until_ns = from_ns + u64::from(for_us) * NS_PER_US;
        if (from_ns..until_ns).contains(&done_ns) { until_ns } else { done_ns }
    }

    /// Changes a sector.
    pub(super) fn write(&mut self, sector: u64, stamp: u64, flags: OpFlags) {
        self.changes += 1;
        let cell = &mut self.cells[sector as usize];
        (cell.stamp, cell.number) = (stamp, self.changes);
        if !self.limits.cache || flags.has(OpFlags::FUA) {
            cell.durable = self.changes;
        } else {
            self.dirty.push(sector as u32);
        }
    }

    /// What a flush that is handed over now will have made durable.
    pub(super) fn begin_flush(&mut self) -> Vec<(u32, u32)> {
        self.dirty.sort_unstable();
        self.dirty.dedup();
        let cells = &self.cells;
        self.dirty.retain(|s| cells[*s as usize].durable < cells[*s as usize].number);
        self.dirty.iter().map(|sector| (*sector, cells[*sector as usize].number)).collect()
    }

    /// The flush of this number is done.
    pub(super) fn end_flush(&mut self, covered: &[(u32, u32)]) {
        for (sector, number) in covered {
            let cell = &mut self.cells[*sector as usize];
            cell.durable = cell.durable.max(*number);
        }
    }

    /// What is in a sector.
    pub(super) fn stamp(&self, sector: u64) -> u64 {
        self.cells[sector as usize].stamp
    }

    /// Number of its last change.
    pub(super) fn number(&self, sector: u64) -> u32 {
        self.cells[sector as usize].number
    }

    /// Whether a change, or a later one, would survive.
    pub(super) fn is_durable(&self, sector: u32, number: u32) -> bool {
        self.cells[sector as usize].durable >= number
    }
}
