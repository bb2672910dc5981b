//! `Writer`: I/Os as a trace of another format, written as they come.
//!
//! Owns which formats can be written, and the count of what a format has no place for. Called by
//! `millrace-lab trace convert`; memory is bounded by what is in flight.

mod blktrace;
mod iolog;
mod msr;

use std::io::{self, Write};

use millrace_block::Op;

use super::TraceIo;
use super::format::Format;

/// Formats that can be written.
pub const WRITTEN: [Format; 4] = [Format::Blktrace, Format::Iolog, Format::Iolog3, Format::Msr];

/// A format that cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{format} can only be read; write one of {}", WRITTEN.map(Format::name).join(", "))]
pub struct NotWritten {
    /// Which.
    pub format: Format,
}

/// How a format writes.
trait Layout<W> {
    /// Writes one I/O of the device of this name.
    fn io(
        &mut self,
        out: &mut W,
        io: &TraceIo,
        device: &str,
        lost: &mut OmittedFields,
    ) -> io::Result<()>;

    /// Writes what is behind the last one, and that events were dropped if it has a place for that.
    fn finish(&mut self, out: &mut W, dropped_events: u64) -> io::Result<()>;
}

/// What a format has no place for.
#[derive(Debug, Default)]
struct OmittedFields {
    /// I/Os that were left out, by operation.
    ios: [u64; millrace_block::OPS],
    zeroes: u64,
    fua: u64,
    unaligned: u64,
    completions: u64,
    /// Whether I/Os have lost their times.
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
            let said = "the times are lost: fio misreads waits; --to-format iolog3 keeps them";
            notes.push(said.into());
        }
        notes
    }
}

/// Writes a trace.
pub struct Writer<W: Write> {
    out: W,
    format: Format,
    kind: Box<dyn Layout<W>>,
    lost: OmittedFields,
    ios: u64,
}

impl<W: Write> Writer<W> {
    /// A trace of this format, into `out`.
    ///
    /// # Errors
    /// If the format can only be read.
    pub fn new(format: Format, out: W) -> Result<Writer<W>, NotWritten> {
        let kind: Box<dyn Layout<W>> = match format {
            Format::Blktrace => Box::new(blktrace::Events::default()),
            Format::Iolog => Box::new(iolog::Log::new(iolog::Version::Plain)),
            Format::Iolog3 => Box::new(iolog::Log::new(iolog::Version::Timed)),
            Format::Msr => Box::new(msr::Rows),
            format => return Err(NotWritten { format }),
        };
        Ok(Writer { out, format, kind, lost: OmittedFields::default(), ios: 0 })
    }

    /// Writes one I/O; `devices` are those of its source.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn io(&mut self, io: &TraceIo, devices: &[String]) -> io::Result<()> {
        let device = devices.get(io.device as usize).map_or("", String::as_str);
        self.ios += 1;
        self.kind.io(&mut self.out, io, device, &mut self.lost)
    }

    /// Writes the end, where `dropped_events` were missing in the source; how many I/Os there were,
    /// and what a person should know of what was lost.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, dropped_events: u64) -> io::Result<(u64, Vec<String>)> {
        self.kind.finish(&mut self.out, dropped_events)?;
        self.out.flush()?;
        let written = self.ios - self.lost.ios.iter().sum::<u64>();
        Ok((written, self.lost.notes(self.format)))
    }
}

#[cfg(test)]
mod tests;
