//! `TraceWriter`: writes I/Os as a trace of another format, one by one.
//!
//! Owns the counts of data that the format cannot
//! represent. Called by `millrace-lab trace convert`; memory is bounded by the I/Os in flight.

pub(super) mod blktrace;
pub(super) mod iolog;
pub(super) mod msr;

use std::io::{self, Write};

use millrace_block::Op;

use super::TraceIo;
use super::format::Format;

/// Error of a format that cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{format} can only be read; write one of {}", Format::names(Format::written()))]
pub struct ReadOnlyFormat {
    /// Format that was asked for.
    pub format: Format,
}

/// Writer of one format.
pub(super) trait FormatWriter {
    /// Writes one I/O; `device` is its device's name.
    fn io(
        &mut self,
        out: &mut dyn Write,
        io: &TraceIo,
        device: &str,
        lost: &mut OmittedFields,
    ) -> io::Result<()>;

    /// Writes the end of the trace, and a note about dropped events if the format has one.
    fn finish(&mut self, out: &mut dyn Write, dropped_events: u64) -> io::Result<()>;
}

/// Counts of data that the format cannot represent.
#[derive(Debug, Default)]
pub(super) struct OmittedFields {
    /// I/Os left out, by operation.
    ios: [u64; millrace_block::OPS],
    zeroes: u64,
    fua: u64,
    unaligned: u64,
    completions: u64,
    /// True if I/Os have lost their times.
    times: bool,
}

impl OmittedFields {
    fn notes(&self, format: Format) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for (op, count) in Op::ALL.into_iter().zip(self.ios) {
            if count > 0 {
                notes.push(format!("{count} I/Os left out: {format} has no {}", op.name()));
            }
        }
        for (count, what) in [
            (self.zeroes, "write-zeroes became writes"),
            (self.fua, "writes lost their FUA"),
            (self.unaligned, "I/Os that began or ended within a sector were widened to whole ones"),
            (self.completions, "completions left out: too many I/Os in flight"),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        }
        if self.times {
            let said =
                "the times are lost: fio misreads waits; use --to-format iolog3 to keep them";
            notes.push(said.into());
        }
        notes
    }
}

/// Writes a trace in some format.
pub struct TraceWriter<W: Write> {
    out: W,
    format: Format,
    kind: Box<dyn FormatWriter>,
    lost: OmittedFields,
    ios: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Creates a writer of this format to `out`.
    ///
    /// # Errors
    /// If the format can only be read.
    pub fn new(format: Format, out: W) -> Result<TraceWriter<W>, ReadOnlyFormat> {
        let kind = format.writer().ok_or(ReadOnlyFormat { format })?;
        Ok(TraceWriter { out, format, kind, lost: OmittedFields::default(), ios: 0 })
    }

    /// Writes one I/O; `devices` are the device names of its source.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn io(&mut self, io: &TraceIo, devices: &[String]) -> io::Result<()> {
        let device = devices.get(io.device as usize).map_or("", String::as_str);
        self.ios += 1;
        self.kind.io(&mut self.out, io, device, &mut self.lost)
    }

    /// Ends the trace; `dropped_events` is the number of events missing in the source. Returns the
    /// number of I/Os written, and notes for the user about data that was lost.
    ///
    /// # Errors
    /// If writing to the output fails.
    pub fn finish(mut self, dropped_events: u64) -> io::Result<(u64, Vec<String>)> {
        self.kind.finish(&mut self.out, dropped_events)?;
        self.out.flush()?;
        let written = self.ios - self.lost.ios.iter().sum::<u64>();
        Ok((written, self.lost.notes(self.format)))
    }
}

#[cfg(test)]
mod tests;
