//! Writes I/Os as rows of the MSR Cambridge traces.
//!
//! Only reads and writes can be represented. A device named `HOST_NUMBER` becomes a host and its
//! disk; any other name becomes the host, with the device's number as the disk. The first I/O is at
//! the beginning of 1970. An unknown latency is written as 0, because the format has no other value
//! for it.

use std::io::{self, Write};

use millrace_block::Op;

use super::format_writer::{FormatWriter, OmittedFields};
use crate::trace::TraceIo;
use crate::trace::formats::tables::TICK_NS;

/// The beginning of 1970 as a Windows filetime, in units of 100 ns since 1601: 134,774 days.
const START: u64 = 134_774 * 86_400 * 10_000_000;

#[derive(Debug)]
pub(in crate::trace) struct MsrRows;

impl FormatWriter for MsrRows {
    fn io(
        &mut self,
        out: &mut dyn Write,
        io: &TraceIo,
        device: &str,
        lost: &mut OmittedFields,
    ) -> io::Result<()> {
        let kind = match io.op {
            Op::Read => "Read",
            Op::Write | Op::WriteZeroes => "Write",
            op => {
                lost.ios[op as usize] += 1;
                return Ok(());
            }
        };
        lost.fua += u64::from(io.fua);
        lost.zeroes += u64::from(io.op == Op::WriteZeroes);
        let own = device.rsplit_once('_').filter(|(host, disk)| {
            !host.is_empty() && !disk.is_empty() && disk.bytes().all(|byte| byte.is_ascii_digit())
        });
        let number = io.device.to_string();
        let (host, disk) = own.unwrap_or((device, &number));
        let host = host.replace([',', ' '], "-");
        let at = START + io.at_ns / TICK_NS;
        // The format has 0 for an unknown latency, so a known latency is written as 1 or more.
        let answer = io.latency_ns.map_or(0, |latency_ns| (latency_ns / TICK_NS).max(1));
        writeln!(out, "{at},{host},{disk},{kind},{},{},{answer}", io.offset_bytes, io.len_bytes)
    }

    fn finish(&mut self, _out: &mut dyn Write, _dropped_events: u64) -> io::Result<()> {
        Ok(())
    }
}
