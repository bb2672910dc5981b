//! `ArrivalMerger`: merges the I/Os of several readers in order of arrival, in bounded memory.
//!
//! Owns a reorder window for each reader: the lines of many public traces are in order of
//! completion, or come from several threads, so times may step back. I/Os wait in the window until
//! it is full or spans the given time. An I/O that steps back farther gets the time of the I/O
//! before it, and is counted. I/Os of equal time keep the order of readers and lines. A reader
//! whose file is damaged ends there, and the others go on; if there was no I/O before, the damage
//! is an error.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::TraceIo;
use super::devices::DeviceNames;
use super::error::ReadError;
use super::parser::TraceParser;

/// Largest number of I/Os waiting in all windows together; about 5 MB.
const WAITING_MAX: usize = 65_536;
/// Largest number of I/Os waiting in one window.
const WINDOW_MAX: usize = 16_384;

/// A waiting I/O, ordered by time and then by its number.
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

/// A reader with its window.
struct WindowedStream {
    parser: Box<dyn TraceParser>,
    waiting: BinaryHeap<Reverse<QueuedIo>>,
    read: u64,
    /// Latest arrival time read so far.
    newest_ns: u64,
    /// Error that ended the reader; reported after all I/Os read before it.
    error: Option<ReadError>,
    ended: bool,
}

impl WindowedStream {
    /// Reads I/Os until the window is full.
    fn fill(&mut self, (window, span_ns): (usize, u64), devices: &mut DeviceNames) {
        while !self.ended && self.waiting.len() < window && self.spanned_ns() < span_ns {
            match self.parser.next(devices) {
                Ok(Some(io)) => {
                    self.waiting.push(Reverse(QueuedIo { number: self.read, io }));
                    self.read += 1;
                    self.newest_ns = self.newest_ns.max(io.at_ns);
                }
                Ok(None) => self.ended = true,
                Err(error) => (self.error, self.ended) = (Some(error), true),
            }
        }
    }
}

impl WindowedStream {
    /// Returns the time from the earliest waiting I/O to the latest one.
    fn spanned_ns(&self) -> u64 {
        self.waiting.peek().map_or(0, |Reverse(first)| self.newest_ns - first.io.at_ns)
    }
}

/// Several readers merged into one.
pub(super) struct ArrivalMerger {
    streams: Vec<WindowedStream>,
    /// Time of the earliest I/O of each stream that has one, with the stream's number.
    first: BinaryHeap<Reverse<(u64, usize)>>,
    window: usize,
    span_ns: u64,
    started: bool,
    genesis_ns: Option<u64>,
    told_ns: u64,
    late: u64,
    /// Errors of streams that ended before their file did.
    damage: Vec<ReadError>,
    has_ended: bool,
}

impl ArrivalMerger {
    /// Creates the merge of readers whose lines may step back by up to `window` I/Os (fewer if
    /// there are many readers) and by less than `span_ns`.
    pub(super) fn new(
        parsers: Vec<Box<dyn TraceParser>>,
        window: usize,
        span_ns: u64,
    ) -> ArrivalMerger {
        let most = (WAITING_MAX / parsers.len().max(1)).clamp(1, WINDOW_MAX);
        let stream = |parser| {
            let waiting = BinaryHeap::new();
            WindowedStream { parser, waiting, read: 0, newest_ns: 0, error: None, ended: false }
        };
        ArrivalMerger {
            streams: parsers.into_iter().map(stream).collect(),
            first: BinaryHeap::new(),
            window: window.clamp(1, most),
            span_ns,
            started: false,
            genesis_ns: None,
            told_ns: 0,
            late: 0,
            damage: Vec::new(),
            has_ended: false,
        }
    }

    /// Returns the next I/O; its time counts from the first I/O.
    pub(super) fn next(&mut self, devices: &mut DeviceNames) -> Result<Option<TraceIo>, ReadError> {
        if !std::mem::replace(&mut self.started, true) {
            for number in 0..self.streams.len() {
                self.queue(number, devices);
            }
        }
        let Some(Reverse((_, number))) = self.first.pop() else { return self.end() };
        let first = self.streams[number].waiting.pop();
        let Reverse(QueuedIo { mut io, .. }) = first.expect("only streams with an I/O are queued");
        self.queue(number, devices);
        let genesis_ns = *self.genesis_ns.get_or_insert(io.at_ns);
        self.late += u64::from(io.at_ns < self.told_ns);
        self.told_ns = self.told_ns.max(io.at_ns);
        io.at_ns = self.told_ns - genesis_ns;
        Ok(Some(io))
    }

    /// Returns the end of the trace, or the first damage if there was no I/O before it.
    fn end(&mut self) -> Result<Option<TraceIo>, ReadError> {
        let is_first = !std::mem::replace(&mut self.has_ended, true);
        match is_first && self.genesis_ns.is_none() && !self.damage.is_empty() {
            true => Err(self.damage.remove(0)),
            false => Ok(None),
        }
    }

    /// Fills a stream's window and queues its earliest I/O; records the stream's damage if it has
    /// none.
    fn queue(&mut self, number: usize, devices: &mut DeviceNames) {
        let stream = &mut self.streams[number];
        stream.fill((self.window, self.span_ns), devices);
        match stream.waiting.peek() {
            Some(Reverse(waiting)) => self.first.push(Reverse((waiting.io.at_ns, number))),
            None => self.damage.extend(stream.error.take()),
        }
    }

    /// Returns the files that could not be read to their end so far, each with the reason.
    pub(super) fn damage(&self) -> Vec<String> {
        let left_out =
            |error: &ReadError| format!("{}; everything from there on is left out", error.text());
        let of_files = self.streams.iter().flat_map(|stream| stream.parser.damage());
        self.damage.iter().map(left_out).chain(of_files).collect()
    }

    /// Returns notes for the user about what was read so far, without duplicates.
    pub(super) fn notes(&self) -> Vec<String> {
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

    /// Returns the number of events that the recorder dropped.
    pub(super) fn dropped_events(&self) -> u64 {
        self.streams.iter().map(|stream| stream.parser.dropped_events()).sum()
    }

    /// Returns the read progress, 0 to 1; 0 where unknown.
    pub(super) fn progress(&self) -> f64 {
        let each = self.streams.iter().map(|stream| stream.parser.progress());
        let (read, bytes) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if bytes == 0 { 0.0 } else { (read as f64 / bytes as f64).min(1.0) }
    }
}
