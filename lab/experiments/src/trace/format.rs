//! `Format`: the formats of traces, their names and how far their lines may be out of order.
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
    /// nbd-server's transaction log.
    Trlog,
    /// CloudPhysics' records of vscsiStats.
    Vscsi,
    /// fio's log of I/Os, version 2.
    Iolog,
    /// fio's log of I/Os, version 3, which has times.
    Iolog3,
    /// The lines that blkparse prints.
    Blkparse,
    /// The log of nbdkit's log filter.
    Nbdkit,
    /// MSR Cambridge.
    Msr,
    /// SYSTOR '17.
    Systor,
    /// Alibaba.
    Alibaba,
    /// Tencent's cloud block storage.
    Tencent,
    /// The Storage Performance Council, and UMass.
    Spc,
    /// Florida International University.
    Fiu,
}

impl Format {
    /// All, in the order in which they are tried.
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

    /// Its name on the command line.
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

    /// Names of all, with commas between.
    #[must_use]
    pub fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }

    /// I/Os by which a line may be out of order: few where a recorder writes them as they come, as
    /// many as fit where lines are in the order of completion, or of several machines.
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
