//! `open`: traces of whatever format as one stream of I/Os.
//!
//! Owns the choice of a reader. Files that are named together are one trace: they have one format,
//! and their I/Os are merged by time. Called by verbs; calls `detect` and readers of formats.

use std::io;

use millrace_trace::{Reader, Source, TraceName};

use super::detect::{detect, is_certain, likely};
use super::devices::Devices;
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
use super::input::{Input, ReadGauge, TracePath};
use super::order::Order;
use super::parser::{PairedIos, Parse, Text};
use super::{TraceIo, TraceSource};

/// Time of a trace in a pipe, which may be written at this moment, after which an I/O is told
/// though its window is not full.
const LIVE_SPAN_NS: u64 = 1_000_000_000;

/// A trace of any format.
pub struct AnySource {
    order: Order,
    devices: Devices,
    format: Format,
}

impl AnySource {
    fn new(parsers: Vec<Box<dyn Parse>>, format: Format, span_ns: u64) -> AnySource {
        let order = Order::new(parsers, format.disorder(), span_ns);
        AnySource { order, devices: Devices::default(), format }
    }

    /// A trace from memory or from whatever else can be read, under the name `label`.
    ///
    /// # Errors
    /// If it cannot be read, is empty, or no format fits.
    pub fn from_reader(
        label: &str,
        input: impl io::Read + Send + 'static,
        format: Option<Format>,
    ) -> Result<AnySource, OpenError> {
        let input = Input::new(label.into(), input, ReadGauge::default(), |_| false)
            .map_err(|source| OpenError::Io { file: label.into(), source })?;
        let format = found(&input, format)?;
        Ok(AnySource::new(vec![parser(format, input)], format, u64::MAX))
    }

    /// The format that was found or said.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// What a person should know of what was read so far: what was skipped, and what the format
    /// does not tell.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.order.notes()
    }

    /// Files that were not read to their end so far, each with the place and the reason. The I/Os
    /// of the others were told.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        self.order.damage()
    }

    /// Events that are missing because the recorder of the trace dropped them.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        self.order.dropped_events()
    }

    /// How far it is, 0 to 1; 0 where that is not known.
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

/// A trace as it is opened.
pub enum OpenedTrace {
    /// blktrace's events, which say more than I/Os do.
    Events(Box<Reader>),
    /// I/Os.
    Ios(AnySource),
}

/// Opens traces that are one trace together; the format is found by itself unless it is said.
///
/// # Errors
/// If a file cannot be opened, no format fits, or formats differ.
pub fn open(traces: &[TracePath], format: Option<Format>) -> Result<AnySource, OpenError> {
    match open_events(traces, format)? {
        OpenedTrace::Ios(source) => Ok(source),
        OpenedTrace::Events(reader) => {
            let parser = Box::new(PairedIos::new(Blktrace::new(*reader, None)));
            Ok(AnySource::new(vec![parser], Format::Blktrace, u64::MAX))
        }
    }
}

/// Opens the same as events, where it is a recording of blktrace.
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
    let mut inputs: Vec<(Format, Input)> = Vec::new();
    // Of several names one may be a recording, which is no file.
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

/// The names of blktrace's recordings, if all that is named are such: `NAME.blktrace.N`, or a NAME
/// that is no file itself and has such files.
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

fn open_input(trace: &TracePath, format: Option<Format>) -> Result<Input, OpenError> {
    let file = trace.to_string();
    let is_enough = |head: &[u8]| format.is_some() || is_certain(head);
    let input = Input::open(trace, is_enough).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { file: file.clone() },
        _ => OpenError::Io { file: file.clone(), source },
    })?;
    Ok(input)
}

/// The format that is said, or else the one that fits.
fn found(input: &Input, format: Option<Format>) -> Result<Format, OpenError> {
    if input.head.is_empty() {
        return Err(OpenError::Empty { file: input.label.clone() });
    }
    let found = format.or_else(|| detect(&input.head)).or_else(|| likely(&input.head));
    found.ok_or_else(|| unknown(input))
}

/// What other packed files begin with, who packs them, and what unpacks them.
const PACKED: [(&[u8], &str, &str); 4] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
];

fn unknown(input: &Input) -> OpenError {
    let packed = PACKED.into_iter().find(|(magic, ..)| input.head.starts_with(magic));
    if let Some((_, by, unpack)) = packed {
        return OpenError::Packed { file: input.label.clone(), by, unpack };
    }
    let text = String::from_utf8_lossy(&input.head);
    let first = shown(text.lines().next().unwrap_or_default());
    OpenError::Unknown { file: input.label.clone(), first, tried: Format::names() }
}

/// The reader of a format.
fn parser(format: Format, input: Input) -> Box<dyn Parse> {
    match format {
        Format::Blktrace => {
            let (label, gauge) = (input.label.clone(), input.gauge.clone());
            let reader = Reader::from_stream(&label, input.into_reader());
            Box::new(PairedIos::new(Blktrace::new(reader, Some(gauge))))
        }
        Format::Trlog => Box::new(Trlog::new(input)),
        Format::Vscsi => Box::new(Vscsi::new(input)),
        Format::Iolog => Box::new(Text::new(input, Iolog2::default())),
        Format::Iolog3 => Box::new(Text::new(input, Iolog3)),
        Format::Blkparse => Box::new(PairedIos::new(Blkparse::new(input))),
        Format::Nbdkit => Box::new(PairedIos::new(Nbdkit::new(input))),
        Format::Msr => Box::new(Text::new(input, Msr::default())),
        Format::Systor => Box::new(Text::new(input, Systor::default())),
        Format::Alibaba => Box::new(Text::new(input, Alibaba)),
        Format::Tencent => Box::new(Text::new(input, Tencent)),
        Format::Spc => Box::new(Text::new(input, Spc)),
        Format::Fiu => Box::new(Text::new(input, Fiu::default())),
    }
}

#[cfg(test)]
mod tests;
