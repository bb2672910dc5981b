//! `open`: opens traces of any format as one stream of I/Os.
//!
//! Owns the choice of the reader. Files that are named together form one trace: they must have the
//! same format, and their I/Os are merged by time. Called by verbs; calls `detect` and the format
//! readers.

use std::io;

use millrace_trace::{Reader, Source, TraceName};

use super::detect::{detect, is_certain, likely};
use super::devices::DeviceNames;
use super::error::{OpenError, ReadError, shown};
use super::format::Format;
use super::formats::alibaba::Alibaba;
use super::formats::blkparse::Blkparse;
use super::formats::blktrace::Blktrace;
use super::formats::fiu::Fiu;
use super::formats::iolog::{Iolog2, Iolog3};
use super::formats::msr::Msr;
use super::formats::nbdkit::Nbdkit;
use super::formats::spc::Spc;
use super::formats::systor::Systor;
use super::formats::tencent::Tencent;
use super::formats::trlog::Trlog;
use super::formats::vscsi::Vscsi;
use super::input::{InputStream, ReadGauge, TracePath};
use super::order::ArrivalMerger;
use super::parser::{PairedIos, TextParser, TraceParser};
use super::{TraceIo, TraceSource};

/// Time span of the reorder window for a trace in a pipe, which may be written right now: older
/// I/Os are output even if the window is not full.
const LIVE_SPAN_NS: u64 = 1_000_000_000;

/// An opened trace of any format.
pub struct AnySource {
    order: ArrivalMerger,
    devices: DeviceNames,
    format: Format,
}

impl AnySource {
    fn new(parsers: Vec<Box<dyn TraceParser>>, format: Format, span_ns: u64) -> AnySource {
        let order = ArrivalMerger::new(parsers, format.disorder(), span_ns);
        AnySource { order, devices: DeviceNames::default(), format }
    }

    /// Opens a trace from memory or any other reader; `label` names it in errors.
    ///
    /// # Errors
    /// If it cannot be read, is empty, or has no known format.
    pub fn from_reader(
        label: &str,
        input: impl io::Read + Send + 'static,
        format: Option<Format>,
    ) -> Result<AnySource, OpenError> {
        let input = InputStream::new(label.into(), input, ReadGauge::default(), |_| false)
            .map_err(|source| OpenError::Io { file: label.into(), source })?;
        let format = found(&input, format)?;
        Ok(AnySource::new(vec![parser(format, input)], format, u64::MAX))
    }

    /// Returns the format of the trace, detected or given.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns notes for the user about the trace so far: what was skipped, and what the format
    /// lacks.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.order.notes()
    }

    /// Returns the files that could not be read to their end so far, each with place and reason.
    /// The I/Os of the other files are still read.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        self.order.damage()
    }

    /// Returns the number of events that the recorder of the trace dropped.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        self.order.dropped_events()
    }

    /// Returns the read progress, 0 to 1; 0 where unknown.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.order.progress()
    }
}

impl TraceSource for AnySource {
    type Error = ReadError;

    fn next_io(&mut self) -> Result<Option<TraceIo>, ReadError> {
        self.order.next(&mut self.devices)
    }

    fn devices(&self) -> &[String] {
        self.devices.names()
    }
}

/// An opened trace, as events or as I/Os.
pub enum OpenedTrace {
    /// Events of a blktrace recording, which hold more than I/Os do.
    Events(Box<Reader>),
    /// I/Os of any other format.
    Ios(AnySource),
}

/// Opens files that form one trace. The format is detected unless it is given.
///
/// # Errors
/// If a file cannot be opened, no format fits, or the formats differ.
pub fn open(traces: &[TracePath], format: Option<Format>) -> Result<AnySource, OpenError> {
    match open_events(traces, format)? {
        OpenedTrace::Ios(source) => Ok(source),
        OpenedTrace::Events(reader) => {
            let parser = Box::new(PairedIos::new(Blktrace::new(*reader, None)));
            Ok(AnySource::new(vec![parser], Format::Blktrace, u64::MAX))
        }
    }
}

