//! `Format`: the trace formats, their names, and how far their lines may be out of order.
//!
//! The only list of formats; used by `detect.rs`, `open.rs` and the command line.

use std::fmt;
use std::str::FromStr;

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Binary files of blktrace, one per CPU, or all in one as `blktrace -o -` writes them.
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
    /// Text of Florida International University's traces.
    Fiu,
}

impl Format {
    /// All formats, in the order in which detection tries them.
    pub const ALL: [Format; 13] = [
        Format::Blktrace,
        Format::Trlog,
        Format::Vscsi,
        Format::Iolog,
        Format::Iolog3,
        Format::Blkparse,
        Format::Nbdkit,
        Format::Msr,
        Format::Systor,
        Format::Alibaba,
        Format::Tencent,
        Format::Spc,
        Format::Fiu,
    ];

    /// Returns the format's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Blktrace => "blktrace",
            Format::Trlog => "nbd-trlog",
            Format::Vscsi => "vscsi",
            Format::Iolog => "iolog",
            Format::Iolog3 => "iolog3",
            Format::Blkparse => "blkparse",
            Format::Nbdkit => "nbdkit",
            Format::Msr => "msr",
            Format::Systor => "systor",
            Format::Alibaba => "alibaba",
            Format::Tencent => "tencent",
            Format::Spc => "spc",
            Format::Fiu => "fiu",
        }
    }

    /// Returns the names of all formats, separated by commas.
    #[must_use]
    pub fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }

    /// Returns how many I/Os a line may be out of order by: few for formats written as I/Os arrive,
    /// as many as fit in the window for formats in order of completion or of several machines.
    pub(super) fn disorder(self) -> usize {
        match self {
            Format::Trlog | Format::Iolog | Format::Iolog3 => 1,
            Format::Blktrace | Format::Blkparse | Format::Nbdkit => 64,
            _ => usize::MAX,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of a word that names no format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such format; use one of {}", Format::names())]
pub struct UnknownFormat;

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(word: &str) -> Result<Format, UnknownFormat> {
        Format::ALL.into_iter().find(|format| format.name() == word).ok_or(UnknownFormat)
    }
}
