//! The traces of SYSTOR '17: CSV of the LUNs of a virtual desktop infrastructure, one hour per
//! file.
//!
//! `Timestamp,Response,IOType,LUN,Offset,Size`: the time of issue in seconds since 1970 with nine
//! decimals, the last three of which are noise; the response time in seconds, which may be empty;
//! `R`, `W` or nothing; the LUN; offset and size in bytes. I/Os without a type are skipped and
//! counted.
//!
//! Source: README.txt of the traces (SNIA IOTTA 4964); Lee et al., "Understanding storage traffic
//! characteristics on enterprise virtual desktop infrastructure", SYSTOR '17.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::parser::{LineContent, LineFormat, Problem, decimal, fields, is_head, whole};

/// Parser of SYSTOR '17's CSV lines.
#[derive(Debug, Default)]
pub(in crate::trace) struct Systor {
    name: String,
}

impl LineFormat for Systor {
    const EXAMPLE: &'static str = "1456095145.133076000,0.000806000,R,0,899056122368,131072";
    const SKIPPED: &'static str = "lines without a type of I/O were skipped";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if is_head(number, text) {
            return Ok(LineContent::Other);
        }
        let [time, response, op, lun, offset, size] = fields(text.split(','))?;
        let at_ns = decimal("Timestamp", time, 9)?;
        let op = match op {
            "R" => Op::Read,
            "W" => Op::Write,
            "" => return Ok(LineContent::Skipped),
            _ => return Err(format!("IOType is {}; R, W or nothing is expected", shown(op))),
        };
        self.name.clear();
        self.name.extend(["LUN", lun]);
        let latency_ns = match response {
            "" => None,
            response => Some(decimal("Response", response, 9)?),
        };
        Ok(LineContent::Io(TraceIo {
            at_ns,
            device: devices.number(&self.name)?,
            op,
            fua: false,
            offset_bytes: whole("Offset", offset)?,
            len_bytes: whole("Size", size)?,
            latency_ns,
        }))
    }
}
