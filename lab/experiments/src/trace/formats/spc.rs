//! The Storage Performance Council's trace format, used by UMass' Financial and WebSearch traces.
//!
//! `ASU,LBA,Size,Opcode,Timestamp`, with optional further fields: application storage unit, block
//! (of 512 bytes in all published traces), bytes, `R` or `W` in either case, and seconds since the
//! start of the trace.
//!
//! Source: SPC, "Trace File Format Specification", revision 1.0.1.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::formats::SECTOR_BYTES;
use crate::trace::parser::{
    LineContent, LineFormat, Problem, decimal, fields, is_head, scaled, whole,
};

/// Parser of SPC's lines.
#[derive(Debug, Default)]
pub(in crate::trace) struct Spc;

impl LineFormat for Spc {
    const EXAMPLE: &'static str = "0,303567,3584,w,0.026214";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if is_head(number, text) {
            return Ok(LineContent::Other);
        }
        let [asu, lba, size, op, time] = fields(text.split(','))?;
        let op = match op {
            "R" | "r" => Op::Read,
            "W" | "w" => Op::Write,
            _ => return Err(format!("Opcode is {}; R or W is expected", shown(op))),
        };
        whole("ASU", asu)?;
        Ok(LineContent::Io(TraceIo {
            at_ns: decimal("Timestamp", time, 9)?,
            device: devices.number(asu)?,
            op,
            fua: false,
            offset_bytes: scaled("LBA", whole("LBA", lba)?, SECTOR_BYTES)?,
            len_bytes: whole("Size", size)?,
            latency_ns: None,
        }))
    }
}
