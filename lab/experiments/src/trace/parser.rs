//! `TraceParser` and `LineParser`: the interface of a format's reader, and that of a text format's
//! parser.
//!
//! A reader takes a line or record at a time. In formats with one whole I/O per line, I/Os are
//! output at once. In other formats, an I/O is held back until its completion record has been read.
//! `LineReader` reads the files of all text formats. A `LineParser` gets single lines instead of a
//! file, so `detect.rs` can also try it on the first lines of a trace. Called by `merger.rs`.

use millrace_trace::{Spans, TraceError};

use super::TraceIo;
use super::devices::DeviceNames;
use super::error::{ReadError, shown};
use super::input::{InputStream, TraceLines};
use super::pending::StreamState;
use super::timeline::Timeline;

pub(super) trait TraceParser: Send {
    /// Reads one line or record. After an error, the reader has no more I/Os.
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError>;

    /// Returns the next I/O whose latency is known, or whose completion is no longer awaited. The
    /// time of the I/O is by the format's own clock, not yet relative to the first I/O.
    fn pop(&mut self, more: StreamState) -> Option<TraceIo>;

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    fn dropped_events(&self) -> u64 {
        0
    }

    /// Returns the read progress, 0 to 1. Implemented by readers that open their files themselves;
    /// the progress of other readers is known from their `InputStream`.
    fn progress(&self) -> f64 {
        0.0
    }

    /// Starts to measure spans, the times between the events of an I/O, if the trace has events.
    /// Called before the first `step`.
    fn measure_spans(&mut self, _naming: DeviceNaming) {}

    fn spans(&self) -> Option<(&Spans, &Timeline)> {
        None
    }
}

/// Naming of a recording's devices in reports: by names or by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceNaming {
    /// Names from the recording, or numbers for devices without a name.
    #[default]
    Names,
    /// Major and minor numbers of the devices.
    Numbers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineKind {
    /// A line that proves the format, because the line occurs in no other.
    Proof,
    Record,
    /// A valid line without an I/O, such as a header. Does not prove the format, because files of
    /// other formats may have the same line.
    Other,
    /// First line of a trailer, such as blkparse's summary. No I/Os follow.
    End,
}

pub(super) type Problem = String;

pub(super) trait LineParser: Send {
    fn example(&self) -> &'static str;

    /// Parses a line that is neither blank nor a comment. `number`, from 1, counts these lines
    /// only.
    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineKind, Problem>;

    fn pop(&mut self, more: StreamState) -> Option<TraceIo>;

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn has_completions_only(&self) -> bool {
        false
    }
}

pub(super) struct LineReader {
    lines: TraceLines,
    parser: Box<dyn LineParser>,
}

impl LineReader {
    pub(super) fn new(input: InputStream, parser: Box<dyn LineParser>) -> LineReader {
        LineReader { lines: TraceLines::new(input), parser }
    }

    fn end(&self) -> Result<StreamState, ReadError> {
        match self.parser.has_completions_only() {
            true => Err(TraceError::CompletionsOnly { trace: self.lines.label().into() }.into()),
            false => Ok(StreamState::Ended),
        }
    }
}

impl TraceParser for LineReader {
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError> {
        let number = self.lines.row() + 1;
        let Some(text) = self.lines.next()? else { return self.end() };
        match self.parser.line(number, text, devices) {
            Ok(LineKind::End) => self.end(),
            Ok(_) => Ok(StreamState::ToCome),
            Err(problem) => {
                let example = self.parser.example();
                Err(self.lines.broken(format!("{problem}; example of a line: {example}")))
            }
        }
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.parser.pop(more)
    }

    fn notes(&self) -> Vec<String> {
        self.parser.notes()
    }
}

/// Largest number of fields of a line that are parsed. Further fields are ignored.
const FIELDS_MAX: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fields<'a> {
    fields: [&'a str; FIELDS_MAX],
    count: usize,
}

impl<'a> FromIterator<&'a str> for Fields<'a> {
    fn from_iter<I: IntoIterator<Item = &'a str>>(all: I) -> Fields<'a> {
        let mut fields = Fields::default();
        for (place, field) in fields.fields.iter_mut().zip(all) {
            *place = field.trim();
            fields.count += 1;
        }
        fields
    }
}

impl<'a> Fields<'a> {
    pub(super) fn first<const N: usize>(&self) -> Result<[&'a str; N], Problem> {
        self.at_least(N).map(|()| std::array::from_fn(|place| self.fields[place]))
    }

    pub(super) fn at(&self, place: usize) -> Result<&'a str, Problem> {
        self.at_least(place + 1).map(|()| self.fields[place])
    }

    pub(super) fn at_least(&self, least: usize) -> Result<(), Problem> {
        match self.count < least {
            true => Err(format!("{} fields; at least {least} are expected", self.count)),
            false => Ok(()),
        }
    }
}

pub(super) fn whole(name: &str, text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| format!("{name} is {}; a whole number is expected", shown(text)))
}

/// Parses a decimal number and returns it in units of 10^-`digits`. Further decimals are cut off.
pub(super) fn decimal(name: &str, text: &str, digits: usize) -> Result<u64, Problem> {
    let problem = || format!("{name} is {}; a number is expected", shown(text));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(problem());
    }
    let mut number: u64 =
        if whole.is_empty() { 0 } else { whole.parse().map_err(|_| problem())? };
    let places = part.bytes().chain(std::iter::repeat(b'0')).take(digits);
    for digit in places {
        let next = number.checked_mul(10).and_then(|n| n.checked_add(u64::from(digit - b'0')));
        number = next.ok_or_else(problem)?;
    }
    Ok(number)
}

pub(super) fn scaled(name: &str, number: u64, unit: u64) -> Result<u64, Problem> {
    number.checked_mul(unit).ok_or_else(|| format!("{name} is {number}, which is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_to_their_last_place_without_rounding() {
        let read = |text| decimal("t", text, 9).ok();
        assert_eq!(read("1456095145.133076000"), Some(1_456_095_145_133_076_000));
        assert_eq!(read("0.000001"), Some(1_000));
        assert_eq!(read("3"), Some(3_000_000_000));
        assert_eq!(read(".5"), Some(500_000_000));
        assert_eq!(read("1.9999999999"), Some(1_999_999_999));
        for bad in ["", ".", "x", "1.x", "-1", "1e9", "1.5.5", "99999999999999", "+"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn too_few_fields_are_an_error_and_more_are_left() {
        let fields = |text: &'static str| text.split(',').collect::<Fields<'_>>();
        assert_eq!(fields("a, b ,c").first::<2>(), Ok(["a", "b"]));
        assert_eq!(fields("a,b").first::<3>(), Err("2 fields; at least 3 are expected".into()));
        assert_eq!(fields("1,2,3,4,5,6,7,8,9,10").at(7), Ok("8"));
    }
}
