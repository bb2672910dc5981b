//! Traces of block I/O in any format, as one stream of I/Os, and the page that shows one.
//!
//! Owns what formats have in common: an I/O with its time, device, range and, where the format
//! tells it, its latency. Readers of formats are `TraceSource`s; `millrace-lab replay`,
//! `trace report` and `trace convert` take these and know no format. `open` finds the format and
//! gives the I/Os of one or more files in the order of their arrival. `report` shows where the I/Os
//! of a recording spend their time, and `timeline` when. Stands on millrace-trace, which reads
//! blktrace's records.

mod detect;
mod devices;
mod error;
mod event_ios;
mod format;
mod formats;
mod input;
mod lines;
mod open;
mod order;
mod parser;
mod pending;
mod profile;
mod report;
mod timeline;
mod writer;

use millrace_block::Op;

pub use error::{OpenError, Place, ReadError};
pub use event_ios::EventIos;
pub use format::{Format, NoFormat};
pub use input::TracePath;
pub use open::{AnySource, OpenedTrace, open, open_events};
pub use profile::{Profile, text as profile_text};
pub use report::{report_html, report_page};
pub use timeline::Timeline;
pub use writer::{NotWritten, WRITTEN, Writer};

/// A sentence about I/Os of a trace that have no latency although others, `measured`, have one.
#[must_use]
pub fn unmeasured_note(ios: u64, measured: u64) -> Option<String> {
    (measured > 0 && ios > measured).then(|| {
        let left = ios - measured;
        format!("{left} of {ios} I/Os have no latency: their beginning or end was not found")
    })
}

/// One I/O as a trace tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceIo {
    /// When it arrived, in nanoseconds since the trace's first I/O.
    pub at_ns: u64,
    /// Which of `TraceSource::devices`.
    pub device: u32,
    /// What it does.
    pub op: Op,
    /// A write that is durable before it is answered.
    pub fua: bool,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub len_bytes: u64,
    /// Its latency in the trace, where the format tells it.
    pub latency_ns: Option<u64>,
}

/// A trace that is read from its beginning, in bounded memory.
pub trait TraceSource {
    /// What is wrong with a trace, with file and line or record.
    type Error: std::error::Error;

    /// The next I/O, in the order of arrival; `None` at the end.
    ///
    /// # Errors
    ///
    /// A record that cannot be read: the error names file, line or record, and what was expected.
    fn next_io(&mut self) -> Result<Option<TraceIo>, Self::Error>;

    /// Names of the devices met so far (`8,0`, a volume's name or number).
    fn devices(&self) -> &[String];
}
