//! `AnySource`: an opened trace of any format; merges the I/Os of its files in order of arrival, in
//! bounded memory.
//!
//! Each reader has a reorder window, because times may step back: the lines of many public traces
//! are in order of completion, or come from several threads. I/Os wait in the window until it is
//! full or spans the given time. An I/O that steps back farther gets the time of the I/O before it,
//! and is counted. I/Os of equal time keep the order of readers and lines. A reader whose file is
//! damaged ends there, and the others go on; if there was no I/O before, the damage is an error.
//! `open.rs` creates an `AnySource`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use millrace_trace::Spans;

use super::devices::DeviceNames;
use super::error::ReadError;
use super::event_ios::GENESIS_NS;
use super::format::Format;
use super::input::ReadGauge;
use super::parser::{DeviceNaming, TraceParser};
use super::pending::StreamState;
use super::timeline::Timeline;
use super::{TraceIo, TraceSource};

/// Largest number of I/Os in all reorder windows together; about 4 MB of memory.
const WAITING_MAX: usize = 65_536;
const WINDOW_MAX: usize = 16_384;

/// An I/O in a reorder window, ordered by its time and then by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueuedIo {
    number: u64,
    io: TraceIo,
}

impl Ord for QueuedIo {
    fn cmp(&self, other: &QueuedIo) -> std::cmp::Ordering {
        (self.io.at_ns, self.number).cmp(&(other.io.at_ns, other.number))
    }
}

impl PartialOrd for QueuedIo {
    fn partial_cmp(&self, other: &QueuedIo) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) struct TraceStream {
    parser: Box<dyn TraceParser>,
    gauge: ReadGauge,
    waiting: BinaryHeap<Reverse<QueuedIo>>,
    read: u64,
    newest_ns: u64,
    more: StreamState,
    /// Error that ended the reader. Reported after the I/Os that were read before the error.
    error: Option<ReadError>,
}

impl TraceStream {
    pub(super) fn new(parser: Box<dyn TraceParser>, gauge: ReadGauge) -> TraceStream {
        let (waiting, more) = (BinaryHeap::new(), StreamState::ToCome);
        TraceStream { parser, gauge, waiting, read: 0, newest_ns: 0, more, error: None }
    }

    fn fill(&mut self, (window, span_ns): (usize, u64), devices: &mut DeviceNames) {
        while self.waiting.len() < window && self.spanned_ns() < span_ns {
            let Some(io) = self.next(devices) else { return };
            self.waiting.push(Reverse(QueuedIo { number: self.read, io }));
            self.read += 1;
            self.newest_ns = self.newest_ns.max(io.at_ns);
        }
    }

    fn next(&mut self, devices: &mut DeviceNames) -> Option<TraceIo> {
        loop {
            let io = self.parser.pop(self.more);
            if io.is_some() || self.more == StreamState::Ended {
                return io;
            }
            match self.parser.step(devices) {
                Ok(more) => self.more = more,
                Err(error) => (self.error, self.more) = (Some(error), StreamState::Ended),
            }
        }
    }

    fn spanned_ns(&self) -> u64 {
        self.waiting.peek().map_or(0, |Reverse(first)| self.newest_ns - first.io.at_ns)
    }
}

/// An opened trace of any format.
pub struct AnySource {
    format: Format,
    devices: DeviceNames,
    streams: Vec<TraceStream>,
    first: BinaryHeap<Reverse<(u64, usize)>>,
    window: usize,
    span_ns: u64,
    started: bool,
    genesis_ns: Option<u64>,
    told_ns: u64,
    ios: u64,
    late: u64,
    damage: Vec<ReadError>,
    has_ended: bool,
}

impl AnySource {
    /// Merges readers of one format. The reorder window of a reader is full when it spans `span_ns`
    /// or has `FormatRow::disorder` I/Os, but at most `WINDOW_MAX`. If there are many readers, a
    /// window has room for fewer I/Os, because all windows together have at most `WAITING_MAX`.
    pub(super) fn new(streams: Vec<TraceStream>, format: Format, span_ns: u64) -> AnySource {
        let most = (WAITING_MAX / streams.len().max(1)).clamp(1, WINDOW_MAX);
        AnySource {
            format,
            devices: DeviceNames::default(),
            streams,
            first: BinaryHeap::new(),
            window: format.disorder().clamp(1, most),
            span_ns,
            started: false,
            genesis_ns: None,
            told_ns: 0,
            ios: 0,
            late: 0,
            damage: Vec::new(),
            has_ended: false,
        }
    }