/// Like [`open`], but returns the events of a blktrace recording.
///
/// # Errors
/// As [`open`].
pub fn open_events(traces: &[TracePath], format: Option<Format>) -> Result<OpenedTrace, OpenError> {
    if traces.len() > 1 && traces.contains(&TracePath::Stdin) {
        return Err(OpenError::StdinAndFiles);
    }
    if let Some(names) = recordings(traces, format) {
        return Ok(OpenedTrace::Events(Box::new(Reader::open(&names)?)));
    }
    let mut inputs: Vec<(Format, InputStream)> = Vec::new();
    // One of several names may be a recording, which is not a file itself.
    let recording = traces.iter().find(|trace| recordings(&[(*trace).clone()], format).is_some());
    for trace in traces.iter().filter(|trace| Some(*trace) != recording) {
        let input = open_input(trace, format)?;
        let found = found(&input, format)?;
        if let Some(recording) = recording {
            return Err(OpenError::Mixed {
                first: recording.to_string(),
                first_format: Format::Blktrace,
                other: input.label,
                other_format: found,
            });
        }
        if let Some((first_format, first)) = inputs.first().filter(|first| first.0 != found) {
            return Err(OpenError::Mixed {
                first: first.label.clone(),
                first_format: *first_format,
                other: input.label,
                other_format: found,
            });
        }
        inputs.push((found, input));
    }
    let format = inputs.first().ok_or(OpenError::Nothing)?.0;
    if format == Format::Blktrace && inputs.len() == 1 {
        let (_, input) = inputs.remove(0);
        let label = input.label.clone();
        let reader = Reader::from_stream(&label, Source::Other(Box::new(input.into_reader())));
        return Ok(OpenedTrace::Events(Box::new(reader)));
    }
    let is_open_ended = inputs.iter().any(|(_, input)| input.gauge.is_open_ended());
    let span_ns = if is_open_ended { LIVE_SPAN_NS } else { u64::MAX };
    let parsers = inputs.into_iter().map(|(format, input)| parser(format, input)).collect();
    Ok(OpenedTrace::Ios(AnySource::new(parsers, format, span_ns)))
}

/// Returns the names of blktrace recordings, if all traces are such: `NAME.blktrace.N`, or a NAME
/// that is not a file itself and has such files.
fn recordings(traces: &[TracePath], format: Option<Format>) -> Option<Vec<TraceName>> {
    let name = |trace: &TracePath| {
        let TracePath::Named(path) = trace else { return None };
        let text = path.to_str()?;
        let of_cpu = path.extension().is_some_and(|end| end.to_str().is_some_and(is_number));
        let is_one = of_cpu && text.contains(".blktrace.");
        let name = TraceName::new(text, None);
        (is_one || !path.exists() && name.has_files()).then_some(name)
    };
    let wanted = matches!(format, None | Some(Format::Blktrace)) && !traces.is_empty();
    if wanted { traces.iter().map(name).collect() } else { None }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn open_input(trace: &TracePath, format: Option<Format>) -> Result<InputStream, OpenError> {
    let file = trace.to_string();
    let is_enough = |head: &[u8]| format.is_some() || is_certain(head);
    let input = InputStream::open(trace, is_enough).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { file: file.clone() },
        _ => OpenError::Io { file: file.clone(), source },
    })?;
    Ok(input)
}

/// Returns the given format, or else the detected one.
fn found(input: &InputStream, format: Option<Format>) -> Result<Format, OpenError> {
    if input.head.is_empty() {
        return Err(OpenError::Empty { file: input.label.clone() });
    }
    let found = format.or_else(|| detect(&input.head)).or_else(|| likely(&input.head));
    found.ok_or_else(|| unknown(input))
}

/// First bytes of files compressed in other formats, the program's name, and the command that
/// decompresses them.
const PACKED: [(&[u8], &str, &str); 4] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
];

fn unknown(input: &InputStream) -> OpenError {
    let packed = PACKED.into_iter().find(|(magic, ..)| input.head.starts_with(magic));
    if let Some((_, by, unpack)) = packed {
        return OpenError::Packed { file: input.label.clone(), by, unpack };
    }
    let text = String::from_utf8_lossy(&input.head);
    let first = shown(text.lines().next().unwrap_or_default());
    OpenError::Unknown { file: input.label.clone(), first, tried: Format::names() }
}

/// Creates the reader of a format.
fn parser(format: Format, input: InputStream) -> Box<dyn TraceParser> {
    match format {
        Format::Blktrace => {
            let (label, gauge) = (input.label.clone(), input.gauge.clone());
            let reader = Reader::from_stream(&label, input.into_reader());
            Box::new(PairedIos::new(Blktrace::new(reader, Some(gauge))))
        }
        Format::Trlog => Box::new(Trlog::new(input)),
        Format::Vscsi => Box::new(Vscsi::new(input)),
        Format::Iolog => Box::new(TextParser::new(input, Iolog2::default())),
        Format::Iolog3 => Box::new(TextParser::new(input, Iolog3)),
        Format::Blkparse => Box::new(PairedIos::new(Blkparse::new(input))),
        Format::Nbdkit => Box::new(PairedIos::new(Nbdkit::new(input))),
        Format::Msr => Box::new(TextParser::new(input, Msr::default())),
        Format::Systor => Box::new(TextParser::new(input, Systor::default())),
        Format::Alibaba => Box::new(TextParser::new(input, Alibaba)),
        Format::Tencent => Box::new(TextParser::new(input, Tencent)),
        Format::Spc => Box::new(TextParser::new(input, Spc)),
        Format::Fiu => Box::new(TextParser::new(input, Fiu::default())),
    }
}

#[cfg(test)]
mod tests;
