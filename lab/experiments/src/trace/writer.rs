//! `TraceWriter`: writes I/Os as a trace of another format, one by one.
//!
//! The writer owns the output, and counts the data that the format cannot represent. Its memory is
//! bounded by the number of I/Os in flight. `millrace-lab trace convert` calls this file.

pub(super) mod blktrace;
pub(super) mod format_writer;
pub(super) mod iolog;
pub(super) mod msr;

use std::io::{self, Write};

use self::format_writer::{FormatWriter, OmittedFields};
use super::TraceIo;
use super::format::Format;

/// Error for a format that can only be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{format} can only be read; write one of {}", Format::names(Format::written()))]
pub struct ReadOnlyFormat {
    /// Format that cannot be written.
    pub format: Format,
}

/// Writer of a trace in any format that can be written.
pub struct TraceWriter<W: Write> {
    out: W,
    format: Format,
    kind: Box<dyn FormatWriter>,
    lost: OmittedFields,
    ios: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Creates a writer that writes this format to `out`.
    pub fn new(format: Format, out: W) -> Result<TraceWriter<W>, ReadOnlyFormat> {
        let kind = format.writer().ok_or(ReadOnlyFormat { format })?;
        Ok(TraceWriter { out, format, kind, lost: OmittedFields::default(), ios: 0 })
    }

    /// Writes one I/O. `devices` has the names of the source's devices.
    pub fn io(&mut self, io: &TraceIo, devices: &[String]) -> io::Result<()> {
        let device = devices.get(io.device as usize).map_or("", String::as_str);
        self.ios += 1;
        self.kind.io(&mut self.out, io, device, &mut self.lost)
    }

    /// Ends the trace. `dropped_events` is the number of events that are missing in the source.
    /// Returns the number of I/Os written, and notes for the user about data that was lost.
    pub fn finish(mut self, dropped_events: u64) -> io::Result<(u64, Vec<String>)> {
        self.kind.finish(&mut self.out, dropped_events)?;
        self.out.flush()?;
        let written = self.ios - self.lost.ios.iter().sum::<u64>();
        Ok((written, self.lost.notes(self.format.name())))
    }
}

#[cfg(test)]
mod tests;
