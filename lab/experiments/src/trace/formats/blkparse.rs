//! Text output of blkparse and of `millrace trace show`: one line per event.
//!
//! `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`: device, CPU, sequence, seconds, process,
//! action, kind, then first sector and number of sectors. Only blkparse's default format (without
//! `-f`) is supported. The statistics at the end begin with a line `CPU0 (sda):` and end the trace.
//! Source: blkparse(1), "DEFAULT FORMAT" and "RWBS".

use millrace_block::blktrace::{EventCode, Record, category};
use millrace_trace::TraceEntry;

use super::SECTOR_BYTES;
use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::shown;
use crate::trace::event_ios::PairedEvents;
use crate::trace::parser::{Fields, LineKind, LineParser, Problem, decimal, scaled, whole};
use crate::trace::pending::StreamState;

#[derive(Default)]
pub(in crate::trace) struct Blkparse(PairedEvents);

impl LineParser for Blkparse {
    fn example(&self) -> &'static str {
        "8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]"
    }

    fn line(
        &mut self,
        _number: u64,
        text: &str,
        devices: &mut DeviceNames,
    ) -> Result<LineKind, Problem> {
        if text.starts_with("CPU") && text.contains(" (") {
            return Ok(LineKind::End);
        }
        // Skip the names of input files, which blkparse prints with `-q` or `-o`, and the line
        // `discarded traces containing ...` at the end of traces with driver data.
        let is_input = text.starts_with("Input file ") && text.ends_with(" added");
        if !is_input
            && !text.starts_with("discarded traces containing ")
            && let Some(record) = event(text, devices)?
        {
            self.0.ios.take_number(record.device);
            self.0.entry(&TraceEntry { record, data: Vec::new(), trace: 0, cpu: 0 });
        }
        Ok(LineKind::Record)
    }

    fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        self.0.ios.pop(more)
    }

    fn has_completions_only(&self) -> bool {
        self.0.spans.has_completions_only()
    }
}

/// Parses an event line. The record's `device` is an index in `devices`. `None` for an event
/// without an I/O.
fn event(text: &str, devices: &mut DeviceNames) -> Result<Option<Record>, Problem> {
    let mut words = text.split_ascii_whitespace();
    let head: Fields<'_> = words.by_ref().take(6).collect();
    let [device, cpu, sequence, time, process, action] = head.first()?;
    whole("the CPU", cpu)?;
    whole("the sequence", sequence)?;
    whole("the process", process)?;
    if !time.contains('.') {
        return Err(format!("the time is {}; seconds with decimals are expected", shown(time)));
    }
    let time_ns = decimal("the time", time, 9)?;
    let Some(act) = EventCode::from_letters(action) else { return Ok(None) };
    let kind = words.next().ok_or("the kind of I/O after the action is missing")?;
    let (sector, sectors) = match [words.next(), words.next(), words.next()] {
        [Some(sector), Some("+"), Some(sectors)] => {
            (whole("the sector", sector)?, whole("the length", sectors)?)
        }
        _ => (0, 0),
    };
    // Check that sector and length do not overflow when they are converted to bytes.
    scaled("the sector", sector, SECTOR_BYTES)?;
    let bytes = u32::try_from(scaled("the length", sectors, SECTOR_BYTES)?)
        .map_err(|_| format!("the length is {sectors} sectors, which is too large"))?;
    let Some(categories) = categories(kind, sectors) else { return Ok(None) };
    let (action, device) = (act.with(categories), devices.number(device)?);
    Ok(Some(Record { time_ns, sector, bytes, action, device, ..Record::default() }))
}

/// Returns the blktrace categories for an RWBS string such as `FWFS`. None if the string is neither
/// for an I/O with data nor for a flush.
fn categories(kind: &str, sectors: u64) -> Option<u16> {
    let (preflush, kind) = kind.strip_prefix('F').map_or((0, kind), |rest| (category::FLUSH, rest));
    let op = match kind.as_bytes().first() {
        _ if preflush != 0 && sectors == 0 => 0,
        Some(b'D') => category::DISCARD | category::WRITE,
        Some(b'W') => category::WRITE,
        Some(b'R') => category::READ,
        _ => return None,
    };
    let fua = kind.get(1..).is_some_and(|rest| rest.contains('F'));
    Some(preflush | op | if fua { category::FUA } else { 0 })
}
