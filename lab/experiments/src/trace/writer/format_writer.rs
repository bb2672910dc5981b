//! `FormatWriter`: the interface of a format's writer. `OmittedFields`: counts of the data that a
//! format cannot represent.
//!
//! The other files of this folder implement the interface, one for each format that can be written.
//! `TraceWriter` calls it and turns the counts into notes for the user.

use std::io::{self, Write};

use millrace_block::Op;

use crate::trace::TraceIo;

pub(in crate::trace) trait FormatWriter {
    fn io(
        &mut self,
        out: &mut dyn Write,
        io: &TraceIo,
        device: &str,
        lost: &mut OmittedFields,
    ) -> io::Result<()>;

    /// Writes the end of the trace, with a note about dropped events if the format has such notes.
    fn finish(&mut self, out: &mut dyn Write, dropped_events: u64) -> io::Result<()>;
}

#[derive(Debug, Default)]
pub(in crate::trace) struct OmittedFields {
    pub(super) ios: [u64; millrace_block::OPS],
    pub(super) zeroes: u64,
    pub(super) fua: u64,
    pub(super) unaligned: u64,
    pub(super) completions: u64,
    pub(super) times: bool,
}

impl OmittedFields {
    pub(super) fn notes(&self, format: &str) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for (op, count) in Op::ALL.into_iter().zip(self.ios) {
            if count > 0 {
                notes.push(format!("{count} I/Os left out: {format} has no {}", op.name()));
            }
        }
        for (count, what) in [
            (self.zeroes, "write-zeroes became writes"),
            (self.fua, "writes lost their FUA"),
            (
                self.unaligned,
                "I/Os that began or ended within a sector were widened to whole sectors",
            ),
            (self.completions, "completions left out: too many I/Os in flight"),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what}"));
            }
        }
        if self.times {
            let said = "the times are lost, because fio misreads `wait` lines of this format; use \
                        --to-format iolog3 to keep them";
            notes.push(said.into());
        }
        notes
    }
}
