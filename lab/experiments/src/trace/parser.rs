//! `TraceParser`: the interface of a format reader, and `TextParser`, the reader of formats with
//! one I/O per line.
//!
//! A format with one I/O per line implements `LineFormat`, which knows nothing of files. A format
//! with separate completion records implements `EventParser`, which `PairedIos` turns into I/Os.
//! Binary formats of whole I/Os implement `TraceParser` themselves.

use super::TraceIo;
use super::devices::DeviceNames;
use super::error::{ReadError, shown};
use super::input::{InputStream, ReadGauge};
use super::lines::TraceLines;
use super::pending::StreamState;

/// Reader of one file, or of a set of files that form one trace.
pub(super) trait TraceParser: Send {
    /// Returns the next I/O, with its time by the format's own clock; None at the end.
    ///
    /// # Errors
    /// If a line or record does not follow the format.
    fn next(&mut self, devices: &mut DeviceNames) -> Result<Option<TraceIo>, ReadError>;

    /// Returns notes for the user about what was read so far.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns files that could not be read to their end while others were read on.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the number of events that the recorder dropped.
    fn dropped_events(&self) -> u64 {
        0
    }

    /// Returns the read position and the total, in any unit.
    fn progress(&self) -> (u64, u64);
}

/// Content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineContent {
    /// An I/O.
    Io(TraceIo),
    /// A line without an I/O, such as a header.
    Other,
    /// An I/O that is incomplete in the trace, or not a block I/O.
    Skipped,
}

/// Description of what is wrong with a line.
pub(super) type Problem = String;

/// A format with one I/O per line.
pub(super) trait LineFormat: Send {
    /// Example of a line, for error messages.
    const EXAMPLE: &'static str;

    /// Text that follows the number of skipped lines in a note.
    const SKIPPED: &'static str = "lines were skipped";

    /// Parses a line with content; `number` counts these lines from 1.
    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem>;

    /// Returns a note for the user that applies to all traces of this format.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Reader of a text file with one I/O per line.
pub(super) struct TextParser<F> {
    lines: TraceLines,
    format: F,
    skipped: u64,
}

impl<F: LineFormat> TextParser<F> {
    pub(super) fn new(input: InputStream, format: F) -> TextParser<F> {
        TextParser { lines: TraceLines::new(input), format, skipped: 0 }
    }
}

impl<F: LineFormat> TraceParser for TextParser<F> {
    fn next(&mut self, devices: &mut DeviceNames) -> Result<Option<TraceIo>, ReadError> {
        loop {
            let number = self.lines.row() + 1;
            let Some(text) = self.lines.next()? else { return Ok(None) };
            match self.format.line(number, text, devices) {
                Ok(LineContent::Io(io)) => return Ok(Some(io)),
                Ok(LineContent::Other) => {}
                Ok(LineContent::Skipped) => self.skipped += 1,
                Err(problem) => {
                    let problem = format!("{problem}; example of a line: {}", F::EXAMPLE);
                    return Err(self.lines.broken(problem));
                }
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let skipped = (self.skipped > 0).then(|| format!("{} {}", self.skipped, F::SKIPPED));
        skipped.into_iter().chain(self.format.note()).collect()
    }

    fn progress(&self) -> (u64, u64) {
        ReadGauge::progress(self.lines.gauge())
    }
}

/// A format with separate completion records.
pub(super) trait EventParser: Send {
    /// Reads one event.
    ///
    /// # Errors
    /// If it does not follow the format.
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError>;

    /// Returns the next I/O that may be output.
    fn pop(&mut self, more: StreamState) -> Option<TraceIo>;

    /// Returns notes for the user about what was read so far.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns files that could not be read to their end while others were read on.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the number of events that the recorder dropped.
    fn dropped_events(&self) -> u64 {
        0
    }

    /// Returns the read position and the total, in any unit.
    fn progress(&self) -> (u64, u64);
}

/// Turns such a format into a reader of I/Os. An error is returned after all I/Os before it.
pub(super) struct PairedIos<S> {
    steps: S,
    more: StreamState,
    error: Option<ReadError>,
}

impl<S: EventParser> PairedIos<S> {
    pub(super) fn new(steps: S) -> PairedIos<S> {
        PairedIos { steps, more: StreamState::ToCome, error: None }
    }
}

impl<S: EventParser> TraceParser for PairedIos<S> {
    fn next(&mut self, devices: &mut DeviceNames) -> Result<Option<TraceIo>, ReadError> {
        loop {
            if let Some(io) = self.steps.pop(self.more) {
                return Ok(Some(io));
            }
            if self.more == StreamState::Ended {
                return self.error.take().map_or(Ok(None), Err);
            }
            match self.steps.step(devices) {
                Ok(more) => self.more = more,
                Err(error) => (self.error, self.more) = (Some(error), StreamState::Ended),
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        self.steps.notes()
    }

    fn damage(&self) -> Vec<String> {
        self.steps.damage()
    }

    fn dropped_events(&self) -> u64 {
        self.steps.dropped_events()
    }

    fn progress(&self) -> (u64, u64) {
        self.steps.progress()
    }
}

/// Returns the first `N` fields of a line, trimmed.
///
/// # Errors
/// If there are fewer.
pub(super) fn fields<'a, const N: usize>(
    fields: impl Iterator<Item = &'a str>,
) -> Result<[&'a str; N], Problem> {
    let mut array = [""; N];
    let mut found = 0;
    for (place, field) in array.iter_mut().zip(fields) {
        *place = field.trim();
        found += 1;
    }
    if found < N { Err(format!("{found} fields; at least {N} are expected")) } else { Ok(array) }
}

/// Parses a whole number.
///
/// # Errors
/// If the text is not a number below 2^64.
pub(super) fn whole(name: &str, text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| format!("{name} is {}; a whole number is expected", shown(text)))
}

/// Parses a decimal number, in units of its `digits`-th decimal place; further decimals are cut
/// off.
///
/// # Errors
/// If the text is not a number, or the result is not below 2^64.
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

/// Multiplies a number by its unit in bytes or nanoseconds.
///
/// # Errors
/// If the result is not below 2^64.
pub(super) fn scaled(name: &str, number: u64, unit: u64) -> Result<u64, Problem> {
    number.checked_mul(unit).ok_or_else(|| format!("{name} is {number}, which is too large"))
}

/// Returns true if a line is a header: the first line, with a letter at the start of each field.
pub(super) fn is_head(number: u64, text: &str) -> bool {
    let is_word = |field: &str| {
        let first = field.trim().trim_start_matches('"').bytes().next();
        first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
    };
    number == 1 && text.split(',').all(is_word)
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
        assert_eq!(fields::<2>("a, b ,c".split(',')), Ok(["a", "b"]));
        assert_eq!(fields::<3>("a,b".split(',')), Err("2 fields; at least 3 are expected".into()));
    }
}
