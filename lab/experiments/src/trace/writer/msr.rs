//! I/Os as rows of the MSR Cambridge traces.
//!
//! Reads and writes only. A device `HOST_NUMBER` is a host and its disk; another name is a host
//! with the number of the device as its disk. The first I/O is at the beginning of 1970. A latency
//! that is not known is 0, as these traces have no other way to say it.

use std::io::{self, Write};

use millrace_block::Op;

use super::{Layout, OmittedFields};
use crate::trace::TraceIo;
use crate::trace::formats::msr::TICK_NS;

/// The beginning of 1970 as a filetime, in units of 100 ns since 1601: 134,774 days.
const START: u64 = 134_774 * 86_400 * 10_000_000;

/// Rows.
#[derive(Debug)]
pub(super) struct Rows;

impl<W: Write> Layout<W> for Rows {
    fn io(
        &mut self,
        out: &mut W,
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
        // 0 is a latency that is not known.
        let answer = io.latency_ns.map_or(0, |latency_ns| (latency_ns / TICK_NS).max(1));
        writeln!(out, "{at},{host},{disk},{kind},{},{},{answer}", io.offset_bytes, io.len_bytes)
    }

    fn finish(&mut self, _out: &mut W, _dropped_events: u64) -> io::Result<()> {
        Ok(())
    }
}
