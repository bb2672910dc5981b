//! `DiskImage`: the content of one model drive, the part of it that would survive a power cut, and
//! its faults.
//!
//! The oracle owns the disk images, and the drives' queues (drive.rs) change them. The drive
//! behaves as badly as the specification allows: a flush makes durable only the writes completed
//! before the flush was submitted, and a request takes effect when it completes. For each sector,
//! the image keeps all contents that the sector might have after a power cut.

use millrace_block::{Op, OpFlags, Status};

use super::random::Random;
use super::scenario::{DriveSpec, FaultSpec, LimitSpec};
use super::time::NS_PER_US;

/// A change of one sector: the change's number, and the sector's new content (a stamp that names
/// the writing bio, or 0).
type Change = (u32, u64);

/// Changes of a sector that may survive a power cut, oldest first. The oldest one is durable.
#[derive(Debug, Clone, Default)]
struct SectorCell(Vec<Change>);

impl SectorCell {
    fn last(&self) -> Change {
        self.0.last().copied().unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestOutcome {
    pub(super) status: Status,
    pub(super) takes_ns: u64,
    /// If true, the drive wakes no thread when this request completes. The completion is found
    /// late, or the request times out.
    pub(super) stuck: bool,
}

pub(super) struct DiskImage {
    pub(super) limits: LimitSpec,
    faults: FaultSpec,
    /// True after the drive has failed one write because of `FaultSpec::once_us`.
    has_failed: bool,
    latency_ns: [u32; 2],
    pub(super) sectors: u64,
    cells: Vec<SectorCell>,
    /// Sectors with changes that may not be durable yet. A sector may occur several times.
    dirty: Vec<u32>,
    changes: u32,
    random: Random,
    /// True after a freeze has drained the drive. A request that enters now is a violation.
    pub(super) frozen: bool,
    pub(super) quiesced: bool,
    pub(super) inside: u32,
    start_ns: u64,
}

impl DiskImage {
    pub(super) fn new(spec: &DriveSpec, sectors: u64) -> DiskImage {
        DiskImage {
            limits: spec.limits,
            faults: spec.faults,
            has_failed: false,
            latency_ns: spec.latency_ns,
            sectors,
            cells: vec![SectorCell::default(); spec.sectors as usize],
            dirty: Vec::new(),
            changes: 0,
            random: Random::new(0, 0),
            frozen: false,
            quiesced: false,
            inside: 0,
            start_ns: 0,
        }
    }

    pub(super) fn start(&mut self, seed: u64, drive: usize, start_ns: u64) {
        self.random = Random::new(seed, 100 + drive as u64);
        self.start_ns = start_ns;
    }

    pub(super) fn grow(&mut self) {
        self.sectors = self.cells.len() as u64;
    }

    /// Disables further delays, busy replies and hangs. Bad sectors and a dead drive stay as they
    /// are.
    pub(super) fn calm(&mut self) {
        (self.faults.stuck, self.faults.busy, self.faults.slow) = (0, 0, 0);
    }

    pub(super) fn is_busy(&mut self) -> bool {
        self.random.per_mille(self.faults.busy)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.random.per_mille(500)
    }

    pub(super) fn fate(
        &mut self,
        (op, flags): (Op, OpFlags),
        (sector, nr): (u64, u64),
        now_ns: u64,
    ) -> RequestOutcome {
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
        let is_wanted = op == Op::Write && (flags.has(OpFlags::FUA) || !self.limits.fua);
        if is_wanted && !self.has_failed && self.is_after(faults.once_us, now_ns) {
            (self.has_failed, status) = (true, Status::IoError);
        }
        let stuck = self.random.per_mille(faults.stuck);
        if stuck {
            takes_ns += u64::from(faults.stuck_us) * NS_PER_US;
        }
        RequestOutcome { status, takes_ns, stuck }
    }

    fn is_after(&self, since_us: Option<u32>, now_ns: u64) -> bool {
        let since_ns = since_us.map(|us| u64::from(us) * NS_PER_US);
        since_ns.is_some_and(|since_ns| now_ns - self.start_ns >= since_ns)
    }

    pub(super) fn is_dead(&self, now_ns: u64) -> bool {
        let FaultSpec { dead_us, dead_for_us, .. } = self.faults;
        let back_us = dead_us.filter(|_| dead_for_us > 0).map(|us| us + dead_for_us);
        self.is_after(dead_us, now_ns) && !self.is_after(back_us, now_ns)
    }

    pub(super) fn after_stall(&self, done_ns: u64) -> u64 {
        let Some([at_us, for_us]) = self.faults.stall_us else { return done_ns };
        let from_ns = self.start_ns + u64::from(at_us) * NS_PER_US;
        let until_ns = from_ns + u64::from(for_us) * NS_PER_US;
        if (from_ns..until_ns).contains(&done_ns) { until_ns } else { done_ns }
    }

    /// Changes the content of a sector to `stamp`. With FUA, or if the drive has no volatile cache,
    /// the change is durable at once.
    pub(super) fn write(&mut self, sector: u64, stamp: u64, flags: OpFlags) {
        self.changes += 1;
        let changes = &mut self.cells[sector as usize].0;
        if !self.limits.cache || flags.has(OpFlags::FUA) {
            changes.clear();
        } else {
            if changes.is_empty() {
                changes.push(Change::default());
            }
            self.dirty.push(sector as u32);
        }
        changes.push((self.changes, stamp));
    }

    /// Starts a flush. Returns the changes that the flush will make durable, as pairs of sector and
    /// change number.
    pub(super) fn begin_flush(&mut self) -> Vec<(u32, u32)> {
        self.dirty.sort_unstable();
        self.dirty.dedup();
        let cells = &self.cells;
        self.dirty.retain(|sector| cells[*sector as usize].0.len() > 1);
        self.dirty.iter().map(|sector| (*sector, cells[*sector as usize].last().0)).collect()
    }

    pub(super) fn end_flush(&mut self, covered: &[(u32, u32)]) {
        for (sector, number) in covered {
            let changes = &mut self.cells[*sector as usize].0;
            // The change may be missing in the list: a later FUA write to the sector, or the end of
            // a flush that covers a newer change, removes all older changes.
            let covered = changes.iter().position(|(change, _)| change == number);
            changes.drain(..covered.unwrap_or(0));
        }
    }

    pub(super) fn stamp(&self, sector: u64) -> u64 {
        self.cells[sector as usize].last().1
    }

    /// Returns the stamps that a sector may hold after a power cut at this moment. A stamp
    /// identifies the write of a sector's data; 0 stands for zeroes.
    pub(super) fn survivors(&self, sector: u64) -> impl Iterator<Item = u64> + '_ {
        let changes = &self.cells[sector as usize].0;
        let untouched = changes.is_empty().then_some(0);
        untouched.into_iter().chain(changes.iter().map(|(_, stamp)| *stamp))
    }
}
