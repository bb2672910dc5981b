//! The traces of Microsoft Research Cambridge: CSV, one week of each volume of several servers.
//!
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: the time of issue as a Windows
//! filetime (100 ns since 1601), offset and size in bytes, the response time in 100 ns. A device is
//! named `HOST_DISK`, like the files. Nanoseconds since 1601 fit into 64 bits until the year 2185.
//!
//! Source: README.txt of the MSR Cambridge traces (SNIA IOTTA 388); Narayanan et al., "Write
//! Off-Loading", FAST '08.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::parser::{LineContent, LineFormat, Problem, fields, is_head, scaled, whole};

/// Unit of a Windows filetime, in nanoseconds.
pub(in crate::trace) const TICK_NS: u64 = 100;
/// Parser of MSR Cambridge's CSV lines.
#[derive(Debug, Default)]
pub(in crate::trace) struct Msr {
    name: String,
}

impl LineFormat for Msr {
    const EXAMPLE: &'static str = "128166372003061629,usr,0,Read,7014609920,24576,41286";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if is_head(number, text) {
            return Ok(LineContent::Other);
        }
        let [time, host, disk, op, offset, size, response] = fields(text.split(','))?;
        let op = match op {
            _ if op.eq_ignore_ascii_case("read") => Op::Read,
            _ if op.eq_ignore_ascii_case("write") => Op::Write,
            _ => return Err(format!("Type is {}; Read or Write is expected", shown(op))),
        };
        self.name.clear();
        self.name.extend([host, "_", disk]);
        Ok(LineContent::Io(TraceIo {
            at_ns: scaled("Timestamp", whole("Timestamp", time)?, TICK_NS)?,
            device: devices.number(&self.name)?,
            op,
            fua: false,
            offset_bytes: whole("Offset", offset)?,
            len_bytes: whole("Size", size)?,
            // These traces write 0 for an unknown response time; no real I/O takes 0.
            latency_ns: Some(scaled("ResponseTime", whole("ResponseTime", response)?, TICK_NS)?)
                .filter(|latency_ns| *latency_ns > 0),
        }))
    }
}
