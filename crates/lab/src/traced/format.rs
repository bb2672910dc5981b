//! `Format`: the formats of traces, their names and an example of each.
//!
//! The one list of formats; `detect.rs`, `open.rs` and the command line go by it.

use std::fmt;
use std::str::FromStr;

/// A format of traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Binary files of blktrace, one for each CPU, or all in one as `blktrace -o -` writes them.
    Blktrace,
    /// The lines that blkparse prints.
    Blkparse,
    /// fio's log of I/Os, version 2.
    Iolog2,
    /// fio's log of I/Os, version 3, which has times.
    Iolog3,
}

impl Format {
    /// All, in the order in which they are tried.
    pub const ALL: [Format; 2] = [Format::Iolog2, Format::Iolog3];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Blktrace => "blktrace",
            Format::Blkparse => "blkparse",
            Format::Iolog2 => "iolog",
            Format::Iolog3 => "iolog3",
        }
    }

    /// Names of all, with commas between.
    #[must_use]
    pub fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such format; write one of {}", Format::names())]
pub struct NoFormat;

impl FromStr for Format {
    type Err = NoFormat;

    fn from_str(word: &str) -> Result<Format, NoFormat> {
        Format::ALL.into_iter().find(|format| format.name() == word).ok_or(NoFormat)
    }
}