    /// Makes the source also measure spans, the times between the events of each I/O. The times of
    /// I/Os then begin at the trace's first event, and not at its first I/O.
    pub fn with_spans(mut self, naming: DeviceNaming) -> AnySource {
        self.streams.iter_mut().for_each(|stream| stream.parser.measure_spans(naming));
        self.genesis_ns = self.spans().map(|_| GENESIS_NS);
        self
    }

    /// Returns the spans and the timeline; `None` if they are not measured or the format has no
    /// events.
    pub fn spans(&self) -> Option<(&Spans, &Timeline)> {
        self.streams.iter().find_map(|stream| stream.parser.spans())
    }

    /// Returns the format of the trace, which was detected or given.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Ends the trace. If the whole trace had no I/O, returns the first damage found in a file as
    /// an error.
    fn end(&mut self) -> Result<Option<TraceIo>, ReadError> {
        let is_first = !std::mem::replace(&mut self.has_ended, true);
        match is_first && self.ios == 0 && !self.damage.is_empty() {
            true => Err(self.damage.remove(0)),
            false => Ok(None),
        }
    }

    /// Fills the reorder window of stream `number` and queues the stream's earliest I/O. If no I/O
    /// is left because the file is damaged, records the damage.
    fn queue(&mut self, number: usize) {
        let stream = &mut self.streams[number];
        stream.fill((self.window, self.span_ns), &mut self.devices);
        match stream.waiting.peek() {
            Some(Reverse(waiting)) => self.first.push(Reverse((waiting.io.at_ns, number))),
            None => self.damage.extend(stream.error.take()),
        }
    }

    /// Returns a message for each damaged file found so far, with position and reason. I/Os after
    /// the damage are left out. The other files are still read to the end.
    pub fn damage(&self) -> Vec<String> {
        let left_out =
            |error: &ReadError| format!("{}; everything from there on is left out", error.text());
        let of_files = self.streams.iter().flat_map(|stream| stream.parser.damage());
        self.damage.iter().map(left_out).chain(of_files).collect()
    }

    /// Returns notes for the user about the trace so far: about skipped records, and about data
    /// that the format does not have.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for note in self.streams.iter().flat_map(|stream| stream.parser.notes()) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        if self.late > 0 {
            let late = self.late;
            notes.push(format!(
                "{late} I/Os were so far out of order that they got the time of the I/O before them"
            ));
        }
        notes
    }

    /// Returns the number of events that the recorder of the trace dropped.
    pub fn dropped_events(&self) -> u64 {
        self.streams.iter().map(|stream| stream.parser.dropped_events()).sum()
    }

    /// Returns the read progress, 0 to 1; 0 if unknown.
    pub fn progress(&self) -> f64 {
        let each = self.streams.iter().map(|stream| stream.gauge.progress());
        let (read, bytes) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        match bytes {
            0 => self.streams.first().map_or(0.0, |stream| stream.parser.progress()),
            bytes => (read as f64 / bytes as f64).min(1.0),
        }
    }
}

impl TraceSource for AnySource {
    type Error = ReadError;

    fn next_io(&mut self) -> Result<Option<TraceIo>, ReadError> {
        if !std::mem::replace(&mut self.started, true) {
            (0..self.streams.len()).for_each(|number| self.queue(number));
        }
        let Some(Reverse((_, number))) = self.first.pop() else { return self.end() };
        let first = self.streams[number].waiting.pop();
        let Reverse(QueuedIo { mut io, .. }) = first.expect("only streams with an I/O are queued");
        self.queue(number);
        let genesis_ns = *self.genesis_ns.get_or_insert(io.at_ns);
        self.ios += 1;
        self.late += u64::from(io.at_ns < self.told_ns);
        self.told_ns = self.told_ns.max(io.at_ns);
        io.at_ns = self.told_ns.saturating_sub(genesis_ns);
        Ok(Some(io))
    }

    fn devices(&self) -> &[String] {
        self.devices.names()
    }
}
