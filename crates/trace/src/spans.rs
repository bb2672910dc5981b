//! `Spans`: measures the times between the steps of I/Os, in constant memory. Follows btt's rules,
//! so that users can compare the numbers with its output:
//! - Each device has a tree of the I/Os that were queued (Q) and not completed. Get request (G),
//!   sleep (S), insert (I), merge (M) and remap (A) belong to the I/O at the first sector of the
//!   event. Issue (D) and complete (C) belong to all I/Os in the range of the event, including
//!   merged I/Os.
//! - A time such as Q2G is measured at its second event. I2D, or M2D for a merged I/O, is measured
//!   again if the request is requeued (R) and reissued. D2C and Q2C are measured for every I/O in
//!   the completed range.
//! - In millrace's recordings S comes after I. Unlike in btt, S then splits I2D into I2S, the time
//!   before the I/O waits for a tag, and S2D. Without S, I2S is the whole I2D.
//! - If two I/Os in flight have the same first sector, only the later one is followed.
//! - Events without a length (except A and R), of passthrough commands, or before the device's
//!   first Q or A do not count. A time that does not advance counts as 1 ns.
//! - A split (X) is ignored. G, I and D of the parts count, because the parts lie in the queued
//!   range. A split I/O has no Q2C unless a single C covers it.
//!
//! An `IoListener` learns of each I/O that begins or completes. For listeners, completions of parts
//! count, and flushes are I/Os (see flushes.rs). On a device without Q and A, I/Os begin with D.
//!
//! Memory is bounded. Beyond `FLIGHTS_MAX` I/Os in flight (about 40 MiB), the oldest I/O of the
//! busiest device is dropped and counted. Beyond `DRIVES_MAX` devices, events are ignored and
//! counted.

use std::cell::RefCell;
use std::collections::BTreeMap;

use millrace_block::blktrace::{EventCode, Record, RemapData, category};

use super::drive::{Drive, IoKind, NEVER, SpanGroup, TrackedIo, delta};
use super::flushes::FlushTracker;
use super::measure::{MeasureTable, Span};
use super::tree::{EntryIndex, RangeTree};
use super::{TraceEntry, TraceNames};

/// Maximum number of I/Os in flight that `Spans` tracks. Further I/Os displace old ones.
pub const FLIGHTS_MAX: usize = 1 << 18;
/// Maximum number of devices that `Spans` tracks. Events of further devices are ignored.
pub const DRIVES_MAX: usize = 256;

/// Measured time between two steps of one I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Steps between which the time was measured.
    pub span: Span,
    /// Duration, in nanoseconds.
    pub value_ns: u64,
    /// End of the span, in nanoseconds since the first event.
    pub time_ns: u64,
    /// Index of the drive in [`Spans::drives`].
    pub drive: usize,
    /// CPU on which the I/O was queued.
    pub cpu: u32,
}

/// Receives the I/Os that a trace contains, and the measured times between their steps (spans).
pub trait IoListener {
    /// Called for each measured time between two steps of an I/O.
    fn sample(&mut self, _sample: &Sample) {}

    /// Called when an I/O begins, with its queue (Q) record, or with its issue (D) record on a
    /// device whose trace has no Q. Returns a number that identifies the I/O in `completed`.
    fn arrived(&mut self, _record: &Record) -> u64 {
        0
    }

    /// Called when the I/O with this number is complete.
    fn completed(&mut self, _number: u64, _time_ns: u64) {}
}

impl IoListener for () {}

/// Pair of listeners. Both listeners receive new I/Os and measured times. The second listener
/// assigns the numbers of the I/Os. Only the second listener receives completions, which name an
/// I/O by its number.
impl<A: IoListener, B: IoListener> IoListener for (&mut A, &mut B) {
    fn sample(&mut self, sample: &Sample) {
        self.0.sample(sample);
        self.1.sample(sample);
    }

    fn arrived(&mut self, record: &Record) -> u64 {
        self.0.arrived(record);
        self.1.arrived(record)
    }

    fn completed(&mut self, number: u64, time_ns: u64) {
        self.1.completed(number, time_ns);
    }
}

