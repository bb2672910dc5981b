//! Binary traces of blktrace: a set of files, one per CPU, or all in one stream.
//!
//! `trace::Reader` merges the events, and `event_ios` turns them into I/Os. Source: `struct
//! blk_io_trace` and blktrace(8); `millrace_block::blktrace` defines the records.

use std::io::Read;

use millrace_trace::{Reader, TraceError};

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::{FilePosition, ReadError};
use crate::trace::event_ios::PairedEvents;
use crate::trace::input::ReadGauge;
use crate::trace::parser::EventParser;
use crate::trace::pending::StreamState;

/// Denominator of the progress of a set of files, which is known only as a fraction.
const WHOLE: f64 = 1e6;

/// Reader of a blktrace recording.
pub(in crate::trace) struct Blktrace<R> {
    reader: Reader<R>,
    /// Progress of the file, if the trace is a single file.
    gauge: Option<ReadGauge>,
    events: PairedEvents,
}

impl<R: Read> Blktrace<R> {
    /// Creates a reader; `gauge` is given for a single file.
    pub(in crate::trace) fn new(reader: Reader<R>, gauge: Option<ReadGauge>) -> Blktrace<R> {
        Blktrace { reader, gauge, events: PairedEvents::default() }
    }
}

impl<R: Read + Send> EventParser for Blktrace<R> {
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError> {
        let Some(entry) = self.reader.read()? else {
            if self.events.has_completions_only() {
                let file = self.reader.files().next();
                let file = file.map(|(_, _, path)| path.display().to_string());
                let file = file.unwrap_or_else(|| "standard input".to_owned());
                return Err(TraceError::CompletionsOnly { trace: file }.into());
            }
            return Ok(StreamState::Ended);
        };
        let (device, names) = (entry.record.device, self.reader.names());
        let known = self.events.ios.number(device, devices, || names.device_or_number(device));
        let place = FilePosition::Byte(0);
        known.map_err(|problem| ReadError::Broken { file: "blktrace".into(), place, problem })?;
        self.events.entry(&entry);
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.events.pop(more)
    }

    fn notes(&self) -> Vec<String> {
        self.reader.notes().into_iter().chain(self.reader.names().dropped_note()).collect()
    }

    fn damage(&self) -> Vec<String> {
        self.reader.damage().iter().map(ToString::to_string).collect()
    }

    fn dropped_events(&self) -> u64 {
        self.reader.names().dropped_events()
    }

    fn progress(&self) -> (u64, u64) {
        match &self.gauge {
            Some(gauge) => gauge.progress(),
            None => ((self.reader.progress() * WHOLE) as u64, WHOLE as u64),
        }
    }
}
