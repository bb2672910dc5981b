//! Text output of blkparse and of `millrace trace show`: one line per event.
//!
//! `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`: device, CPU, sequence, seconds, process,
//! action, kind, then first sector and number of sectors. Only blkparse's default format (without
//! `-f`) is supported. The statistics at the end begin with a line `CPU0 (sda):` and end the trace.
//! Source: blkparse(1), "DEFAULT FORMAT" and "RWBS".

use millrace_block::blktrace::{EventCode, Record, category};
use millrace_trace::{TraceEntry, TraceError};

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::{ReadError, shown};
use crate::trace::event_ios::PairedEvents;
use crate::trace::formats::SECTOR_BYTES;
use crate::trace::input::InputStream;
use crate::trace::lines::TraceLines;
use crate::trace::parser::{EventParser, Problem, decimal, fields, scaled, whole};
use crate::trace::pending::StreamState;

/// Example of a line, for error messages.
const EXAMPLE: &str = "8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]";

/// Reader of a blkparse text file.
pub(in crate::trace) struct Blkparse {
    lines: TraceLines,
    events: PairedEvents,
}

impl Blkparse {
    pub(in crate::trace) fn new(input: InputStream) -> Blkparse {
        Blkparse { lines: TraceLines::new(input), events: PairedEvents::default() }
    }
}

/// Content of a line.
#[derive(Debug)]
pub(in crate::trace) enum ParsedLine {
    /// An event; its device field is the index in the list of devices.
    Event(Record),
    Other,
    /// First line of the statistics, which follow the last event.
    Counts,
}

/// Parses a line.
pub(in crate::trace) fn line(text: &str, devices: &mut DeviceNames) -> Result<ParsedLine, Problem> {
    if text.starts_with("CPU") && text.contains(" (") {
        return Ok(ParsedLine::Counts);
    }
    // blkparse prints the names of its input files with `-q` or `-o`.
    if text.starts_with("Input file ") && text.ends_with(" added") {
        return Ok(ParsedLine::Other);
    }
    // Last line of traces with driver data.
    if text.starts_with("discarded traces containing ") {
        return Ok(ParsedLine::Other);
    }
    let mut words = text.split_ascii_whitespace();
    let [device, cpu, sequence, time, process, action] = fields(words.by_ref())?;
    whole("the CPU", cpu)?;
    whole("the sequence", sequence)?;
    whole("the process", process)?;
    if !time.contains('.') {
        return Err(format!("the time is {}; seconds with decimals are expected", shown(time)));
    }
    let time_ns = decimal("the time", time, 9)?;
    let Some(act) = EventCode::from_letters(action) else { return Ok(ParsedLine::Other) };
    let kind = words.next().ok_or("the kind of I/O after the action is missing")?;
    let rest = [words.next(), words.next(), words.next()];
    let (sector, sectors) = match rest {
        [Some(sector), Some("+"), Some(sectors)] => {
            (whole("the sector", sector)?, whole("the length", sectors)?)
        }
        _ => (0, 0),
    };
    // Sector and length must also fit when converted to bytes.
    scaled("the sector", sector, SECTOR_BYTES)?;
    let bytes = u32::try_from(scaled("the length", sectors, SECTOR_BYTES)?)
        .map_err(|_| format!("the length is {sectors} sectors, which is too large"))?;
    let Some(categories) = categories(kind, sectors) else { return Ok(ParsedLine::Other) };
    let (action, device) = (act.with(categories), devices.number(device)?);
    Ok(ParsedLine::Event(Record { time_ns, sector, bytes, action, device, ..Record::default() }))
}

/// Returns the blktrace categories of an RWBS string such as `FWFS`; None for a kind without data
/// that is not a flush.
fn categories(kind: &str, sectors: u64) -> Option<u16> {
    let (preflush, kind) = kind.strip_prefix('F').map_or((0, kind), |rest| (category::FLUSH, rest));
    let op = match kind.as_bytes().first() {
        _ if preflush != 0 && sectors == 0 => 0,
        Some(b'D') => category::DISCARD | category::WRITE,
        Some(b'W') => category::WRITE,
        Some(b'R') => category::READ,
        _ => return None,
    };
    let fua = kind.get(1..).is_some_and(|rest| rest.contains('F'));
    Some(preflush | op | if fua { category::FUA } else { 0 })
}

impl Blkparse {
    fn end(&self) -> Result<StreamState, ReadError> {
        match self.events.has_completions_only() {
            true => Err(TraceError::CompletionsOnly { trace: self.lines.file().to_owned() }.into()),
            false => Ok(StreamState::Ended),
        }
    }
}

impl EventParser for Blkparse {
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError> {
        let Some(text) = self.lines.next()? else { return self.end() };
        match line(text, devices) {
            Ok(ParsedLine::Event(record)) => {
                self.events.ios.take_number(record.device);
                self.events.entry(&TraceEntry { record, data: Vec::new(), trace: 0, cpu: 0 });
            }
            Ok(ParsedLine::Other) => {}
            Ok(ParsedLine::Counts) => return self.end(),
            Err(problem) => {
                return Err(self.lines.broken(format!("{problem}; example of a line: {EXAMPLE}")));
            }
        }
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.events.pop(more)
    }

    fn progress(&self) -> (u64, u64) {
        self.lines.gauge().progress()
    }
}
