//! `Profile`: what a trace's I/Os are like: rates over time, sizes, strides, working set, mix and
//! latencies.
//!
//! Owns counters of bounded size, however long the trace: 120 slots of time, a bin for each power
//! of two, a sketch of the pages touched, and some words for each device. Fed with each I/O; shown
//! by `page.rs` and `json.rs`. Called by `millrace-lab trace report`, also beside blktrace's spans.

mod json;
mod page;
mod pages;
mod slots;

use millrace_block::{OPS, Op};
use millrace_trace::Measure;

use self::pages::{PAGE_BYTES, Sketch};
use self::slots::Slots;
use super::{TraceIo, unmeasured_note};

pub use page::text;

/// Bins: one for each power of two, by its exponent; 0 holds 0 and 1.
const BINS: usize = 64;
/// Pages of one I/O that are counted: 16 MiB, so that a hostile length costs no time.
const PAGES_MAX: u64 = 4_096;

/// How many by powers of two.
type Bins = [u64; BINS];

/// I/Os of one operation.
#[derive(Debug, Clone, Default)]
struct OpCount {
    ios: u64,
    bytes: u64,
    fua: u64,
    latency: Measure,
}

/// How far I/Os are from the end of the one before on their device.
#[derive(Debug, Clone)]
struct Strides {
    sequential: u64,
    forward: Bins,
    backward: Bins,
}

/// I/Os of one device.
#[derive(Debug, Clone, Copy, Default)]
struct DeviceCount {
    ios: u64,
    reads: u64,
    bytes: u64,
    sequential: u64,
    /// Where its last read or write ended; none before the first.
    last_end: Option<u64>,
    /// The farthest end.
    end: u64,
}

/// What a trace's I/Os are like.
#[derive(Debug, Clone)]
pub struct Profile {
    ops: [OpCount; OPS],
    /// Sizes of reads and of writes.
    sizes: [Bins; 2],
    strides: Strides,
    devices: Vec<DeviceCount>,
    /// Pages read, and pages written.
    pages: [Sketch; 2],
    long: u64,
    slots: Slots,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            ops: Default::default(),
            sizes: [[0; BINS]; 2],
            strides: Strides { sequential: 0, forward: [0; BINS], backward: [0; BINS] },
            devices: Vec::new(),
            pages: [Sketch::default(), Sketch::default()],
            long: 0,
            slots: Slots::default(),
        }
    }
}

impl Profile {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Profile {
        Profile::default()
    }

    /// One more I/O.
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

    /// Notes the pages of a read or write.
    fn touch(&mut self, io: &TraceIo, way: usize, end: u64) {
        let (first, behind) = (io.offset_bytes / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        self.long += u64::from(behind - first > PAGES_MAX);
        for page in first..behind.min(first + PAGES_MAX) {
            self.pages[way].add(io.device, page);
        }
    }

    /// Whether there was no I/O.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ios() == 0
    }

    fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }

    /// How many I/Os have no latency although others have one, in words.
    #[must_use]
    pub fn unmeasured_note(&self) -> Option<String> {
        unmeasured_note(self.ios(), self.ops.iter().map(|op| op.latency.n).sum())
    }

    /// Time of the last I/O.
    fn last_ns(&self) -> u64 {
        self.slots.last_ns
    }

    /// Latencies of all that have one.
    fn has_latency(&self) -> bool {
        self.ops.iter().any(|op| op.latency.n > 0)
    }

    /// Bytes touched by reads or writes, by reads, by writes.
    fn working_set(&self) -> [f64; 3] {
        working_set(&self.pages)
    }

    /// What the numbers do not hold.
    fn notes(&self) -> Option<String> {
        let long = self.long;
        let note =
            || format!("{long} I/Os are longer than 16 MiB: the working set has their start");
        (long > 0).then(note)
    }
}

fn working_set(pages: &[Sketch; 2]) -> [f64; 3] {
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

/// The bin of a number.
fn bin(number: u64) -> usize {
    number.max(1).ilog2() as usize
}

/// The bins from the first to the last that are used; empty if none is.
fn used(bins: &Bins) -> std::ops::Range<usize> {
    let is_used = |bin: &usize| bins[*bin] > 0;
    let first = (0..BINS).find(is_used).unwrap_or(0);
    let last = (0..BINS).rev().find(is_used);
    first..last.map_or(first, |last| last + 1)
}

#[cfg(test)]
mod tests;
