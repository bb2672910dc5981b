//! `Timeline`: the events of a recording over time.
//!
//! A timeline has counts per time slot. A drive's sectors are counted in `SECTOR_BINS` bins of
//! equal width. If a sector lies past the last bin, all bins become twice as wide, so memory is
//! bounded (1 MiB). The reader adds each event, and `Spans` adds each span; `report.rs` shows the
//! counts.

use millrace_block::blktrace::{EventCode, category};
use millrace_trace::{IoKind, IoListener, Sample, Span, Spans, TraceEntry};

use super::slots::{Slots, TimeSlot};

pub(super) const SECTOR_BINS: usize = 48;
/// Largest number of drives with a plot of their own.
pub(super) const DRIVES_SHOWN: usize = 8;
pub(super) const CPUS_SHOWN: usize = 8;
/// Number of latency bins, two for each power of two.
pub(super) const LATENCY_BINS: usize = 84;

pub(super) const STAGES: [Span; 6] =
    [Span::Q2G, Span::G2I, Span::I2D, Span::M2D, Span::D2C, Span::Q2C];

#[derive(Debug, Clone)]
pub(super) struct TimelineSlot {
    /// For each stage of an I/O, two sums over the I/Os that ended the stage in this time slot:
    /// their number, and their times in the stage in nanoseconds.
    pub(super) stages: [(u64, u64); STAGES.len()],
    pub(super) completed: [u64; IoKind::ALL.len()],
    pub(super) bytes: u64,
    /// Number of queued I/Os by CPU. The last entry also counts all further CPUs.
    pub(super) cpus: [u64; CPUS_SHOWN],
    /// For each drive, the number of issued requests and the largest queue depth.
    pub(super) drives: [(u64, u64); DRIVES_SHOWN],
    pub(super) latency: [u32; LATENCY_BINS],
    pub(super) sectors: [[u32; SECTOR_BINS]; DRIVES_SHOWN],
}

impl TimeSlot for TimelineSlot {
    const EMPTY: TimelineSlot = TimelineSlot {
        stages: [(0, 0); STAGES.len()],
        completed: [0; IoKind::ALL.len()],
        bytes: 0,
        cpus: [0; CPUS_SHOWN],
        drives: [(0, 0); DRIVES_SHOWN],
        latency: [0; LATENCY_BINS],
        sectors: [[0; SECTOR_BINS]; DRIVES_SHOWN],
    };

