//! `open`: opens traces of any format as one stream of I/Os.
//!
//! This file chooses the reader. Files that are named together form one trace: they must have the
//! same format, and their I/Os are merged by time. Verbs call this file, which calls `detect` and
//! the format readers.

use std::io;

use millrace_trace::{Reader, TraceError, TraceName};

use super::detect::{detect, is_certain, likely};
use super::error::{OpenError, shown};
use super::format::Format;
use super::formats::blktrace::Blktrace;
use super::input::{InputStream, ReadGauge, TracePath};
use super::merger::{AnySource, TraceStream};

/// Time span of the reorder window for a trace in a pipe. A recorder may still be writing the
/// trace, so an I/O must not wait until the window is full.
const LIVE_SPAN_NS: u64 = 1_000_000_000;

impl AnySource {
    /// Opens a trace from memory or any other reader. `label` is the trace's name in errors.
    ///
    /// # Errors
    /// If the input cannot be read, is empty, or has no known format.
    pub fn from_reader(
        label: &str,
        input: impl io::Read + Send + 'static,
        format: Option<Format>,
    ) -> Result<AnySource, OpenError> {
        let input = InputStream::new(label.into(), input, ReadGauge::default(), |_| false)
            .map_err(|error| OpenError::Io(label.into(), error))?;
        let format = found(&input, format)?;
        Ok(AnySource::new(vec![stream(format, input)], format, u64::MAX))
    }
}

/// Opens files that together form one trace. Detects the format if `format` is `None`.
///
/// # Errors
/// If a file cannot be opened, no format fits, or the formats differ.
pub fn open(traces: &[TracePath], format: Option<Format>) -> Result<AnySource, OpenError> {
    if traces.len() > 1 && traces.contains(&TracePath::Stdin) {
        return Err(TraceError::PipeAndFiles.into());
    }
    if let Some(recordings) = recordings(traces, format)? {
        let parser = Box::new(Blktrace::new(Reader::open(&recordings)?));
        let stream = TraceStream::new(parser, ReadGauge::default());
        return Ok(AnySource::new(vec![stream], Format::Blktrace, u64::MAX));
    }
    let mut first: Option<(String, Format)> = None;
    let (mut streams, mut span_ns) = (Vec::new(), u64::MAX);
    for trace in traces {
        let input = open_input(trace, format)?;
        let format = found(&input, format)?;
        match &first {
            None => first = Some((input.label.clone(), format)),
            Some((name, other)) if *other != format => {
                let (first, second) = (other.name(), format.name());
                return Err(OpenError::Mixed(name.clone(), first, input.label, second));
            }
            Some(_) => {}
        }
        if input.gauge.is_open_ended() {
            span_ns = LIVE_SPAN_NS;
        }
        streams.push(stream(format, input));
    }
    let format = first.ok_or(OpenError::Nothing)?.1;
    Ok(AnySource::new(streams, format, span_ns))
}

fn stream(format: Format, input: InputStream) -> TraceStream {
    let gauge = input.gauge.clone();
    TraceStream::new(format.open(input), gauge)
}

/// Returns the names of the blktrace recordings, or `None` if the traces are not blktrace
/// recordings. A recording is a set of files `NAME.blktrace.N`. Users name a recording by one of
/// its files, or by NAME if no file has that name.
fn recordings(
    traces: &[TracePath],
    format: Option<Format>,
) -> Result<Option<Vec<TraceName>>, OpenError> {
    let name = |trace: &TracePath| {
        let TracePath::Named(path) = trace else { return None };
        let text = path.to_str()?;
        let of_cpu = path.extension().is_some_and(|end| end.to_str().is_some_and(is_number));
        let is_one = of_cpu && text.contains(".blktrace.");
        let name = TraceName::new(text, None);
        (is_one || !path.exists() && name.has_files()).then_some(name)
    };
    if !matches!(format, None | Some(Format::Blktrace)) {
        return Ok(None);
    }
    let (some, others): (Vec<&TracePath>, Vec<_>) =
        traces.iter().partition(|trace| name(trace).is_some());
    if let ([first, ..], [other, ..]) = (&some[..], &others[..]) {
        let input = open_input(other, format)?;
        let (first, other) = ((first.to_string(), Format::Blktrace.name()), found(&input, format)?);
        return Err(OpenError::Mixed(first.0, first.1, input.label, other.name()));
    }
    Ok((!some.is_empty()).then(|| traces.iter().filter_map(name).collect()))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn open_input(trace: &TracePath, format: Option<Format>) -> Result<InputStream, OpenError> {
    let is_enough = |head: &[u8]| format.is_some() || is_certain(head);
    InputStream::open(trace, is_enough).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => OpenError::Missing(trace.to_string()),
        _ => OpenError::Io(trace.to_string(), error),
    })
}

/// Compression formats other than gzip: first bytes of a file, name of the program, and the command
/// that decompresses to standard output.
const PACKED: [(&[u8], &str, &str); 4] = [
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
];

fn found(input: &InputStream, format: Option<Format>) -> Result<Format, OpenError> {
    let (head, label) = (input.head(), || input.label.clone());
    if head.is_empty() {
        return Err(OpenError::Empty(label()));
    }
    let found = format.or_else(|| detect(head)).or_else(|| likely(head));
    found.ok_or_else(|| {
        let packed = PACKED.into_iter().find(|(magic, ..)| head.starts_with(magic));
        if let Some((_, by, unpack)) = packed {
            return OpenError::Packed(label(), by, unpack);
        }
        let text = String::from_utf8_lossy(head);
        let first = shown(text.lines().next().unwrap_or_default());
        OpenError::Unknown(label(), first, Format::names(Format::all()))
    })
}

#[cfg(test)]
mod tests;
