//! fio's I/O logs, versions 2 and 3, as written by `write_iolog` and read by `read_iolog`.
//!
//! Each file of the log is a device. Version 2 has no times except `wait` lines, in microseconds
//! since the previous wait, so times are sums of waits. Version 3 has microseconds since the start
//! on each line. `sync` and `datasync` are flushes, `trim` is a discard; adding, opening and
//! closing files is ignored.
//!
//! Source: fio's documentation, "Trace file format"; fio 3.33 writes microseconds.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::parser::{LineContent, LineFormat, Problem, scaled, whole};

/// First line of a log of version 2.
pub(in crate::trace) const HEAD_2: &str = "fio version 2 iolog";
/// First line of a log of version 3.
pub(in crate::trace) const HEAD_3: &str = "fio version 3 iolog";

/// Parser of version 2.
#[derive(Debug, Default)]
pub(in crate::trace) struct Iolog2 {
    waited_us: u64,
}

impl LineFormat for Iolog2 {
    const EXAMPLE: &'static str = "/dev/sda read 4096 8192";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if number == 1 {
            return head(text, HEAD_2);
        }
        let mut words = text.split_whitespace();
        let file = words.next().unwrap_or_default();
        let action = words.next().ok_or("only one word; a file and an action are expected")?;
        let place = IologLine { file, action, place: [words.next(), words.next()] };
        if action == "wait" {
            let wait_us = place.number(0)?;
            self.waited_us = self.waited_us.checked_add(wait_us).ok_or("waits are too long")?;
            return Ok(LineContent::Other);
        }
        place.io(self.waited_us, devices)
    }
}

/// Parser of version 3.
#[derive(Debug, Default)]
pub(in crate::trace) struct Iolog3;

impl LineFormat for Iolog3 {
    const EXAMPLE: &'static str = "1500 /dev/sda read 4096 8192";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if number == 1 {
            return head(text, HEAD_3);
        }
        let mut words = text.split_whitespace();
        let at_us = whole("timestamp", words.next().unwrap_or_default())?;
        let file = words.next().ok_or("only a time; a file and an action are expected")?;
        let action = words.next().ok_or("the action after the file is missing")?;
        IologLine { file, action, place: [words.next(), words.next()] }.io(at_us, devices)
    }
}

fn head(text: &str, expected: &str) -> Result<LineContent, Problem> {
    match text == expected {
        true => Ok(LineContent::Other),
        false => Err(format!("{} where the first line must be \"{expected}\"", shown(text))),
    }
}

/// A parsed line of either version.
struct IologLine<'a> {
    file: &'a str,
    action: &'a str,
    place: [Option<&'a str>; 2],
}

impl IologLine<'_> {
    fn number(&self, place: usize) -> Result<u64, Problem> {
        let name = ["offset", "length"][place];
        whole(name, self.place[place].ok_or_else(|| format!("{} has no {name}", self.action))?)
    }

    fn io(&self, at_us: u64, devices: &mut DeviceNames) -> Result<LineContent, Problem> {
        let op = match self.action {
            "add" | "open" | "close" | "wait" => return Ok(LineContent::Other),
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Discard,
            "sync" | "datasync" | "sync_file_range" => Op::Flush,
            other => {
                let known = "read, write, trim, sync, datasync, wait, add, open or close";
                return Err(format!("action {}; {known} is expected", shown(other)));
            }
        };
        let (offset_bytes, len_bytes) =
            if op == Op::Flush { (0, 0) } else { (self.number(0)?, self.number(1)?) };
        Ok(LineContent::Io(TraceIo {
            at_ns: scaled("the time", at_us, 1_000)?,
            device: devices.number(self.file)?,
            op,
            fua: false,
            offset_bytes,
            len_bytes,
            latency_ns: None,
        }))
    }
}
