//! The traces of Florida International University: fields separated by blanks, with digests of the
//! data.
//!
//! `ts pid process lba size op major minor md5`: nanoseconds, first sector, size in blocks of 512
//! bytes, `W` or `R`, the device's numbers, and one or more digests. A process name may contain
//! blanks, so the following fields are located from `W` or `R`, the first such word that has
//! numbers around it.
//!
//! Source: README of the FIU traces (SNIA IOTTA 390 and 391); Koller and Rangaswami, "I/O
//! Deduplication", FAST '10.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::formats::SECTOR_BYTES;
use crate::trace::parser::{LineContent, LineFormat, Problem, scaled, whole};

/// Parser of FIU's lines.
#[derive(Debug, Default)]
pub(in crate::trace) struct Fiu {
    name: String,
}

impl LineFormat for Fiu {
    const EXAMPLE: &'static str = "89967195453000 4892 syslogd 904265560 8 W 6 0 531e779e...";

    fn line(
        &mut self,
        _number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let place = (5..words.len().saturating_sub(2)).find(|place| {
            let numbers = [place - 2, place - 1, place + 1, place + 2];
            let is_number = |at: &usize| words[*at].bytes().all(|byte| byte.is_ascii_digit());
            matches!(words[*place], "R" | "W") && numbers.iter().all(is_number)
        });
        let Some(place) = place else {
            return Err("no R or W between size and device; at least 8 fields are expected".into());
        };
        whole("the process's number", words[1])?;
        self.name.clear();
        self.name.extend([words[place + 1], ",", words[place + 2]]);
        let sector = whole("the sector", words[place - 2])?;
        let blocks = whole("the size", words[place - 1])?;
        Ok(LineContent::Io(TraceIo {
            at_ns: whole("the time", words[0])?,
            device: devices.number(&self.name)?,
            op: if words[place] == "R" { Op::Read } else { Op::Write },
            fua: false,
            offset_bytes: scaled("the sector", sector, SECTOR_BYTES)?,
            len_bytes: scaled("the size", blocks, SECTOR_BYTES)?,
            latency_ns: None,
        }))
    }
}