/// Combines the events of a trace into I/Os, and measures the times between their steps. To save
/// time, `Spans::default()` measures no times and only reports I/Os to an [`IoListener`].
#[derive(Debug, Default)]
pub struct Spans {
    /// If false, I/Os are reported to an `IoListener`, but no times are measured.
    is_measuring: bool,
    flushes: BTreeMap<u32, FlushTracker>,
    arrivals: u64,
    completions: u64,
    drives: Vec<Drive>,
    all: SpanGroup,
    cpus: BTreeMap<u32, SpanGroup>,
    kinds: [SpanGroup; IoKind::ALL.len()],
    flights: usize,
    /// Number of I/Os replaced before completion by a later I/O with the same first sector.
    pub replaced: u64,
    /// Number of I/Os dropped before completion, to bound memory.
    pub dropped: u64,
    /// Number of events ignored because the trace has too many devices.
    pub ignored: u64,
    found: Vec<EntryIndex>,
    /// Names by which devices are shown.
    pub names: TraceNames,
}

impl Spans {
    /// Creates statistics without any events.
    #[must_use]
    pub fn new() -> Spans {
        Spans { is_measuring: true, ..Spans::default() }
    }

    /// Returns true if the trace has only completions, so that the start of its I/Os is unknown.
    #[must_use]
    pub fn has_completions_only(&self) -> bool {
        self.arrivals == 0 && self.completions > 0
    }

    /// Returns statistics of the times between steps, over all I/Os.
    #[must_use]
    pub fn all(&self) -> &MeasureTable {
        &self.all.measures
    }

    /// Returns the devices, in the order of their first event.
    #[must_use]
    pub fn drives(&self) -> &[Drive] {
        &self.drives
    }

    /// Returns the number of each CPU, with statistics of the I/Os that were queued on that CPU:
    /// the times between their steps.
    pub fn cpus(&self) -> impl Iterator<Item = (u32, &MeasureTable)> {
        self.cpus.iter().map(|(cpu, group)| (*cpu, &group.measures))
    }

    /// Returns statistics of the times between steps, for reads, writes and discards separately.
    pub fn kinds(&self) -> impl Iterator<Item = (IoKind, &MeasureTable)> {
        IoKind::ALL.into_iter().zip(&self.kinds).map(|(kind, group)| (kind, &group.measures))
    }

