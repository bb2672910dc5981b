//! Traces of block I/O in any format, as one stream of I/Os; also the report page of a trace.
//!
//! `TraceIo` is the common form of all formats: an I/O with its time, device, range and, if the
//! format has latencies, its latency. An `AnySource` reads any format; `millrace-lab replay`,
//! `trace report` and `trace convert` use it and know no format. `open` detects the format and
//! merges the I/Os of one or more files in order of arrival. `report` shows in which stages the
//! I/Os of a recording spend their time, and `timeline` has the events over time. millrace-trace
//! reads blktrace's records.

mod columns;
mod detect;
mod devices;
mod error;
mod event_ios;
mod format;
mod formats;
mod input;
mod merger;
mod open;
mod parser;
mod pending;
mod profile;
mod report;
mod slots;
mod timeline;
mod writer;

use millrace_block::Op;

pub use error::{FilePosition, OpenError, ReadError};
pub use format::{Format, UnknownFormat};
pub use input::TracePath;
pub use merger::AnySource;
pub use open::open;
pub use parser::DeviceNaming;
pub use profile::TraceProfile;
pub use report::report_page;
pub use timeline::Timeline;
pub use writer::{ReadOnlyFormat, TraceWriter};

/// Returns a note for the user if only some of a trace's `ios` I/Os have a latency. `measured` is
/// the number of I/Os with a latency.
pub fn unmeasured_note(ios: u64, measured: u64) -> Option<String> {
    (measured > 0 && ios > measured).then(|| {
        let left = ios - measured;
        format!(
            "{left} of {ios} I/Os have no latency: the trace lacks their start or their completion"
        )
    })
}

/// An I/O of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceIo {
    /// Arrival time, in nanoseconds since the trace's first I/O.
    pub at_ns: u64,
    /// Index of the device in `TraceSource::devices`.
    pub device: u32,
    /// Operation.
    pub op: Op,
    /// True for a write with FUA, which must be durable on completion.
    pub fua: bool,
    /// Start offset of the I/O on the device, in bytes.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a flush.
    pub len_bytes: u64,
    /// Latency recorded in the trace, in nanoseconds, if the format has it.
    pub latency_ns: Option<u64>,
}

impl TraceIo {
    const EMPTY: TraceIo = TraceIo {
        at_ns: 0,
        device: 0,
        op: Op::Read,
        fua: false,
        offset_bytes: 0,
        len_bytes: 0,
        latency_ns: None,
    };
}

/// A trace that is read sequentially, in bounded memory.
pub trait TraceSource {
    /// Error for a damaged trace, which names the file and the line or record.
    type Error: std::error::Error;

    /// Returns the next I/O in order of arrival; `None` at the end.
    ///
    /// # Errors
    /// If a record cannot be read: the error names file, line or record, and what was expected.
    fn next_io(&mut self) -> Result<Option<TraceIo>, Self::Error>;

    /// Returns the names of the devices seen so far. A name is a device number such as `8,0`, or
    /// the name or number of a volume.
    fn devices(&self) -> &[String];
}
