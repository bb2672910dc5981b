//! `TraceProfile`: statistics of a trace's I/Os: rates over time, sizes, strides, working set, mix
//! and latencies.
//!
//! A profile has counters whose size does not depend on the trace's length: 120 time slots, a bin
//! for each power of two, a sketch of the pages touched, and a few words per device. `millrace-lab
//! trace report` adds each I/O of any trace; the report of a blktrace recording also has spans.
//! `page.rs` and `json.rs` show the statistics.

mod json;
mod page;
mod pages;

use millrace_block::{OPS, Op};
use millrace_trace::Measure;

use self::pages::{PAGE_BYTES, PageSketch};
use super::slots::{Slots, TimeSlot};
use super::{TraceIo, unmeasured_note};

/// Number of bins. Bin n counts values from 2^n to 2^(n+1) - 1; bin 0 also counts 0.
const BINS: usize = 64;
/// Largest number of pages counted per I/O; 16 MiB of data. Without a limit, a huge length in a
/// hostile trace would take a long time.
const PAGES_MAX: u64 = 4_096;

#[derive(Debug, Clone, Copy)]
struct PowerBins([u64; BINS]);

impl Default for PowerBins {
    fn default() -> PowerBins {
        PowerBins([0; BINS])
    }
}

impl PowerBins {
    fn add(&mut self, number: u64) {
        self.0[number.max(1).ilog2() as usize] += 1;
    }

    /// Returns the bins from the first to the last nonzero one. Empty if all bins are zero.
    fn used(&self) -> std::ops::Range<usize> {
        let first = self.0.iter().position(|count| *count > 0).unwrap_or(0);
        let last = self.0.iter().rposition(|count| *count > 0);
        first..last.map_or(first, |last| last + 1)
    }
}

#[derive(Debug, Clone, Default)]
struct OpCount {
    ios: u64,
    bytes: u64,
    fua: u64,
    latency: Measure,
}

/// Distances from the end of an I/O to the start of the next I/O on the same device, counted in
/// bins of powers of two.
#[derive(Debug, Clone, Default)]
struct Strides {
    sequential: u64,
    forward: PowerBins,
    backward: PowerBins,
}

#[derive(Debug, Clone, Copy, Default)]
struct DeviceCount {
    ios: u64,
    reads: u64,
    bytes: u64,
    sequential: u64,
    last_end: Option<u64>,
    end: u64,
}

#[derive(Debug, Clone)]
struct ArrivalSlot {
    /// Number of reads, of writes, and of other I/Os.
    ios: [u64; 3],
    /// Number of bytes read and of bytes written.
    bytes: [u64; 2],
    /// Count and sum of the latencies, for reads and for writes.
    latency: [(u64, u64); 2],
    /// Working set in bytes at the end of this time slot: total, read, and written. `None` if no
    /// I/O arrived in the slot.
    touched: Option<[f64; 3]>,
}

impl TimeSlot for ArrivalSlot {
    const EMPTY: ArrivalSlot =
        ArrivalSlot { ios: [0; 3], bytes: [0; 2], latency: [(0, 0); 2], touched: None };

    fn merge(&mut self, later: &ArrivalSlot) {
        self.ios.iter_mut().zip(later.ios).for_each(|(mine, theirs)| *mine += theirs);
        let bytes = self.bytes.iter_mut().zip(later.bytes);
        bytes.for_each(|(mine, theirs)| *mine = mine.saturating_add(theirs));
        for (mine, theirs) in self.latency.iter_mut().zip(later.latency) {
            *mine = (mine.0 + theirs.0, mine.1.saturating_add(theirs.1));
        }
        self.touched = later.touched.or(self.touched);
    }
}

/// Statistics of a trace's I/Os.
#[derive(Debug, Clone, Default)]
pub struct TraceProfile {
    ops: [OpCount; OPS],
    sizes: [PowerBins; 2],
    strides: Strides,
    devices: Vec<DeviceCount>,
    pages: [PageSketch; 2],
    long: u64,
    slots: Slots<ArrivalSlot>,
    previous_ns: Option<u64>,
}

impl TraceProfile {
    /// Adds an I/O.
    pub fn add(&mut self, io: &TraceIo) {
        self.arrive(io);
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
        self.sizes[way].add(io.len_bytes);
        self.touch(io, way, end);
    }

    /// Counts an I/O in its time slot. If the I/O begins a new slot, first stores the size of the
    /// working set so far. This size belongs to the slot of the previous I/O.
    fn arrive(&mut self, io: &TraceIo) {
        let slot_of = |time_ns: u64| time_ns / self.slots.slot_ns;
        let previous = self.previous_ns.replace(io.at_ns);
        if let Some(previous_ns) =
            previous.filter(|previous| slot_of(*previous) != slot_of(io.at_ns))
        {
            self.slots.at(previous_ns).touched = Some(self.working_set());
        }
        let slot = self.slots.at(io.at_ns);
        let way = match io.op {
            Op::Read => 0,
            Op::Write => 1,
            _ => 2,
        };
        slot.ios[way] += 1;
        if way < 2 {
            slot.bytes[way] = slot.bytes[way].saturating_add(io.len_bytes);
            if let Some(latency_ns) = io.latency_ns {
                let (count, sum) = &mut slot.latency[way];
                (*count, *sum) = (*count + 1, sum.saturating_add(latency_ns));
            }
        }
    }

    fn touch(&mut self, io: &TraceIo, way: usize, end: u64) {
        let (first, behind) = (io.offset_bytes / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        self.long += u64::from(behind - first > PAGES_MAX);
        for page in first..behind.min(first + PAGES_MAX) {
            self.pages[way].add(io.device, page);
        }
    }

    /// Returns true if the profile has no I/O.
    pub fn is_empty(&self) -> bool {
        self.ios() == 0
    }

    fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }

    /// Returns a note if some I/Os have a latency and others do not.
    pub fn unmeasured_note(&self) -> Option<String> {
        unmeasured_note(self.ios(), self.ops.iter().map(|op| op.latency.n).sum())
    }

    fn last_ns(&self) -> u64 {
        self.slots.last_ns
    }

    fn has_latency(&self) -> bool {
        self.ops.iter().any(|op| op.latency.n > 0)
    }

    /// Returns the number of distinct bytes accessed by all I/Os, by reads, and by writes.
    fn working_set(&self) -> [f64; 3] {
        let [read, written] = &self.pages;
        [read.with(written).count(), read.count(), written.count()]
            .map(|pages| pages.round() * PAGE_BYTES as f64)
    }

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

impl Strides {
    fn add(&mut self, last: u64, offset: u64) {
        match offset.cmp(&last) {
            std::cmp::Ordering::Equal => self.sequential += 1,
            std::cmp::Ordering::Greater => self.forward.add(offset - last),
            std::cmp::Ordering::Less => self.backward.add(last - offset),
        }
    }

    fn all(&self) -> u64 {
        let bins = self.forward.0.iter().chain(&self.backward.0);
        self.sequential + bins.sum::<u64>()
    }
}

#[cfg(test)]
mod tests;
