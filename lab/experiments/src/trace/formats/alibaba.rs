//! Alibaba's block traces: CSV of a thousand cloud disks.
//!
//! `device_id,opcode,offset,length,timestamp`: `R` or `W`, offset and length in bytes, the time of
//! arrival in microseconds since 1970.
//! Source: README of github.com/alibaba/block-traces; Li et al., "An In-Depth Analysis of Cloud
//! Block Storage Workloads in Large-Scale Production", IISWC '20.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::parser::{LineContent, LineFormat, Problem, fields, is_head, scaled, whole};

/// Parser of Alibaba's CSV lines.
#[derive(Debug, Default)]
pub(in crate::trace) struct Alibaba;

impl LineFormat for Alibaba {
    const EXAMPLE: &'static str = "0,R,126703661056,4096,1577808000000046";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if is_head(number, text) {
            return Ok(LineContent::Other);
        }
        let [device, op, offset, length, time] = fields(text.split(','))?;
        let op = match op {
            "R" => Op::Read,
            "W" => Op::Write,
            _ => return Err(format!("opcode is {}; R or W is expected", shown(op))),
        };
        Ok(LineContent::Io(TraceIo {
            at_ns: scaled("timestamp", whole("timestamp", time)?, 1_000)?,
            device: devices.number(device)?,
            op,
            fua: false,
            offset_bytes: whole("offset", offset)?,
            len_bytes: whole("length", length)?,
            latency_ns: None,
        }))
    }
}
