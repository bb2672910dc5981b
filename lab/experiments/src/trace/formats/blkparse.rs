//! What blkparse prints, and `millrace trace show`: a line for each event.
//!
//! `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`: device, CPU, sequence, seconds, process,
//! action, kind, then first sector and sectors. Only the format that blkparse has without `-f` is
//! read. Its counts at the end begin with a line `CPU0 (sda):` and end the trace; lines of actions
//! other than Q, D and C are passed over.
//! Source: blkparse(1), "DEFAULT FORMAT" and "RWBS".

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::Devices;
use crate::trace::error::{ReadError, shown};
use crate::trace::formats::SECTOR_BYTES;
use crate::trace::input::Input;
use crate::trace::lines::Lines;
use crate::trace::pairing::{Event, Pairing, Step};
use crate::trace::parser::{Problem, Steps, decimal, fields, scaled, whole};
use crate::trace::pending::StreamState;

/// A line, for errors.
const EXAMPLE: &str = "8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]";

/// Lines of a file.
pub(in crate::trace) struct Blkparse {
    lines: Lines,
    pairing: Pairing,
}

impl Blkparse {
    pub(in crate::trace) fn new(input: Input) -> Blkparse {
        Blkparse { lines: Lines::new(input), pairing: Pairing::default() }
    }
}

/// What a line tells.
#[derive(Debug)]
pub(in crate::trace) enum ParsedLine {
    Event(Event),
    Other,
    /// The counts begin, after the last event.
    Counts,
}

/// Reads a line.
pub(in crate::trace) fn line(text: &str, devices: &mut Devices) -> Result<ParsedLine, Problem> {
    if text.starts_with("CPU") && text.contains(" (") {
        return Ok(ParsedLine::Counts);
    }
    // With `-q` or `-o` it says there which files it reads.
    if text.starts_with("Input file ") && text.ends_with(" added") {
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
    let at_ns = decimal("the time", time, 9)?;
    let step = match action {
        "Q" => Step::Queue,
        "D" => Step::Issue,
        "C" => Step::Complete,
        _ => return Ok(ParsedLine::Other),
    };
    let kind = words.next().ok_or("no kind of I/O behind the action")?;
    let rest = [words.next(), words.next(), words.next()];
    let (sector, sectors) = match rest {
        [Some(sector), Some("+"), Some(sectors)] => {
            (whole("the sector", sector)?, whole("the length", sectors)?)
        }
        _ => (0, 0),
    };
    let (preflush, kind) = kind.strip_prefix('F').map_or((false, kind), |rest| (true, rest));
    let op = match kind.as_bytes().first() {
        _ if preflush && sectors == 0 => Op::Flush,
        Some(b'D') => Op::Discard,
        Some(b'W') => Op::Write,
        Some(b'R') => Op::Read,
        _ => return Ok(ParsedLine::Other),
    };
    let io = TraceIo {
        at_ns,
        device: devices.number(device)?,
        op,
        fua: op == Op::Write && kind[1..].contains('F'),
        offset_bytes: scaled("the sector", sector, SECTOR_BYTES)?,
        len_bytes: scaled("the length", sectors, SECTOR_BYTES)?,
        latency_ns: None,
    };
    Ok(ParsedLine::Event(Event { step, io, preflush }))
}

impl Steps for Blkparse {
    fn step(&mut self, devices: &mut Devices) -> Result<StreamState, ReadError> {
        let Some(text) = self.lines.next()? else { return Ok(StreamState::Ended) };
        match line(text, devices) {
            Ok(ParsedLine::Event(event)) => self.pairing.event(&event),
            Ok(ParsedLine::Other) => {}
            Ok(ParsedLine::Counts) => return Ok(StreamState::Ended),
            Err(problem) => {
                return Err(self.lines.broken(format!("{problem}; a line is such as {EXAMPLE}")));
            }
        }
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.pairing.pop(more)
    }

    fn progress(&self) -> (u64, u64) {
        self.lines.gauge().progress()
    }
}
