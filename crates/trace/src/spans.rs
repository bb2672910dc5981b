//! `Spans`: how long I/Os took from step to step, by btt's rules, in constant memory.
//!
//! btt's rules are the measure, since its numbers are what people compare with:
//! - Of every device a tree of what was queued (Q) and not completed. A later event belongs to the
//!   I/O that covers its first sector (G, S, I, M, A), or to all that lie inside its range (D, C):
//!   so an I/O that was merged into another is issued and completed with it.
//! - Q2G, S2G, G2I, Q2M, Q2A are taken when their end is seen; I2D, or M2D if it was merged, at D,
//!   again if it was given back (R) and issued again; D2C and Q2C at C, once for every I/O inside.
//! - Of our own recordings, in which S comes behind I, I2D has two parts, which btt does not know:
//!   I2S, until it waits for a tag (all of it, if it never does), and S2D, until it has one.
//! - Of two I/Os on their way with the same first sector only the later is followed.
//! - Events without a length, of commands that pass through, and on a device before its first Q or
//!   A do not count. A time that does not go forward counts as 1 ns.
//! - A split (X) is no event for it: the parts lie inside what was queued, so only their G, I and D
//!   show, and such an I/O has no Q2C unless one C covers it.
//!
//! A `Watch` hears from this pairing which I/Os there are, and when each is complete: there a C of
//! a part counts, too, flushes are I/Os (flushes.rs), and on a device without Q and A, as
//! `blktrace -a issue` records, I/Os begin with D.
//!
//! Bounded: `FLIGHTS_MAX` I/Os on their way (about 40 MiB), past which the oldest of the fullest
//! device is dropped and counted, and `DRIVES_MAX` devices, past which events are ignored and
//! counted. Until then all numbers are btt's own. Called by `millrace trace`, and by reports,
//! conversions and replays of the laboratory.

use std::cell::RefCell;
use std::collections::BTreeMap;

use millrace_block::blktrace::{EventCode, Record, RemapData, category};

use super::drive::{Drive, Flight, Group, Kind, NEVER, delta};
use super::flushes::Flushes;
use super::measure::{Measures, Span};
use super::tree::{Place, RangeTree};
use super::{Entry, Names};

/// I/Os on their way that are kept.
pub const FLIGHTS_MAX: usize = 1 << 18;
/// Devices that are kept.
pub const DRIVES_MAX: usize = 256;

/// One length of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Of which.
    pub span: Span,
    /// How long.
    pub value_ns: u64,
    /// When it ended.
    pub time_ns: u64,
    /// Place of the drive in [`Spans::drives`].
    pub drive: usize,
    /// The CPU on which the I/O was queued.
    pub cpu: u32,
}

/// Listens to what the pairing of events finds.
pub trait Watch {
    /// One length of a span.
    fn sample(&mut self, _sample: &Sample) {}

    /// An I/O begins with this record: Q, or D on a device whose trace has no Q. Returns a number
    /// for it.
    fn arrived(&mut self, _record: &Record) -> u64 {
        0
    }

    /// The I/O of this number is complete.
    fn completed(&mut self, _number: u64, _time_ns: u64) {}
}

impl Watch for () {}

/// Both listen; numbers are the second one's.
impl<A: Watch, B: Watch> Watch for (&mut A, &mut B) {
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

/// Pairs events, and measures the spans between them.
#[derive(Debug, Default)]
pub struct Spans {
    /// False: only a `Watch` is told.
    is_measuring: bool,
    flushes: BTreeMap<u32, Flushes>,
    /// I/Os that began, and completions.
    arrivals: u64,
    completions: u64,
    drives: Vec<Drive>,
    all: Group,
    cpus: BTreeMap<u32, Group>,
    kinds: [Group; Kind::ALL.len()],
    flights: usize,
    replaced: u64,
    dropped: u64,
    ignored: u64,
    found: Vec<Place>,
    names: Names,
}

impl Spans {
    /// Nothing seen yet.
    #[must_use]
    pub fn new() -> Spans {
        Spans { is_measuring: true, ..Spans::default() }
    }

    /// Pairs events and tells a [`Watch`], but measures nothing, which would take time.
    #[must_use]
    pub fn unmeasured() -> Spans {
        Spans::default()
    }

    /// Whether there were completions only, so that no I/O is known.
    #[must_use]
    pub fn has_completions_only(&self) -> bool {
        self.arrivals == 0 && self.completions > 0
    }

    /// Has devices be shown by these names.
    pub fn set_names(&mut self, names: &Names) {
        self.names = names.clone();
    }

