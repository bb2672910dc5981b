//! The traces of Microsoft Research Cambridge: CSV of one server's volumes, a week of each.
//!
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`: the time of issue as a Windows
//! filetime (100 ns since 1601), offset and size in bytes, the response time in 100 ns. A device is
//! `HOST_DISK`, as the files are called. 100 ns since 1601 in nanoseconds still fit 64 bits, until
//! the year 2185.
//! Source: README.txt of the MSR Cambridge traces (SNIA IOTTA 388); Narayanan et al., "Write
//! Off-Loading", FAST '08.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::Devices;
use crate::trace::error::shown;
use crate::trace::parser::{Line, LineFormat, Problem, fields, is_head, scaled, whole};

/// Nanoseconds of a filetime's unit.
pub(in crate::trace) const TICK_NS: u64 = 100;
/// MSR Cambridge.
#[derive(Debug, Default)]
pub(in crate::trace) struct Msr {
    name: String,
}

impl LineFormat for Msr {
    const EXAMPLE: &'static str = "128166372003061629,usr,0,Read,7014609920,24576,41286";

    fn line(&mut self, number: u64, text: &str, devices: &mut Devices) -> Result<Line, Problem> {
        if is_head(number, text) {
            return Ok(Line::Other);
        }
        let [time, host, disk, op, offset, size, response] = fields(text.split(','))?;
        let op = match op {
            _ if op.eq_ignore_ascii_case("read") => Op::Read,
            _ if op.eq_ignore_ascii_case("write") => Op::Write,
            _ => return Err(format!("Type is {}; Read or Write is expected", shown(op))),
        };
        self.name.clear();
        self.name.extend([host, "_", disk]);
        Ok(Line::Io(TraceIo {
            at_ns: scaled("Timestamp", whole("Timestamp", time)?, TICK_NS)?,
            device: devices.number(&self.name)?,
            op,
            fua: false,
            offset_bytes: whole("Offset", offset)?,
            len_bytes: whole("Size", size)?,
            // What is not known is written as 0: nothing takes no time.
            latency_ns: Some(scaled("ResponseTime", whole("ResponseTime", response)?, TICK_NS)?)
                .filter(|latency_ns| *latency_ns > 0),
        }))
    }
}
