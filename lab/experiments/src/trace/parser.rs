//! `Parse`: what a reader of a format is, and `Text`, the reader of all whose lines are I/Os.
//!
//! A format with one I/O in each line is a `LineFormat`, which knows nothing of files. One whose
//! answers are records of their own is `Steps`, of which `PairedIos` makes I/Os. Binary formats of
//! whole I/Os implement `Parse` themselves.

use super::TraceIo;
use super::devices::Devices;
use super::error::{ReadError, shown};
use super::input::{Input, ReadGauge};
use super::lines::Lines;
use super::pending::StreamState;

/// A reader of one file, or of a set that is one trace.
pub(super) trait Parse: Send {
    /// The next I/O, its time by the format's own clock; none at the end.
    ///
    /// # Errors
    /// If a line or record is not what the format says.
    fn next(&mut self, devices: &mut Devices) -> Result<Option<TraceIo>, ReadError>;

    /// What a person should know of what was read so far.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Files that were not read to their end, though it went on with others.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// Events that its recorder dropped.
    fn dropped_events(&self) -> u64 {
        0
    }

    /// How far it is.
    fn progress(&self) -> (u64, u64);
}

/// What is in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// An I/O.
    Io(TraceIo),
    /// Nothing to do.
    Other,
    /// An I/O that the trace says too little of, or that is none of a block device.
    Skipped,
}

/// What is wrong with a line.
pub(super) type Problem = String;

/// A format with one I/O in each line.
pub(super) trait LineFormat: Send {
    /// A line of it, for errors.
    const EXAMPLE: &'static str;

    /// What skipped lines are.
    const SKIPPED: &'static str = "lines were skipped";

    /// Reads a line that says something, numbered among those.
    fn line(&mut self, number: u64, text: &str, devices: &mut Devices) -> Result<Line, Problem>;

    /// What a person should know of all traces of this format.
    fn note(&self) -> Option<String> {
        None
    }
}

/// Reads the lines of a file.
pub(super) struct Text<F> {
    lines: Lines,
    format: F,
    skipped: u64,
}

impl<F: LineFormat> Text<F> {
    pub(super) fn new(input: Input, format: F) -> Text<F> {
        Text { lines: Lines::new(input), format, skipped: 0 }
    }
}

impl<F: LineFormat> Parse for Text<F> {
    fn next(&mut self, devices: &mut Devices) -> Result<Option<TraceIo>, ReadError> {
        loop {
            let number = self.lines.row() + 1;
            let Some(text) = self.lines.next()? else { return Ok(None) };
            match self.format.line(number, text, devices) {
                Ok(Line::Io(io)) => return Ok(Some(io)),
                Ok(Line::Other) => {}
                Ok(Line::Skipped) => self.skipped += 1,
                Err(problem) => {
                    let problem = format!("{problem}; a line is such as {}", F::EXAMPLE);
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

/// A format whose answers are records of their own.
pub(super) trait Steps: Send {
    /// Reads an event.
    ///
    /// # Errors
    /// If it is not what the format says.
    fn step(&mut self, devices: &mut Devices) -> Result<StreamState, ReadError>;

    /// The next I/O that may be told.
    fn pop(&mut self, more: StreamState) -> Option<TraceIo>;

    /// What a person should know of what was read so far.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Files that were not read to their end, though it went on with others.
    fn damage(&self) -> Vec<String> {
        Vec::new()
    }

    /// Events that its recorder dropped.
    fn dropped_events(&self) -> u64 {
        0
    }

    /// How far it is.
    fn progress(&self) -> (u64, u64);
}

/// The I/Os of such a format; an error is told after all that came before it.
pub(super) struct PairedIos<S> {
    steps: S,
    more: StreamState,
    error: Option<ReadError>,
}

impl<S: Steps> PairedIos<S> {
    pub(super) fn new(steps: S) -> PairedIos<S> {
        PairedIos { steps, more: StreamState::ToCome, error: None }
    }
}

impl<S: Steps> Parse for PairedIos<S> {
    fn next(&mut self, devices: &mut Devices) -> Result<Option<TraceIo>, ReadError> {
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

/// The fields of a line, so many or more.
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
    if found < N { Err(format!("{found} fields; {N} are expected")) } else { Ok(array) }
}

/// A whole number.
///
/// # Errors
/// If the text is none, or is past 2^64.
pub(super) fn whole(name: &str, text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| format!("{name} is {}; a whole number is expected", shown(text)))
}

/// A number with decimals of `digits` places, in units of the last one; what is past those is cut.
///
/// # Errors
/// If the text is none, or the number is past 2^64.
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

/// A number of units as bytes or nanoseconds.
///
/// # Errors
/// If there are too many.
pub(super) fn scaled(name: &str, number: u64, unit: u64) -> Result<u64, Problem> {
    number.checked_mul(unit).ok_or_else(|| format!("{name} is {number}, which is too large"))
}

/// Whether a line is a head: the first, and each of its fields begins with a letter.
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
        assert_eq!(fields::<3>("a,b".split(',')), Err("2 fields; 3 are expected".into()));
    }
}