    /// A device by its name, or by its numbers if it has none.
    #[must_use]
    pub fn device_name(&self, device: u32) -> String {
        self.names.device_or_number(device)
    }

    /// The name of a device, if it has one.
    pub(super) fn given_name(&self, device: u32) -> Option<&str> {
        self.names.device(device)
    }

    /// Of everything.
    #[must_use]
    pub fn all(&self) -> &Measures {
        &self.all.measures
    }

    /// Devices, in the order of their first event.
    #[must_use]
    pub fn drives(&self) -> &[Drive] {
        &self.drives
    }

    /// By the CPU on which I/Os were queued.
    pub fn cpus(&self) -> impl Iterator<Item = (u32, &Measures)> {
        self.cpus.iter().map(|(cpu, group)| (*cpu, &group.measures))
    }

    /// By what they do.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, &Measures)> {
        Kind::ALL.into_iter().zip(&self.kinds).map(|(kind, group)| (kind, &group.measures))
    }

    /// I/Os that were not followed to their completion, since another one with the same first
    /// sector was queued before.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// I/Os that were dropped before their completion, to bound memory.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Events of devices past the bound.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// I/Os that were queued and not completed so far.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.drives.iter().filter(|drive| drive.begun).map(|drive| drive.flights.len()).sum()
    }

    /// Events that are missing, as the recorder could not keep up.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        self.names.dropped_events()
    }

    /// One more event, and each span that ends with it to `watch`.
    pub fn entry(&mut self, entry: &Entry, watch: &mut impl Watch) {
        let record = &entry.record;
        let Some(act) = record.act().filter(|_| !record.has(category::PC)) else { return };
        self.completions += u64::from(act == EventCode::Complete);
        if record.bytes == 0 && record.has(category::FLUSH) {
            return self.flush(act, entry, watch);
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

    /// The place of a device, from its first event on; none past the bound.
    fn drive(&mut self, device: u32) -> Option<usize> {
        if let Some(at) = self.drives.iter().position(|drive| drive.device == device) {
            return Some(at);
        }
        if self.drives.len() == DRIVES_MAX {
            self.ignored += 1;
            return None;
        }
        self.drives.push(Drive::new(device));
        Some(self.drives.len() - 1)
    }

    /// The place of a device on which something was queued.
    fn begun(&mut self, record: &Record) -> Option<usize> {
        self.drive(record.device).filter(|drive| self.drives[*drive].begun)
    }

    /// An event of a flush.
    fn flush(&mut self, act: EventCode, entry: &Entry, watch: &mut impl Watch) {
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
        flushes.event(act, (record, &entry.data), arrived, done);
    }

    /// Something is queued on a device: what came before that is of I/Os that began unseen.
    fn begin(&mut self, drive: usize) {
        let drive = &mut self.drives[drive];
        if !drive.begun {
            drive.begun = true;
            self.flights -= drive.flights.len();
            drive.flights = RangeTree::new();
        }
    }

    /// A request of a device on which nothing was queued so far, unless it was given back before.
    fn issue_unqueued(&mut self, drive: usize, record: &Record, watch: &mut impl Watch) {
        if self.drives[drive].flights.find(record.sector).is_some() {
            return;
        }
        if self.flights >= FLIGHTS_MAX {
            self.drop_oldest();
        }
        self.arrivals += 1;
        let flight = Flight::new(record, watch.arrived(record));
        self.drives[drive].flights.insert((record.sector, record.end()), flight);
        self.flights += 1;
    }

    fn queue(&mut self, record: &Record, watch: &mut impl Watch) {
        let Some(drive) = self.drive(record.device) else { return };
        self.begin(drive);
        if self.flights >= FLIGHTS_MAX {
            self.drop_oldest();
        }
        self.arrivals += 1;
        match self.drives[drive].queue(record, watch.arrived(record)) {
            true => self.replaced += 1,
            false => self.flights += 1,
        }
        if !self.is_measuring {
            return;
        }
        let (kind, time_ns) = (Kind::of(record), record.time_ns);
        let span = self.span_on(drive, Span::Q2Q);
        if let Some(last) = self.all.last_queued_ns {
            let value_ns = delta(last, time_ns);
            watch.sample(&Sample { span, value_ns, time_ns, drive, cpu: record.cpu });
        }
        self.all.queued(span, time_ns);
        self.drives[drive].group.queued(span, time_ns);
        self.cpus.entry(record.cpu).or_default().queued(span, time_ns);
        self.kinds[kind as usize].queued(span, time_ns);
    }

    fn drop_oldest(&mut self) {
        if let Some(drive) = self.drives.iter_mut().max_by_key(|drive| drive.flights.len()) {
            drive.flights.remove_oldest();
            self.flights -= 1;
            self.dropped += 1;
        }
    }

    fn remap(&mut self, entry: &Entry, watch: &mut impl Watch) {
        let record = &entry.record;
        let Some(to) = self.drive(record.device) else { return };
        self.begin(to);
        let Some(remap) = RemapData::decode(&entry.data) else { return };
        let known = |drive: &Drive| drive.device == remap.device_from;
        let Some(from) = self.drives.iter().position(known) else { return };
        if let Some(place) = self.drives[from].flights.find(remap.sector_from) {
            let flight = *self.drives[from].flights.value(place);
            self.span((Span::Q2A, from), &flight, (flight.queued_ns, record.time_ns), watch);
        }
    }

    /// An event that belongs to the one I/O that covers its first sector.
    fn step(&mut self, act: EventCode, record: &Record, watch: &mut impl Watch) {
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
            match act {
                EventCode::GetRequest => {
                    self.span((Span::Q2G, drive), &flight, (flight.queued_ns, now), watch);
                    if flight.slept_ns != 0 {
                        self.span((Span::S2G, drive), &flight, (flight.slept_ns, now), watch);
                    }
                }
                EventCode::Insert if flight.got_ns != NEVER => {
                    self.span((Span::G2I, drive), &flight, (flight.got_ns, now), watch);
                }
                EventCode::BackMerge | EventCode::FrontMerge => {
                    self.span((Span::Q2M, drive), &flight, (flight.queued_ns, now), watch);
                }
                _ => {}
            }
        }
        if matches!(act, EventCode::BackMerge | EventCode::FrontMerge) {
            self.drives[drive].deactivate();
        }
    }

    fn issue(&mut self, record: &Record, watch: &mut impl Watch) {
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
            let (span, from) = match flight.inserted_ns {
                NEVER => (Span::M2D, flight.merged_ns),
                inserted => (Span::I2D, inserted),
            };
            if from != NEVER {
                self.span((span, drive), &flight, (from, record.time_ns), watch);
            }
            if span == Span::I2D && from != NEVER {
                let slept = (flight.slept_ns >= from).then_some(flight.slept_ns);
                let until = slept.unwrap_or(record.time_ns);
                self.span((Span::I2S, drive), &flight, (from, until), watch);
                if let Some(slept) = slept {
                    self.span((Span::S2D, drive), &flight, (slept, record.time_ns), watch);
                }
            }
        }
        self.found = found;
    }

    fn complete(&mut self, record: &Record, watch: &mut impl Watch) {
        let Some(drive) = self.drive(record.device) else { return };
        if self.drives[drive].begun {
            self.drives[drive].blocks.add(u64::from(record.sectors()));
            self.drives[drive].give_back();
        }
        let found = self.inside(drive, record);
        for place in &found {
            let flight = *self.drives[drive].flights.value(*place);
            if self.drives[drive].begun {
                let (queued_ns, issued_ns) = (flight.queued_ns, flight.issued_ns);
                self.span((Span::Q2C, drive), &flight, (queued_ns, record.time_ns), watch);
                if issued_ns != NEVER {
                    self.span((Span::D2C, drive), &flight, (issued_ns, record.time_ns), watch);
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

    /// The completion of a part of an I/O, at the beginning or the end of the completed range.
    fn complete_parts(&mut self, drive: usize, record: &Record, watch: &mut impl Watch) {
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

    /// The I/Os inside the range of an event, in a buffer that is to be put back.
    fn inside(&mut self, drive: usize, record: &Record) -> Vec<Place> {
        let mut found = std::mem::take(&mut self.found);
        self.drives[drive].flights.inside((record.sector, record.end()), &mut found);
        found
    }

    /// The span as it is called on a drive: apart from others' on one that only maps.
    fn span_on(&self, drive: usize, span: Span) -> Span {
        if self.drives[drive].maps() { span.mapped() } else { span }
    }

    fn span(
        &mut self,
        (span, drive): (Span, usize),
        flight: &Flight,
        (from_ns, time_ns): (u64, u64),
        watch: &mut impl Watch,
    ) {
        if !self.is_measuring {
            return;
        }
        let span = self.span_on(drive, span);
        let value_ns = delta(from_ns, time_ns);
        self.all.measures.add(span, value_ns);
        self.drives[drive].group.measures.add(span, value_ns);
        self.cpus.entry(flight.cpu).or_default().measures.add(span, value_ns);
        self.kinds[flight.kind as usize].measures.add(span, value_ns);
        watch.sample(&Sample { span, value_ns, time_ns, drive, cpu: flight.cpu });
    }
}
