//! Binary traces of blktrace: a set of files, one per CPU, or all in one stream.
//!
//! `millrace_trace::Reader` merges the events, and `event_ios` turns them into I/Os. Source:
//! `struct blk_io_trace` and blktrace(8); `millrace_block::blktrace` defines the records.

use std::io::Read;

use millrace_block::blktrace::{RECORD_BYTES, Record};
use millrace_trace::{Reader, Spans, TraceError};

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::{FilePosition, ReadError};
use crate::trace::event_ios::PairedEvents;
use crate::trace::input::InputStream;
use crate::trace::parser::{DeviceNaming, TraceParser};
use crate::trace::pending::StreamState;
use crate::trace::timeline::Timeline;

pub(in crate::trace) fn is_recording(head: &[u8]) -> bool {
    head.first_chunk::<RECORD_BYTES>().is_some_and(|bytes| Record::decode(bytes).is_ok())
}

pub(in crate::trace) struct Blktrace<R> {
    reader: Reader<R>,
    events: PairedEvents,
    naming: DeviceNaming,
}

impl Blktrace<InputStream> {
    pub(in crate::trace) fn boxed(input: InputStream) -> Box<dyn TraceParser> {
        let label = input.label.clone();
        Box::new(Blktrace::new(Reader::from_stream(&label, input)))
    }
}

impl<R: Read> Blktrace<R> {
    pub(in crate::trace) fn new(reader: Reader<R>) -> Blktrace<R> {
        Blktrace { reader, events: PairedEvents::default(), naming: DeviceNaming::Names }
    }

    /// Ends the trace. Returns an error if its events contain completions only.
    fn end(&mut self) -> Result<StreamState, ReadError> {
        self.events.spans.names = self.reader.names().clone();
        if !self.events.spans.has_completions_only() {
            return Ok(StreamState::Ended);
        }
        let file = self.reader.files().next().map(|(_, _, path)| path.display().to_string());
        let trace = file.unwrap_or_else(|| "standard input".to_owned());
        Err(TraceError::CompletionsOnly { trace }.into())
    }
}

impl<R: Read + Send> TraceParser for Blktrace<R> {
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError> {
        let Some(entry) = self.reader.read()? else { return self.end() };
        if self.naming == DeviceNaming::Numbers {
            self.reader.names_mut().forget_devices();
        }
        let (device, names) = (entry.record.device, self.reader.names());
        let known = self.events.ios.number(device, devices, || names.device_or_number(device));
        let place = FilePosition::Byte(0);
        known.map_err(|problem| ReadError::Broken("blktrace".into(), place, problem))?;
        self.events.entry(&entry);
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.events.ios.pop(more)
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

    fn progress(&self) -> f64 {
        self.reader.progress()
    }

    fn measure_spans(&mut self, naming: DeviceNaming) {
        self.naming = naming;
        self.events.measure();
    }

    fn spans(&self) -> Option<(&Spans, &Timeline)> {
        Some((&self.events.spans, self.events.timeline.as_ref()?))
    }
}
