//! `TraceProfile`: statistics of a trace's I/Os: rates over time, sizes, strides, working set, mix
//! and latencies.
//!
//! Owns counters of bounded size, however long the trace: 120 time slots, a bin for each power of
//! two, a sketch of the pages touched, and a few words per device. Fed with each I/O; shown by
//! `page.rs` and `json.rs`. Called by `millrace-lab trace report`, also beside blktrace's spans.

mod json;
mod page;
mod pages;
mod slots;

use millrace_block::{OPS, Op};
use millrace_trace::Measure;

use self::pages::{PAGE_BYTES, PageSketch};
use self::slots::ArrivalSlots;
use super::{TraceIo, unmeasured_note};

pub use page::text;

/// Number of bins: one for each power of two, by its exponent; bin 0 holds 0 and 1.
const BINS: usize = 64;
/// Largest number of pages counted per I/O: 16 MiB, so that a huge length in a hostile trace costs
/// no time.
const PAGES_MAX: u64 = 4_096;

/// Counts by powers of two.
type PowerBins = [u64; BINS];

/// I/O counts of one operation.
#[derive(Debug, Clone, Default)]
struct OpCount {
    ios: u64,
    bytes: u64,
    fua: u64,
    latency: Measure,
}

/// Distances of I/Os from the end of the previous I/O on the same device.
#[derive(Debug, Clone)]
struct Strides {
    sequential: u64,
    forward: PowerBins,
    backward: PowerBins,
}

/// I/O counts of one device.
#[derive(Debug, Clone, Copy, Default)]
struct DeviceCount {
    ios: u64,
    reads: u64,
    bytes: u64,
    sequential: u64,
    /// End offset of the last read or write; None before the first.
    last_end: Option<u64>,
    /// Highest end offset of any read or write.
    end: u64,
}

/// Statistics of a trace's I/Os.
#[derive(Debug, Clone)]
pub struct TraceProfile {
    ops: [OpCount; OPS],
    /// Sizes of reads, and of writes.
    sizes: [PowerBins; 2],
    strides: Strides,
    devices: Vec<DeviceCount>,
    /// Distinct pages read, and distinct pages written.
    pages: [PageSketch; 2],
    long: u64,
    slots: ArrivalSlots,
}

impl Default for TraceProfile {
    fn default() -> TraceProfile {
        TraceProfile {
            ops: Default::default(),
            sizes: [[0; BINS]; 2],
            strides: Strides { sequential: 0, forward: [0; BINS], backward: [0; BINS] },
            devices: Vec::new(),
            pages: [PageSketch::default(), PageSketch::default()],
            long: 0,
            slots: ArrivalSlots::default(),
        }
    }
}

impl TraceProfile {
    /// Creates empty statistics.
    #[must_use]
    pub fn new() -> TraceProfile {
        TraceProfile::default()
    }

    /// Adds an I/O.
    pub fn add(&mut self, io: &TraceIo) {
        let pages = &self.pages;
        self.slots.add(io, || working_set(pages));
        let op = &mut self.ops[io.op as usize];
        op.ios += 1;
        op.bytes = op.bytes.saturating_add(io.len_bytes);
        op.fua += u64::from(io.fua);
        if let Some(latency_ns) = io.latency_ns {
            op.latency.add(latency_ns);
        }
        let place = io.device as usize;
        if self.devices.len() <= place {
            self.devices.resize(place + 1, DeviceCount::default());
        }
        let device = &mut self.devices[place];
        device.ios += 1;
        device.reads += u64::from(io.op == Op::Read);
        if !matches!(io.op, Op::Read | Op::Write) {
            return;
        }
        let end = io.offset_bytes.saturating_add(io.len_bytes);
        device.bytes = device.bytes.saturating_add(io.len_bytes);
        device.end = device.end.max(end);
        if let Some(last) = device.last_end.replace(end) {
            device.sequential += u64::from(last == io.offset_bytes);
            self.strides.add(last, io.offset_bytes);
        }
        let way = usize::from(io.op == Op::Write);
        self.sizes[way][bin(io.len_bytes)] += 1;
        self.touch(io, way, end);
    }

    /// Adds the pages of a read or write to the working set.
    fn touch(&mut self, io: &TraceIo, way: usize, end: u64) {
        let (first, behind) = (io.offset_bytes / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        self.long += u64::from(behind - first > PAGES_MAX);
        for page in first..behind.min(first + PAGES_MAX) {
            self.pages[way].add(io.device, page);
        }
    }

    /// Returns true if no I/O was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ios() == 0
    }

    fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }

    /// Returns a note if some I/Os have a latency and others do not.
    #[must_use]
    pub fn unmeasured_note(&self) -> Option<String> {
        unmeasured_note(self.ios(), self.ops.iter().map(|op| op.latency.n).sum())
    }

    /// Returns the time of the last I/O, in nanoseconds.
    fn last_ns(&self) -> u64 {
        self.slots.last_ns
    }

    /// Returns true if any I/O has a latency.
    fn has_latency(&self) -> bool {
        self.ops.iter().any(|op| op.latency.n > 0)
    }

    /// Returns the distinct bytes touched in total, by reads, and by writes.
    fn working_set(&self) -> [f64; 3] {
        working_set(&self.pages)
    }

    /// Returns a note about I/Os that the numbers cover only in part.
    fn notes(&self) -> Option<String> {
        let long = self.long;
        let note = || {
            format!(
                "{long} I/Os are longer than 16 MiB; the working set counts only their first 16 MiB"
            )
        };
        (long > 0).then(note)
    }
}

fn working_set(pages: &[PageSketch; 2]) -> [f64; 3] {
    let counts = [pages[0].with(&pages[1]).count(), pages[0].count(), pages[1].count()];
    counts.map(|pages| pages.round() * PAGE_BYTES as f64)
}

impl Strides {
    fn add(&mut self, last: u64, offset: u64) {
        match offset.cmp(&last) {
            std::cmp::Ordering::Equal => self.sequential += 1,
            std::cmp::Ordering::Greater => self.forward[bin(offset - last)] += 1,
            std::cmp::Ordering::Less => self.backward[bin(last - offset)] += 1,
        }
    }

    fn all(&self) -> u64 {
        let bins = self.forward.iter().chain(&self.backward);
        self.sequential + bins.sum::<u64>()
    }
}

/// Returns the bin of a number.
fn bin(number: u64) -> usize {
    number.max(1).ilog2() as usize
}

/// Returns the range of bins from the first to the last nonzero one; empty if all are zero.
fn used(bins: &PowerBins) -> std::ops::Range<usize> {
    let is_used = |bin: &usize| bins[*bin] > 0;
    let first = (0..BINS).find(is_used).unwrap_or(0);
    let last = (0..BINS).rev().find(is_used);
    first..last.map_or(first, |last| last + 1)
}

#[cfg(test)]
mod tests;
