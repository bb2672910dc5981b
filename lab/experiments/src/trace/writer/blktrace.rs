//! Writes I/Os as blktrace events to the file of CPU 0: Q (queued) and D (issued) when an I/O
//! arrives, and C (completed) when it completes, if the source has its latency.
//!
//! The file is in order of time, so the writer keeps each completion in memory until all earlier
//! events are written. Devices with names such as `8,0` keep their numbers; others get the major
//! number of millrace's drives and a message with their name, which `trace` shows. Sectors have 512
//! bytes; an I/O that is not aligned to them is widened. In the records of a flush, the sector
//! field holds the flush's time. Times begin at one second, as blkparse takes 0 for unset.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, Write};

use millrace_block::blktrace::{EventCode, NotifyKind, Record, category, device};
use millrace_block::{DROPPED_EVENTS, Op};
use millrace_runtime::DEVICE_NAME;

use super::format_writer::{FormatWriter, OmittedFields};
use crate::trace::TraceIo;

const START_NS: u64 = 1_000_000_000;
/// Largest number of completions in memory. A completion waits there until all earlier events are
/// written. If the limit is reached, further completions are left out.
const FLYING_MAX: usize = 262_144;
/// Largest length of one record in bytes: below 4 GiB, and a multiple of the sector size.
const RECORD_LEN_MAX: u64 = 1 << 31;
/// Largest number of records for one I/O, enough for a length of 2 TiB. Without a limit, a huge
/// length in a hostile trace would fill the disk.
const PARTS_MAX: u64 = 1_024;
const SECTOR_BYTES: u64 = 512;
/// Major number for devices whose names are not of the form `8,0`.
const MAJOR_NAMED: u32 = 240;

/// A completion to be written after all earlier events: time, sequence number, sector, bytes,
/// device and categories.
type PendingCompletion = (u64, u64, u64, u32, u32, u16);

#[derive(Debug, Default)]
pub(in crate::trace) struct BlktraceEvents {
    flying: BinaryHeap<Reverse<PendingCompletion>>,
    devices: HashMap<u32, u32>,
    sequence: u32,
    last_ns: u64,
    numbered: u64,
}

impl BlktraceEvents {
    fn write(&mut self, out: &mut dyn Write, mut record: Record) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        record.sequence = self.sequence;
        self.last_ns = record.time_ns;
        out.write_all(&record.encode())
    }

    fn message(
        &mut self,
        out: &mut dyn Write,
        time_ns: u64,
        device: u32,
        text: &str,
    ) -> io::Result<()> {
        let (action, pdu_len) = (NotifyKind::Message.action(), text.len() as u16);
        self.write(out, Record { time_ns, device, action, pdu_len, ..Record::default() })?;
        out.write_all(text.as_bytes())
    }

    fn answers(&mut self, out: &mut dyn Write, until_ns: u64) -> io::Result<()> {
        while self.flying.peek().is_some_and(|Reverse(answer)| answer.0 <= until_ns) {
            let Some(Reverse(answer)) = self.flying.pop() else { break };
            let (time_ns, _, sector, bytes, device, kind) = answer;
            let action = EventCode::Complete.with(kind);
            self.write(
                out,
                Record { time_ns, sector, bytes, device, action, ..Record::default() },
            )?;
        }
        Ok(())
    }

    /// Returns the device number to use in records. If a new device's name is not a number such as
    /// `8,0`, first writes a message with the name.
    fn device(
        &mut self,
        out: &mut dyn Write,
        place: u32,
        name: &str,
        time_ns: u64,
    ) -> io::Result<u32> {
        if let Some(number) = self.devices.get(&place) {
            return Ok(*number);
        }
        let numbers = name.split_once(',').and_then(|(major, minor)| {
            let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
            (major < 1 << 12 && minor < 1 << 20).then(|| device(major, minor))
        });
        let number = numbers.unwrap_or(device(MAJOR_NAMED, place));
        self.devices.insert(place, number);
        if numbers.is_none() {
            self.message(out, time_ns, number, &format!("{DEVICE_NAME}{name}"))?;
        }
        Ok(number)
    }
}

fn categories(io: &TraceIo) -> u16 {
    let fua = if io.fua { category::FUA } else { 0 };
    match io.op {
        Op::Read => category::READ,
        Op::Write | Op::WriteZeroes => category::WRITE | fua,
        Op::Discard => category::WRITE | category::DISCARD,
        Op::Flush => category::WRITE | category::FLUSH,
    }
}

impl FormatWriter for BlktraceEvents {
    fn io(
        &mut self,
        out: &mut dyn Write,
        io: &TraceIo,
        device: &str,
        lost: &mut OmittedFields,
    ) -> io::Result<()> {
        let time_ns = io.at_ns.saturating_add(START_NS);
        self.answers(out, time_ns)?;
        let device = self.device(out, io.device, device, time_ns)?;
        let end = io.offset_bytes.saturating_add(io.len_bytes);
        let whole = [io.offset_bytes, end].iter().all(|byte| byte.is_multiple_of(SECTOR_BYTES));
        lost.unaligned += u64::from(!whole);
        lost.zeroes += u64::from(io.op == Op::WriteZeroes);
        let first = io.offset_bytes / SECTOR_BYTES;
        let mut bytes_left = (end.div_ceil(SECTOR_BYTES) - first).saturating_mul(SECTOR_BYTES);
        let kind = categories(io);
        // A flush has no sector. Store its time in the sector field, as in recordings of millrace,
        // so that readers can tell flushes apart.
        let mut sector = if io.op == Op::Flush { time_ns } else { first };
        loop {
            let bytes = bytes_left.min(RECORD_LEN_MAX) as u32;
            for act in [EventCode::Queue, EventCode::Issue] {
                let action = act.with(kind);
                let record = Record { time_ns, sector, bytes, device, action, ..Record::default() };
                self.write(out, record)?;
            }
            if let Some(latency_ns) = io.latency_ns {
                let done_ns = time_ns.saturating_add(latency_ns);
                self.numbered += 1;
                match self.flying.len() < FLYING_MAX {
                    true => self.flying.push(Reverse((
                        done_ns,
                        self.numbered,
                        sector,
                        bytes,
                        device,
                        kind,
                    ))),
                    false => lost.completions += 1,
                }
            }
            bytes_left -= u64::from(bytes);
            if io.op == Op::Flush {
                return Ok(());
            }
            sector += u64::from(bytes) / SECTOR_BYTES;
            if bytes_left == 0 || sector - first >= PARTS_MAX * (RECORD_LEN_MAX / SECTOR_BYTES) {
                return Ok(());
            }
        }
    }

    fn finish(&mut self, out: &mut dyn Write, dropped_events: u64) -> io::Result<()> {
        self.answers(out, u64::MAX)?;
        if dropped_events == 0 {
            return Ok(());
        }
        let events = u32::try_from(dropped_events).unwrap_or(u32::MAX);
        // Leave a gap in the sequence numbers, as recordings of millrace do. blkparse takes such a
        // gap for dropped events and reports them.
        self.sequence = self.sequence.wrapping_add(events);
        let device = self.devices.values().copied().next().unwrap_or_default();
        self.message(out, self.last_ns, device, &format!("{DROPPED_EVENTS}{events}"))
    }
}
