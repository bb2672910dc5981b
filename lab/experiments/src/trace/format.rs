//! `Format`: the trace formats, with a table of all properties of each format.
//!
//! To add a format, add a variant and a `FormatRow` here. The row names the reader of the format: a
//! table of columns in `formats/tables.rs`, or a parser in a file of its own. The rows are used for
//! detection, reading and writing, and for the lists of formats in the help and in errors.

use std::fmt;
use std::str::FromStr;

use super::columns::{ColumnParser, ColumnTable};
use super::formats::blkparse::Blkparse;
use super::formats::blktrace::{Blktrace, is_recording};
use super::formats::nbdkit::NbdkitLog;
use super::formats::tables;
use super::formats::trlog::{Trlog, is_log};
use super::formats::vscsi::{Vscsi, has_version};
use super::input::InputStream;
use super::parser::{LineParser, LineReader, TraceParser};
use super::writer::blktrace::BlktraceEvents;
use super::writer::format_writer::FormatWriter;
use super::writer::iolog::IologLines;
use super::writer::msr::MsrRows;

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Binary files of blktrace: one per CPU, or all in one stream, as `blktrace -o -` writes them.
    Blktrace,
    /// Transaction log of nbd-server.
    Trlog,
    /// CloudPhysics' records of VMware's vscsiStats.
    Vscsi,
    /// fio's I/O log, version 2.
    Iolog,
    /// fio's I/O log, version 3, which has times.
    Iolog3,
    /// Text output of blkparse.
    Blkparse,
    /// Log of nbdkit's log filter.
    Nbdkit,
    /// CSV of the MSR Cambridge traces.
    Msr,
    /// CSV of the SYSTOR '17 traces.
    Systor,
    /// CSV of Alibaba's block traces.
    Alibaba,
    /// CSV of Tencent's cloud block storage traces.
    Tencent,
    /// Format of the Storage Performance Council, used by the UMass traces.
    Spc,
    /// Text format of Florida International University's traces.
    Fiu,
}

pub(super) enum FormatReader {
    Columns(&'static ColumnTable),
    /// Parser for a text format that no `ColumnTable` describes. Detection of the format tries this
    /// parser on the first lines of the file.
    Lines(fn() -> Box<dyn LineParser>),
    /// Binary records. Detection checks the first bytes with `fits`.
    Records {
        fits: fn(&[u8]) -> bool,
        open: fn(InputStream) -> Box<dyn TraceParser>,
    },
}

struct FormatRow {
    format: Format,
    name: &'static str,
    /// Number of I/Os in the reorder window of a reader: 1 for files in order of time. A larger
    /// window sorts files in which I/Os with later times may come first, such as a log that is
    /// written in order of completion.
    disorder: usize,
    reader: FormatReader,
    writer: Option<fn() -> Box<dyn FormatWriter>>,
}

impl FormatRow {
    const fn written_by(self, writer: fn() -> Box<dyn FormatWriter>) -> FormatRow {
        FormatRow { writer: Some(writer), ..self }
    }
}

const fn row(
    format: Format,
    name: &'static str,
    disorder: usize,
    reader: FormatReader,
) -> FormatRow {
    FormatRow { format, name, disorder, reader, writer: None }
}

const MANY: usize = usize::MAX;

use FormatReader::{Columns, Lines, Records};

/// All formats, in the order of the enum's variants, which is also the order of detection.
static ROWS: [FormatRow; 13] = [
    row(Format::Blktrace, "blktrace", 64, Records { fits: is_recording, open: Blktrace::boxed })
        .written_by(|| Box::<BlktraceEvents>::default()),
    row(Format::Trlog, "nbd-trlog", 1, Records { fits: is_log, open: Trlog::boxed }),
    row(Format::Vscsi, "vscsi", MANY, Records { fits: has_version, open: Vscsi::boxed }),
    row(Format::Iolog, "iolog", 1, Columns(&tables::IOLOG))
        .written_by(|| Box::new(IologLines::new(&tables::IOLOG))),
    row(Format::Iolog3, "iolog3", 1, Columns(&tables::IOLOG3))
        .written_by(|| Box::new(IologLines::new(&tables::IOLOG3))),
    row(Format::Blkparse, "blkparse", 64, Lines(|| Box::<Blkparse>::default())),
    row(Format::Nbdkit, "nbdkit", 64, Lines(|| Box::<NbdkitLog>::default())),
    row(Format::Msr, "msr", MANY, Columns(&tables::MSR)).written_by(|| Box::new(MsrRows)),
    row(Format::Systor, "systor", MANY, Columns(&tables::SYSTOR)),
    row(Format::Alibaba, "alibaba", MANY, Columns(&tables::ALIBABA)),
    row(Format::Tencent, "tencent", MANY, Columns(&tables::TENCENT)),
    row(Format::Spc, "spc", MANY, Columns(&tables::SPC)),
    row(Format::Fiu, "fiu", MANY, Columns(&tables::FIU)),
];

impl Format {
    fn row(self) -> &'static FormatRow {
        &ROWS[self as usize]
    }

    /// Returns all formats, in the order in which detection tries them.
    pub fn all() -> impl DoubleEndedIterator<Item = Format> {
        ROWS.iter().map(|row| row.format)
    }

    /// Returns the formats that can be written.
    pub fn written() -> impl Iterator<Item = Format> {
        ROWS.iter().filter(|row| row.writer.is_some()).map(|row| row.format)
    }

    /// Returns the format's name on the command line.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the names of formats, separated by commas.
    pub fn names(formats: impl Iterator<Item = Format>) -> String {
        formats.map(Format::name).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn disorder(self) -> usize {
        self.row().disorder
    }

    pub(super) fn reader(self) -> &'static FormatReader {
        &self.row().reader
    }

    pub(super) fn open(self, input: InputStream) -> Box<dyn TraceParser> {
        match self.reader() {
            Columns(table) => Box::new(LineReader::new(input, ColumnParser::boxed(table))),
            Lines(parser) => Box::new(LineReader::new(input, parser())),
            Records { open, .. } => open(input),
        }
    }

    pub(super) fn writer(self) -> Option<Box<dyn FormatWriter>> {
        self.row().writer.map(|writer| writer())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a name that is not the name of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such format; use one of {}", Format::names(Format::all()))]
pub struct UnknownFormat;

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Format, UnknownFormat> {
        Format::all().find(|format| format.name() == word).ok_or(UnknownFormat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_at_the_place_of_its_variant() {
        for (place, format) in Format::all().enumerate() {
            assert_eq!(format as usize, place, "{format}");
            assert_eq!(format.name().parse(), Ok(format));
        }
    }
}
