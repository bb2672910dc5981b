//! `open`: traces of whatever format as one stream of I/Os.
//!
//! Owns the choice of a reader. Files that are named together are one trace: they have one format,
//! and their I/Os are merged by time. Called by verbs; calls `detect` and readers of formats.

use std::io;

use super::detect::detect;
use super::devices::Devices;
use super::error::{OpenError, ReadError, shown};
use super::format::Format;
use super::formats::iolog::{Iolog2, Iolog3};
use super::input::{Input, TracePath};
use super::order::Order;
use super::parse::{Parse, Text};
use super::{TraceSource, TracedIo};

/// A trace of any format.
pub struct AnySource {
    order: Order,
    devices: Devices,
    format: Format,
}

impl AnySource {
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

    /// How far it is, 0 to 1; 0 where that is not known.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.order.progress()
    }
}

impl TraceSource for AnySource {
    type Error = ReadError;

    fn next_io(&mut self) -> Result<Option<TracedIo>, ReadError> {
        self.order.next(&mut self.devices)
    }

    fn devices(&self) -> &[String] {
        self.devices.names()
    }
}

/// Opens traces that are one trace together; the format is found by itself unless it is said.
///
/// # Errors
/// If a file cannot be opened, no format fits, or formats differ.
pub fn open(traces: &[TracePath], format: Option<Format>) -> Result<AnySource, OpenError> {
    if traces.len() > 1 && traces.contains(&TracePath::Stdin) {
        return Err(OpenError::StdinAndFiles);
    }
    let mut inputs: Vec<(Format, Input)> = Vec::new();
    for trace in traces {
        let input = open_input(trace)?;
        let found = match format {
            Some(format) => format,
            None => detect(&input.head).ok_or_else(|| unknown(&input))?,
        };
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
    let parsers = inputs.into_iter().map(|(format, input)| parser(format, input)).collect();
    Ok(AnySource { order: Order::new(parsers, 1), devices: Devices::default(), format })
}

fn open_input(trace: &TracePath) -> Result<Input, OpenError> {
    let file = trace.to_string();
    let input = Input::open(trace).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { file: file.clone() },
        _ => OpenError::Io { file: file.clone(), source },
    })?;
    if input.head.is_empty() { Err(OpenError::Empty { file }) } else { Ok(input) }
}

fn unknown(input: &Input) -> OpenError {
    let text = String::from_utf8_lossy(&input.head);
    let first = shown(text.lines().next().unwrap_or_default());
    OpenError::Unknown { file: input.label.clone(), first, tried: Format::names() }
}

/// The reader of a format.
fn parser(format: Format, input: Input) -> Box<dyn Parse> {
    match format {
        Format::Iolog3 => Box::new(Text::new(input, Iolog3)),
        _ => Box::new(Text::new(input, Iolog2::default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::Op;

    #[test]
    fn logs_of_both_versions_are_found_by_themselves_and_merged_by_time() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            TracePath::Named(path)
        };
        let first = write("a", "fio version 3 iolog\n1 a add\n2 a read 0 512\n9 a sync 0 0\n");
        let second = write("b", "fio version 3 iolog\n5 b trim 512 1024\n");
        let mut source = open(&[first.clone(), second], None).unwrap();
        let ios: Vec<TracedIo> = std::iter::from_fn(|| source.next_io().unwrap()).collect();
        let told: Vec<_> = ios.iter().map(|io| (io.at_ns, io.device, io.op)).collect();
        assert_eq!(told, [(0, 0, Op::Read), (3_000, 1, Op::Discard), (7_000, 0, Op::Flush)]);
        assert_eq!(source.devices(), ["a", "b"]);
        let other = write("c", "fio version 2 iolog\nc wait 10\nc write 0 512\n");
        let error = open(&[first, other], None).err().unwrap().to_string();
        assert!(error.contains("a is iolog3 and ") && error.contains("c is iolog"), "{error}");
    }
}
