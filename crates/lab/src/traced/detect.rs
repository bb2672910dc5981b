//! Finds a trace's format by its first bytes.
//!
//! Binary formats are known by their magic numbers. Of text, each format is tried on the first
//! lines, by its own reader: the format is the first of `Format::ALL` that takes all of them.
//! Formats are told apart by the place and spelling of the operation, so that two never fit.
//! Called by `open.rs`.

use super::devices::Devices;
use super::format::Format;
use super::formats::iolog::{Iolog2, Iolog3};
use super::parse::{Line, LineFormat};

/// Lines that are tried.
const LINES_TRIED: usize = 16;

/// The format of a trace that begins with these bytes; none if none fits.
pub(super) fn detect(head: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(head);
    let lines = first_lines(&text);
    Format::ALL.into_iter().find(|format| fits(*format, &lines))
}

/// The lines that are whole, with their numbers; of a single one, all there is.
fn first_lines(head: &str) -> Vec<(u64, &str)> {
    let whole = head.rfind('\n').map_or(head, |end| &head[..end]);
    let lines = (1..).zip(whole.lines()).map(|(number, line)| (number, line.trim()));
    lines.filter(|(_, line)| !line.is_empty()).take(LINES_TRIED).collect()
}

fn fits(format: Format, lines: &[(u64, &str)]) -> bool {
    match format {
        Format::Iolog2 => takes(Iolog2::default(), lines),
        Format::Iolog3 => takes(Iolog3, lines),
        _ => false,
    }
}

/// Whether a reader takes all lines, and there are some.
fn takes<F: LineFormat>(mut format: F, lines: &[(u64, &str)]) -> bool {
    let mut devices = Devices::default();
    let mut read = |(number, text): &(u64, &str)| format.line(*number, text, &mut devices);
    let read: Vec<_> = lines.iter().map(&mut read).collect();
    let known = |line: &Result<Line, String>| line.is_ok();
    !read.is_empty() && read.iter().all(known)
}
