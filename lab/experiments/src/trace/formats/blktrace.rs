//! Binary traces of blktrace: a set of files, one for each CPU, or all in one stream.
//!
//! Owns what the events of `trace::Reader` mean for an I/O; the reader merges, `pairing` joins.
//! Commands that pass through the block layer (SCSI generic) are passed over: they have no range.
//! Source: `struct blk_io_trace` and blktrace(8); the bytes are `millrace_block::blktrace`'s.

use std::collections::HashMap;
use std::io::Read;

use millrace_block::Op;
use millrace_block::blktrace::{Act, Record, category};
use millrace_trace::{Entry, Names, Reader};

use crate::trace::TraceIo;
use crate::trace::devices::Devices;
use crate::trace::error::{Place, ReadError};
use crate::trace::input::ReadGauge;
use crate::trace::pairing::{Event, Pairing, Step};
use crate::trace::parser::{Problem, Steps};
use crate::trace::pending::StreamState;

/// Times are told from the first event on, and those of other CPUs may lie before it.
const GENESIS_NS: u64 = 1 << 62;
/// Progress of a set is known as a share only.
const WHOLE: f64 = 1e6;

/// What records mean.
#[derive(Debug, Default)]
struct RecordMeaning {
    numbers: HashMap<u32, u32>,
}

impl RecordMeaning {
    /// The event of a record, if it is one that counts.
    fn event(
        &mut self,
        record: &Record,
        names: &Names,
        devices: &mut Devices,
    ) -> Result<Option<Event>, Problem> {
        let step = match record.act() {
            Some(Act::Queue) => Step::Queue,
            Some(Act::Issue) => Step::Issue,
            Some(Act::Complete) => Step::Complete,
            _ => return Ok(None),
        };
        let len_bytes = u64::from(record.bytes);
        let flush = record.has(category::FLUSH);
        let op = match record {
            record if record.has(category::PC) => return Ok(None),
            _ if flush && len_bytes == 0 => Op::Flush,
            record if record.has(category::DISCARD) => Op::Discard,
            record if record.has(category::WRITE) => Op::Write,
            _ => Op::Read,
        };
        let device = match self.numbers.get(&record.device) {
            Some(number) => *number,
            None => {
                let number = devices.number(&names.device_or_number(record.device))?;
                self.numbers.insert(record.device, number);
                number
            }
        };
        let io = TraceIo {
            at_ns: record.time_ns.wrapping_add(GENESIS_NS),
            device,
            op,
            fua: op == Op::Write && record.has(category::FUA),
            offset_bytes: if op == Op::Flush { 0 } else { record.sector.saturating_mul(512) },
            len_bytes,
            latency_ns: None,
        };
        Ok(Some(Event { step, io, preflush: flush }))
    }
}

/// I/Os of a trace whose events somebody else reads.
#[derive(Debug, Default)]
pub struct EventIos {
    meaning: RecordMeaning,
    pairing: Pairing,
    devices: Devices,
}

impl EventIos {
    /// One more event; those of devices past what is kept are passed over.
    pub fn entry(&mut self, entry: &Entry, names: &Names) {
        if let Ok(Some(event)) = self.meaning.event(&entry.record, names, &mut self.devices) {
            self.pairing.event(&event);
        }
    }

    /// The next I/O whose answer is known, or that waits no longer for it.
    pub fn next_answered(&mut self) -> Option<TraceIo> {
        self.pairing.pop(StreamState::ToCome).map(from_genesis)
    }

    /// The next I/O, after the last event.
    pub fn next_left(&mut self) -> Option<TraceIo> {
        self.pairing.pop(StreamState::Ended).map(from_genesis)
    }

    /// Names of the devices.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        self.devices.names()
    }
}

fn from_genesis(io: TraceIo) -> TraceIo {
    TraceIo { at_ns: io.at_ns.saturating_sub(GENESIS_NS), ..io }
}

/// Events of a trace.
pub(in crate::trace) struct Blktrace<R> {
    reader: Reader<R>,
    /// The only file, if there is one.
    gauge: Option<ReadGauge>,
    pairing: Pairing,
    meaning: RecordMeaning,
}

impl<R: Read> Blktrace<R> {
    /// A set of files.
    pub(in crate::trace) fn new(reader: Reader<R>, gauge: Option<ReadGauge>) -> Blktrace<R> {
        let (pairing, meaning) = (Pairing::default(), RecordMeaning::default());
        Blktrace { reader, gauge, pairing, meaning }
    }
}

impl<R: Read + Send> Steps for Blktrace<R> {
    fn step(&mut self, devices: &mut Devices) -> Result<StreamState, ReadError> {
        let Some(entry) = self.reader.read()? else { return Ok(StreamState::Ended) };
        let event = self.meaning.event(&entry.record, self.reader.names(), devices);
        let place = Place::Byte(0);
        let broken = |problem| ReadError::Broken { file: "blktrace".into(), place, problem };
        if let Some(event) = event.map_err(broken)? {
            self.pairing.event(&event);
        }
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.pairing.pop(more)
    }

    fn notes(&self) -> Vec<String> {
        self.reader.notes()
    }

    fn progress(&self) -> (u64, u64) {
        match &self.gauge {
            Some(gauge) => gauge.progress(),
            None => ((self.reader.progress() * WHOLE) as u64, WHOLE as u64),
        }
    }
}