    /// Returns how many I/Os are queued and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.drives.iter().filter(|drive| drive.begun).map(|drive| drive.flights.len()).sum()
    }

    /// Processes one event of the trace. Reports to `watch` each I/O that begins or completes, and
    /// each measured time between two steps.
    pub fn entry(&mut self, entry: &TraceEntry, watch: &mut impl IoListener) {
        let record = &entry.record;
        let Some(act) = record.act().filter(|_| !record.has(category::PC)) else { return };
        self.completions += u64::from(act == EventCode::Complete);
        if record.bytes == 0 && record.has(category::FLUSH) {
            return self.flush(entry, watch);
        }
        if record.bytes == 0 && !matches!(act, EventCode::Remap | EventCode::Requeue) {
            return;
        }
        match act {
            EventCode::Queue => self.queue(record, watch),
            EventCode::Remap => self.remap(entry, watch),
            EventCode::GetRequest
            | EventCode::Sleep
            | EventCode::Insert
            | EventCode::BackMerge
            | EventCode::FrontMerge => {
                self.step(act, record, watch);
            }
            EventCode::Issue => self.issue(record, watch),
            EventCode::Complete => self.complete(record, watch),
            EventCode::Requeue => {
                if let Some(drive) = self.begun(record) {
                    self.drives[drive].activate();
                    self.drives[drive].give_back();
                }
            }
            _ => {}
        }
    }

    /// Returns the index of a device, or `None` if the table is full. A device is added to the
    /// table at the first event.
    fn drive(&mut self, device: u32) -> Option<usize> {
        if let Some(at) = self.drives.iter().position(|drive| drive.device == device) {
            return Some(at);
        }
        if self.drives.len() == DRIVES_MAX {
            self.ignored += 1;
            return None;
        }
        self.drives.push(Drive { device, ..Drive::default() });
        Some(self.drives.len() - 1)
    }

    fn begun(&mut self, record: &Record) -> Option<usize> {
        self.drive(record.device).filter(|drive| self.drives[*drive].begun)
    }

    fn flush(&mut self, entry: &TraceEntry, watch: &mut impl IoListener) {
        let record = &entry.record;
        if self.flushes.len() == DRIVES_MAX && !self.flushes.contains_key(&record.device) {
            self.ignored += 1;
            return;
        }
        let (flushes, arrivals) =
            (self.flushes.entry(record.device).or_default(), &mut self.arrivals);
        let watch = RefCell::new(watch);
        let arrived = || {
            *arrivals += 1;
            watch.borrow_mut().arrived(record)
        };
        let done = |number| watch.borrow_mut().completed(number, record.time_ns);
        flushes.event(record, &entry.data, arrived, done);
    }

    /// Records the first queue (Q) or remap (A) event of a device. Discards the device's I/Os that
    /// began earlier, because the trace does not show when they were queued.
    fn begin(&mut self, drive: usize) {
        let drive = &mut self.drives[drive];
        if !drive.begun {
            drive.begun = true;
            self.flights -= drive.flights.len();
            drive.flights = RangeTree::default();
        }
    }

    /// Begins to follow an I/O at its issue event (D), on a device whose trace has no queue event
    /// (Q) so far. Ignores a reissued request, whose I/O is followed already.
    fn issue_unqueued(&mut self, drive: usize, record: &Record, watch: &mut impl IoListener) {
        if self.drives[drive].flights.find(record.sector).is_none() {
            self.arrive(drive, record, watch);
        }
    }

    /// Begins to follow an I/O. Drops the oldest one of the busiest device if there are too many.
    fn arrive(&mut self, drive: usize, record: &Record, watch: &mut impl IoListener) {
        let is_full = self.flights >= FLIGHTS_MAX;
        let drives = if is_full { self.drives.as_mut_slice() } else { &mut [] };
        if let Some(busiest) = drives.iter_mut().max_by_key(|drive| drive.flights.len()) {
            busiest.flights.remove_oldest();
            self.flights -= 1;
            self.dropped += 1;
        }
        self.arrivals += 1;
        let flight = TrackedIo::new(record, watch.arrived(record));
        match self.drives[drive].flights.insert((record.sector, record.end()), flight) {
            true => self.replaced += 1,
            false => self.flights += 1,
        }
    }

    fn queue(&mut self, record: &Record, watch: &mut impl IoListener) {
        let Some(drive) = self.drive(record.device) else { return };
        self.begin(drive);
        self.arrive(drive, record, watch);
        self.drives[drive].queue(record);
        if !self.is_measuring {
            return;
        }
        let time_ns = record.time_ns;
        let span = self.span_on(drive, Span::Q2Q);
        if let Some(last) = self.all.last_queued_ns {
            let value_ns = delta(last, time_ns);
            watch.sample(&Sample { span, value_ns, time_ns, drive, cpu: record.cpu });
        }
        let groups = self.groups_of(drive, record.cpu, IoKind::of(record));
        groups.into_iter().for_each(|group| group.queued(span, time_ns));
    }

    fn remap(&mut self, entry: &TraceEntry, watch: &mut impl IoListener) {
        let record = &entry.record;
        let Some(to) = self.drive(record.device) else { return };
        self.begin(to);
        let Some(remap) = RemapData::decode(&entry.data) else { return };
        let known = |drive: &Drive| drive.device == remap.device_from;
        let Some(from) = self.drives.iter().position(known) else { return };
        if let Some(place) = self.drives[from].flights.find(remap.sector_from) {
            let flight = *self.drives[from].flights.value(place);
            let step = FlightStep { flight, drive: from, time_ns: record.time_ns };
            self.span(&step, Span::Q2A, flight.queued_ns, watch);
        }
    }

    /// Processes an event of a single I/O: get request, sleep, insert or merge. The event belongs
    /// to the I/O that covers the event's first sector.
    fn step(&mut self, act: EventCode, record: &Record, watch: &mut impl IoListener) {
        let Some(drive) = self.begun(record) else { return };
        let now = record.time_ns;
        if let Some(place) = self.drives[drive].flights.find(record.sector) {
            let flight = self.drives[drive].flights.value(place);
            match act {
                EventCode::GetRequest => flight.got_ns = now,
                EventCode::Sleep => flight.slept_ns = now,
                EventCode::Insert => flight.inserted_ns = now,
                _ => flight.merged_ns = now,
            }
            let flight = *flight;
            let step = FlightStep { flight, drive, time_ns: now };
            match act {
                EventCode::GetRequest => {
                    self.span(&step, Span::Q2G, flight.queued_ns, watch);
                    if flight.slept_ns != 0 {
                        self.span(&step, Span::S2G, flight.slept_ns, watch);
                    }
                }
                EventCode::Insert if flight.got_ns != NEVER => {
                    self.span(&step, Span::G2I, flight.got_ns, watch);
                }
                EventCode::BackMerge | EventCode::FrontMerge => {
                    self.span(&step, Span::Q2M, flight.queued_ns, watch);
                }
                _ => {}
            }
        }
        if matches!(act, EventCode::BackMerge | EventCode::FrontMerge) {
            self.drives[drive].deactivate();
        }
    }

    fn issue(&mut self, record: &Record, watch: &mut impl IoListener) {
        let Some(drive) = self.drive(record.device) else { return };
        if !self.drives[drive].begun {
            return self.issue_unqueued(drive, record, watch);
        }
        self.drives[drive].issue(record);
        let found = self.inside(drive, record);
        for place in &found {
            let flight = self.drives[drive].flights.value(*place);
            flight.issued_ns = record.time_ns;
            let flight = *flight;
            let step = FlightStep { flight, drive, time_ns: record.time_ns };
            match (flight.inserted_ns, flight.merged_ns) {
                (NEVER, NEVER) => {}
                (NEVER, merged) => self.span(&step, Span::M2D, merged, watch),
                (inserted, _) => {
                    self.span(&step, Span::I2D, inserted, watch);
                    let slept = (flight.slept_ns >= inserted).then_some(flight.slept_ns);
                    let until = FlightStep { time_ns: slept.unwrap_or(step.time_ns), ..step };
                    self.span(&until, Span::I2S, inserted, watch);
                    if let Some(slept) = slept {
                        self.span(&step, Span::S2D, slept, watch);
                    }
                }
            }
        }
        self.found = found;
    }

    fn complete(&mut self, record: &Record, watch: &mut impl IoListener) {
        let Some(drive) = self.drive(record.device) else { return };
        if self.drives[drive].begun {
            self.drives[drive].blocks.add(u64::from(record.sectors()));
            self.drives[drive].give_back();
        }
        let found = self.inside(drive, record);
        for place in &found {
            let flight = *self.drives[drive].flights.value(*place);
            if self.drives[drive].begun {
                let step = FlightStep { flight, drive, time_ns: record.time_ns };
                self.span(&step, Span::Q2C, flight.queued_ns, watch);
                if flight.issued_ns != NEVER {
                    self.span(&step, Span::D2C, flight.issued_ns, watch);
                }
            }
            if flight.uncovered > 0 {
                watch.completed(flight.number, record.time_ns);
            }
            self.drives[drive].flights.remove(*place);
        }
        self.flights -= found.len();
        self.found = found;
        self.complete_parts(drive, record, watch);
    }

    /// Handles the I/Os of which a part was completed: those that overlap the beginning or the end
    /// of the completed range.
    fn complete_parts(&mut self, drive: usize, record: &Record, watch: &mut impl IoListener) {
        let flights = &mut self.drives[drive].flights;
        let first = flights.find(record.sector);
        let last = flights.find(record.end().wrapping_sub(1)).filter(|last| Some(*last) != first);
        for place in first.into_iter().chain(last) {
            let (start, end) = flights.range(place);
            let sectors = end.min(record.end()).saturating_sub(start.max(record.sector));
            let flight = flights.value(place);
            if flight.cover(sectors) {
                watch.completed(flight.number, record.time_ns);
            }
        }
    }

    /// Returns the I/Os inside an event's range. The vector is taken from `self.found` to reuse its
    /// memory, so the caller must put the vector back.
    fn inside(&mut self, drive: usize, record: &Record) -> Vec<EntryIndex> {
        let mut found = std::mem::take(&mut self.found);
        self.drives[drive].flights.inside((record.sector, record.end()), &mut found);
        found
    }

    fn span_on(&self, drive: usize, span: Span) -> Span {
        if self.drives[drive].maps() { span.mapped() } else { span }
    }

    /// Adds the time from `from_ns` until a step of an I/O to the statistics.
    fn span(&mut self, step: &FlightStep, span: Span, from_ns: u64, watch: &mut impl IoListener) {
        if !self.is_measuring {
            return;
        }
        let FlightStep { flight, drive, time_ns } = *step;
        let span = self.span_on(drive, span);
        let value_ns = delta(from_ns, time_ns);
        for group in self.groups_of(drive, flight.cpu, flight.kind) {
            group.measures.add(span, value_ns);
        }
        watch.sample(&Sample { span, value_ns, time_ns, drive, cpu: flight.cpu });
    }

    /// Returns the statistics that count an I/O: of all I/Os, of its drive, of its CPU and of its
    /// kind.
    fn groups_of(&mut self, drive: usize, cpu: u32, kind: IoKind) -> [&mut SpanGroup; 4] {
        let cpu = self.cpus.entry(cpu).or_default();
        let drive = &mut self.drives[drive].group;
        [&mut self.all, drive, cpu, &mut self.kinds[kind as usize]]
    }
}

/// Step of an I/O on a drive.
#[derive(Clone, Copy)]
struct FlightStep {
    flight: TrackedIo,
    drive: usize,
    time_ns: u64,
}
