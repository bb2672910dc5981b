//! `ObservedInterval`: a volume between two reports, and how much its drives' counters have grown.
//!
//! The calculations in causes.rs and observations.rs use this type.

use millrace_block::DiskCounter;

use super::causes::FLUSH;
use crate::views::report::{Drive, OpCounts, OpStages, Report};

#[derive(Clone, Copy)]
pub struct ObservedInterval<'a> {
    pub volume: &'a str,
    pub now: &'a Report,
    pub before: &'a Report,
    pub seconds: f64,
}

pub struct DriveInterval<'a> {
    pub now: &'a Drive,
    pub before: Option<&'a Drive>,
}

impl<'a> ObservedInterval<'a> {
    pub fn new(volume: &'a str, now: &'a Report, before: &'a Report) -> ObservedInterval<'a> {
        ObservedInterval { volume, now, before, seconds: now.seconds_since(Some(before)) }
    }

    pub fn drives(&self) -> impl Iterator<Item = DriveInterval<'a>> {
        let (before, volume) = (self.before, self.volume);
        let of_volume = self.now.drives.iter().filter(move |drive| drive.volume == volume);
        of_volume.map(move |now| DriveInterval {
            now,
            before: before.drives.iter().find(|drive| drive.name == now.name),
        })
    }

    /// Returns two counts of operations that completed in the interval: those of clients, and those
    /// of drives. Counts only kinds of operations, such as `read`, for which `is_meant` returns
    /// true.
    pub fn completed(&self, is_meant: impl Fn(&str) -> bool) -> (u64, u64) {
        let ios = |op: &OpCounts| if is_meant(&op.op) { op.ios } else { 0 };
        let of = |report: &Report| {
            let volumes = report.volumes.iter().filter(|one| one.name == self.volume);
            volumes.flat_map(|volume| &volume.ops).map(ios).sum::<u64>()
        };
        let at_drives = self.drives().map(|drive| drive.added(ios)).sum();
        (of(self.now).saturating_sub(of(self.before)), at_drives)
    }
}

impl DriveInterval<'_> {
    /// Returns the growth of a counter in the interval, summed over the drive's kinds of
    /// operations. `of` reads the counter of one kind.
    pub fn added(&self, of: impl Fn(&OpCounts) -> u64) -> u64 {
        let sum = |drive: &Drive| drive.ops.iter().map(&of).sum::<u64>();
        sum(self.now).saturating_sub(self.before.map_or(0, sum))
    }

    pub fn counted(&self, counter: DiskCounter) -> u64 {
        self.now.count(counter).saturating_sub(self.before.map_or(0, |drive| drive.count(counter)))
    }

    /// Returns the number of completed I/Os. Flushes are not counted.
    pub fn ios(&self) -> u64 {
        self.added(|op| if op.op == FLUSH { 0 } else { op.ios })
    }

    /// Returns the time that I/Os spent in some stages of their processing, in nanoseconds. Flushes
    /// are not included. `of` selects the stages and returns their time for one kind of operation.
    pub fn time_ns(&self, of: impl Fn(&OpStages) -> u64) -> u64 {
        let stages = |op: &OpCounts| op.stages.as_ref().map_or(0, &of);
        self.added(|op| if op.op == FLUSH { 0 } else { stages(op) })
    }

    pub fn mean_ms(&self) -> f64 {
        let service_ns = self.time_ns(|stages| stages.service.sum_ns);
        service_ns as f64 / self.ios().max(1) as f64 / 1e6
    }
}
