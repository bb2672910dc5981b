//! Writes I/Os as fio's log, version 2 or 3, for `fio --read_iolog`.
//!
//! Each device is a file of the log, added and opened at the device's first I/O. Blanks in the
//! device's name are replaced. Version 2 is written without `wait` lines, so fio replays the log as
//! fast as it can; a note tells the user so. The reason is that fio's manual and fio 3.33 disagree.
//! In the manual, a wait is a time in microseconds since the previous wait. In fio, the wait ends
//! that number of milliseconds after the start of fio. A trace of one second would take a quarter
//! of an hour.
//!
//! Source: fio's documentation, "Trace file format"; its `read_iolog_get`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use millrace_block::Op;

use super::format_writer::{FormatWriter, OmittedFields};
use crate::trace::TraceIo;
use crate::trace::columns::ColumnTable;

pub(in crate::trace) struct IologLines {
    head: &'static str,
    is_timed: bool,
    files: BTreeMap<u32, String>,
    last_us: u64,
    begun: bool,
}

impl IologLines {
    pub(in crate::trace) fn new(table: &ColumnTable) -> IologLines {
        let (head, is_timed) = (table.head.unwrap_or_default(), table.has_time());
        IologLines { head, is_timed, files: BTreeMap::new(), last_us: 0, begun: false }
    }

    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let head = self.head;
        if std::mem::replace(&mut self.begun, true) { Ok(()) } else { writeln!(out, "{head}") }
    }

    /// Returns a line's first field: the time in microseconds in version 3, nothing in version 2.
    fn time(&self) -> String {
        if self.is_timed { format!("{} ", self.last_us) } else { String::new() }
    }
}

impl FormatWriter for IologLines {
    fn io(
        &mut self,
        out: &mut dyn Write,
        io: &TraceIo,
        device: &str,
        lost: &mut OmittedFields,
    ) -> io::Result<()> {
        self.begin(out)?;
        self.last_us = io.at_ns / 1_000;
        lost.times |= !self.is_timed && self.last_us > 0;
        if !self.files.contains_key(&io.device) {
            let plain = |letter: char| if letter.is_whitespace() { '_' } else { letter };
            let name: String = device.chars().map(plain).collect();
            for action in ["add", "open"] {
                writeln!(out, "{}{name} {action}", self.time())?;
            }
            self.files.insert(io.device, name);
        }
        lost.fua += u64::from(io.fua);
        lost.zeroes += u64::from(io.op == Op::WriteZeroes);
        let action = match io.op {
            Op::Read => "read",
            Op::Write | Op::WriteZeroes => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
        };
        let file = self.files.get(&io.device).map_or("", String::as_str);
        writeln!(out, "{}{file} {action} {} {}", self.time(), io.offset_bytes, io.len_bytes)
    }

    fn finish(&mut self, out: &mut dyn Write, _dropped_events: u64) -> io::Result<()> {
        self.begin(out)?;
        let time = self.time();
        self.files.values().try_for_each(|file| writeln!(out, "{time}{file} close"))
    }
}