    fn merge(&mut self, other: &TimelineSlot) {
        for (mine, theirs) in self.stages.iter_mut().zip(other.stages) {
            *mine = (mine.0 + theirs.0, mine.1.wrapping_add(theirs.1));
        }
        self.completed.iter_mut().zip(other.completed).for_each(|(mine, theirs)| *mine += theirs);
        self.bytes += other.bytes;
        self.cpus.iter_mut().zip(other.cpus).for_each(|(mine, theirs)| *mine += theirs);
        for (mine, theirs) in self.drives.iter_mut().zip(other.drives) {
            *mine = (mine.0 + theirs.0, mine.1.max(theirs.1));
        }
        self.latency.iter_mut().zip(other.latency).for_each(|(mine, theirs)| *mine += theirs);
        let sectors = self.sectors.iter_mut().flatten();
        sectors.zip(other.sectors.iter().flatten()).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Counts of a recording's events over time.
#[derive(Debug, Default)]
pub struct Timeline {
    pub(super) time: Slots<TimelineSlot>,
    /// For each drive, the width of a bin: 2^n sectors.
    pub(super) sector_bits: [u32; DRIVES_SHOWN],
    pub(super) events: u64,
}

impl Timeline {
    /// Counts an event in its time slot. `spans` must already include the event, and gives the
    /// drive and its queue depth.
    pub fn entry(&mut self, entry: &TraceEntry, spans: &Spans) {
        let record = &entry.record;
        self.events += 1;
        let Some(act) = record.act().filter(|_| !record.has(category::PC)) else { return };
        let place = spans.drives().iter().position(|drive| drive.device == record.device);
        let shown = place.filter(|place| *place < DRIVES_SHOWN);
        let cpu = (record.cpu as usize).min(CPUS_SHOWN - 1);
        let with_sectors = shown.filter(|_| record.bytes > 0);
        let bin = with_sectors.map_or(0, |drive| self.sector_bin(drive, record.sector));
        let Some(slot) = self.slot(record.time_ns) else { return };
        match act {
            EventCode::Queue => {
                slot.cpus[cpu] += 1;
                if let (Some(drive), 1..) = (shown, record.bytes) {
                    slot.sectors[drive][bin] += 1;
                }
            }
            EventCode::Issue => {
                if let (Some(drive), Some(place)) = (shown, place) {
                    let (issued, deepest) = &mut slot.drives[drive];
                    *issued += 1;
                    *deepest = (*deepest).max(spans.drives()[place].depth_now);
                }
            }
            EventCode::Complete => {
                slot.completed[IoKind::of(record) as usize] += 1;
                slot.bytes += u64::from(record.bytes);
            }
            _ => {}
        }
    }

    /// Returns the bin of a sector. Doubles the width of all bins until the sector has one.
    fn sector_bin(&mut self, drive: usize, sector: u64) -> usize {
        while sector >> self.sector_bits[drive] >= SECTOR_BINS as u64 {
            self.sector_bits[drive] += 1;
            for slot in &mut self.time.slots {
                let bins = &mut slot.sectors[drive];
                for bin in 0..SECTOR_BINS {
                    let sum = |at: usize| bins.get(at).copied().unwrap_or(0);
                    bins[bin] = sum(2 * bin) + sum(2 * bin + 1);
                }
            }
        }
        (sector >> self.sector_bits[drive]) as usize
    }

    /// Returns the time slot that contains `time_ns`; `None` for a time before the first event,
    /// which is a negative number stored as `u64`.
    fn slot(&mut self, time_ns: u64) -> Option<&mut TimelineSlot> {
        (time_ns <= i64::MAX as u64).then(|| self.time.at(time_ns))
    }
}

impl IoListener for Timeline {
    fn sample(&mut self, sample: &Sample) {
        let Some(slot) = self.slot(sample.time_ns) else { return };
        let stage = STAGES.iter().position(|stage| *stage == sample.span);
        if let Some((count, total)) = stage.map(|stage| &mut slot.stages[stage]) {
            *count += 1;
            *total = total.wrapping_add(sample.value_ns);
        }
        if matches!(sample.span, Span::Q2C | Span::Q2Cdm) {
            slot.latency[latency_bin(sample.value_ns)] += 1;
        }
    }
}

fn latency_bin(value_ns: u64) -> usize {
    let log = value_ns.max(2).ilog2();
    let half = (value_ns.max(2) >> (log - 1)) & 1;
    (2 * log as usize + half as usize).min(LATENCY_BINS - 1)
}

pub(super) fn latency_start(bin: usize) -> f64 {
    let start = 2_f64.powi((bin / 2) as i32);
    if bin.is_multiple_of(2) { start } else { start * 1.5 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::slots::SLOTS_MAX;
    use millrace_block::blktrace::Record;

    #[test]
    fn nothing_is_lost_when_slots_and_bins_grow() {
        let (mut timeline, mut spans) = (Timeline::default(), Spans::new());
        for number in 0..10_000_u64 {
            let record = Record {
                time_ns: number * number * 1_000,
                sector: number * 1_000,
                bytes: 4096,
                action: EventCode::Queue.with(category::WRITE),
                ..Record::default()
            };
            let entry = TraceEntry { record, data: Vec::new(), trace: 0, cpu: 0 };
            spans.entry(&entry, &mut timeline);
            timeline.entry(&entry, &spans);
        }
        assert!(
            timeline.time.slots.len() <= SLOTS_MAX && timeline.time.slots.len() > SLOTS_MAX / 2
        );
        let queued: u64 = timeline.time.slots.iter().map(|slot| slot.cpus[0]).sum();
        let sectors = timeline.time.slots.iter().flat_map(|slot| slot.sectors[0]);
        assert_eq!((queued, sectors.map(u64::from).sum()), (10_000, 10_000));
    }

    #[test]
    fn a_latency_lies_in_its_bin() {
        for value in [2, 3, 4, 5, 6, 7, 100, 1_000_000, 123_456_789] {
            let bin = latency_bin(value);
            assert!(latency_start(bin) <= value as f64 && (value as f64) < latency_start(bin + 1));
        }
        assert_eq!((latency_bin(0), latency_bin(u64::MAX)), (2, LATENCY_BINS - 1));
    }
}
