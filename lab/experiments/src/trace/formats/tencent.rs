//! Tencent's block traces (CBS): CSV of some thousand cloud disks.
//!
//! `Timestamp,Offset,Size,IOType,VolumeID`: whole seconds since 1970, offset and size in sectors of
//! 512 bytes, 0 for a read and 1 for a write. All I/Os of one second have the same time, as a note
//! tells the user.
//!
//! Source: README of the Tencent Block Storage traces (SNIA IOTTA 27917); Zhang et al., "OSCA: An
//! Online-Model Based Cache Allocation Scheme in Cloud Block Storage Systems", ATC '20.

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::formats::SECTOR_BYTES;
use crate::trace::parser::{LineContent, LineFormat, Problem, fields, is_head, scaled, whole};

/// Parser of Tencent's CSV lines.
#[derive(Debug, Default)]
pub(in crate::trace) struct Tencent;

impl LineFormat for Tencent {
    const EXAMPLE: &'static str = "1538323199,1003027216,16,0,2313";

    fn line(
        &mut self,
        number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineContent, Problem> {
        if is_head(number, text) {
            return Ok(LineContent::Other);
        }
        let [time, offset, size, op, volume] = fields(text.split(','))?;
        let op = match op {
            "0" => Op::Read,
            "1" => Op::Write,
            _ => return Err(format!("IOType is {}; 0 or 1 is expected", shown(op))),
        };
        Ok(LineContent::Io(TraceIo {
            at_ns: scaled("Timestamp", whole("Timestamp", time)?, 1_000_000_000)?,
            device: devices.number(volume)?,
            op,
            fua: false,
            offset_bytes: scaled("Offset", whole("Offset", offset)?, SECTOR_BYTES)?,
            len_bytes: scaled("Size", whole("Size", size)?, SECTOR_BYTES)?,
            latency_ns: None,
        }))
    }

    fn note(&self) -> Option<String> {
        Some("its times are whole seconds: I/Os of one second arrive together".into())
    }
}
