//! `Show`: prints a trace as blkparse's default lines, followed by its summary.
//!
//! Each line has the format `%D %2c %8s %5T.%9t %5p %2a %3d ` and then a part that depends on the
//! action. The output equals the output of `blkparse -i NAME` byte for byte, except that a named
//! device is shown by its name. Names of processes and messages can be any bytes, so lines are
//! bytes, not text.

mod summary;

use std::io::{self, Write};

use millrace_block::blktrace::{
    EventCode, NotifyKind, Record, RemapData, Rwbs, category, decode_number, major, minor,
};

use self::summary::TraceSummary;
use super::{TraceEntry, TraceNames};

const SECOND_NS: u64 = 1_000_000_000;

/// Formats a trace line by line and counts its events for the summary.
#[derive(Debug)]
pub struct Show {
    summary: TraceSummary,
    line: Vec<u8>,
    data: DriverData,
    has_hidden: bool,
}

/// Treatment of driver-specific data events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverData {
    /// Driver-specific data events are not shown, as in blkparse.
    #[default]
    Hidden,
    /// Driver-specific data events are shown as lines with the action `d`.
    Shown,
}

impl Show {
    /// Creates a formatter. `traces` has the names of the traces, for the summary.
    #[must_use]
    pub fn new(traces: Vec<String>, data: DriverData) -> Show {
        Show { summary: TraceSummary::new(traces), line: Vec::new(), data, has_hidden: false }
    }

    /// Formats one event as a line, which is empty if blkparse does not show the event.
    pub fn entry(&mut self, entry: &TraceEntry, names: &TraceNames) -> &[u8] {
        self.line.clear();
        self.summary.entry(entry);
        let is_data = entry.record.act() == Some(EventCode::DriverData);
        if is_data && self.data == DriverData::Shown {
            // Appending to a vector cannot fail.
            let _ = driver_data(&mut self.line, entry, names);
        } else {
            self.has_hidden |= is_data;
            line(&mut self.line, entry, names);
        }
        &self.line
    }

    /// Returns blkparse's closing remark if driver-specific data were not shown.
    #[must_use]
    pub fn last_words(&self) -> &'static str {
        if !self.has_hidden {
            return "";
        }
        "\ndiscarded traces containing low-level device driver specific data \
         (only available in binary output)\n"
    }

    /// Returns the summary: counts by trace and CPU.
    #[must_use]
    pub fn summary(&self) -> String {
        self.summary.text()
    }
}

/// Appends the line of one event, or nothing for an event that blkparse does not show.
pub fn line(out: &mut Vec<u8>, entry: &TraceEntry, names: &TraceNames) {
    // Appending to a vector cannot fail.
    let _ = match shown(&entry.record) {
        Some(ShownPart::Message) => message(out, entry, names),
        Some(ShownPart::Code(act)) => event(out, act, entry, names),
        None => Ok(()),
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownPart {
    Message,
    Code(EventCode),
}

/// Returns how blkparse shows a record, or `None` if blkparse does not show it. For passthrough
/// commands, blkparse shows fewer kinds of events.
pub(super) fn shown(record: &Record) -> Option<ShownPart> {
    if record.action >> 16 == 0 {
        return None;
    }
    if record.note() == Some(NotifyKind::Message) {
        return (record.pdu_len > 0).then_some(ShownPart::Message);
    }
    let act = record.act().filter(|act| !act.letters().is_empty())?;
    let passes = matches!(
        act,
        EventCode::Queue
            | EventCode::GetRequest
            | EventCode::Sleep
            | EventCode::Requeue
            | EventCode::Issue
            | EventCode::Complete
            | EventCode::Insert
    );
    (passes || !record.has(category::PC)).then_some(ShownPart::Code(act))
}

fn message(out: &mut Vec<u8>, entry: &TraceEntry, names: &TraceNames) -> io::Result<()> {
    device(out, entry.record.device, names)?;
    head(out, entry.record.cpu, &entry.record, None)?;
    // blkparse prints the message as a C string: up to its first zero byte.
    out.extend(entry.data.iter().take_while(|byte| **byte != 0));
    out.push(b'\n');
    Ok(())
}

/// Prints a driver's note on a request: as text if it is printable, otherwise as hexadecimal bytes.
fn driver_data(out: &mut Vec<u8>, entry: &TraceEntry, names: &TraceNames) -> io::Result<()> {
    let record = &entry.record;
    device(out, record.device, names)?;
    head(out, entry.cpu, record, Some("d"))?;
    write!(out, "{} + {} ", record.sector, record.sectors())?;
    if entry.data.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        out.extend(entry.data.iter());
    } else {
        command(out, &entry.data)?;
    }
    out.push(b'\n');
    Ok(())
}

fn device(out: &mut Vec<u8>, device: u32, names: &TraceNames) -> io::Result<()> {
    match names.device(device) {
        Some(name) => write!(out, "{name:<7} "),
        None => write!(out, "{:3},{:<3} ", major(device), minor(device)),
    }
}

/// Prints the columns between the device and the sectors. `act` has the letters of the action;
/// `None` stands for a message, which has no sequence number and no kind.
fn head(out: &mut Vec<u8>, cpu: u32, record: &Record, act: Option<&str>) -> io::Result<()> {
    // blkparse stores seconds in an `int`, which wraps if an event is older than the event that was
    // read first.
    let (seconds, rest_ns) = ((record.time_ns / SECOND_NS) as i32, record.time_ns % SECOND_NS);
    let sequence = act.map_or(0, |_| record.sequence as i32);
    write!(out, "{cpu:2} {sequence:>8} {seconds:5}.{rest_ns:09} {:5} ", record.pid)?;
    match act {
        Some(act) => write!(out, "{act:>2} {:>3} ", Rwbs::of(record).as_str()),
        None => write!(out, " m   N "),
    }
}

fn event(
    out: &mut Vec<u8>,
    act: EventCode,
    entry: &TraceEntry,
    names: &TraceNames,
) -> io::Result<()> {
    let record = &entry.record;
    let remap = RemapData::decode(&entry.data).unwrap_or_default();
    let shown = if act == EventCode::Remap { remap.device_to } else { record.device };
    device(out, shown, names)?;
    head(out, entry.cpu, record, Some(act.letters()))?;
    let (sector, sectors) = (record.sector, record.sectors());
    let number = decode_number(&entry.data).unwrap_or_default() as u32;
    match act {
        EventCode::Complete | EventCode::Requeue => ended(out, act, entry)?,
        EventCode::Issue | EventCode::Insert if record.has(category::PC) => {
            write!(out, "{} ", record.bytes)?;
            command(out, &entry.data)?;
            name(out, record.pid, names);
        }
        EventCode::Queue if record.has(category::PC) => {
            write!(out, "{} ", record.bytes)?;
            name(out, record.pid, names);
        }
        EventCode::Plug => name(out, record.pid, names),
        EventCode::Unplug | EventCode::UnplugTimer => {
            name(out, record.pid, names);
            write!(out, " {number}")?;
        }
        EventCode::Remap => {
            let from = remap.device_from;
            write!(out, "{sector} + {sectors} <- ")?;
            write!(out, "({}) {}", names.device_or_number(from), remap.sector_from)?;
        }
        EventCode::Split => {
            write!(out, "{sector} / {number} ")?;
            name(out, record.pid, names);
        }
        _ => {
            if sectors != 0 {
                write!(out, "{sector} + {sectors} ")?;
            }
            name(out, record.pid, names);
        }
    }
    out.push(b'\n');
    Ok(())
}

fn ended(out: &mut Vec<u8>, act: EventCode, entry: &TraceEntry) -> io::Result<()> {
    let record = &entry.record;
    if record.has(category::PC) {
        if act == EventCode::Complete {
            command(out, &entry.data)?;
        }
    } else if record.sectors() != 0 {
        write!(out, "{} + {} ", record.sector, record.sectors())?;
    } else {
        write!(out, "{} ", record.sector)?;
    }
    write!(out, "[{}]", record.error)
}

fn name(out: &mut Vec<u8>, pid: u32, names: &TraceNames) {
    out.push(b'[');
    out.extend(names.of(pid));
    out.push(b']');
}

fn command(out: &mut Vec<u8>, data: &[u8]) -> io::Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let zeroes = data.iter().rev().take_while(|byte| **byte == 0).count();
    let shown = (data.len() - zeroes + 1).min(data.len());
    let text: Vec<String> = data[..shown].iter().map(|byte| format!("{byte:02x}")).collect();
    let rest = if zeroes > 0 { " .." } else { "" };
    write!(out, "({}{rest}) ", text.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::blktrace::{device, encode_number};

    fn shown_line(record: Record, data: &[u8]) -> String {
        let mut names = TraceNames::default();
        names.add(42, b"fio");
        let record = Record { device: device(259, 1), pid: 42, cpu: 3, ..record };
        let entry = TraceEntry { record, data: data.into(), trace: 0, cpu: 3 };
        let mut out = Vec::new();
        line(&mut out, &entry, &names);
        String::from_utf8(out).unwrap()
    }

    fn of(act: EventCode, more: u16) -> Record {
        let (time_ns, sector) = (1_000_000_002, 8);
        Record { sequence: 7, time_ns, sector, bytes: 4096, action: act.with(more), ..of_nothing() }
    }

    fn of_nothing() -> Record {
        Record::default()
    }

    #[test]
    fn lines_are_those_of_blkparse() {
        let head = "259,1    3        7     1.000000002    42";
        let write = category::WRITE | category::SYNC;
        let remap =
            RemapData { device_from: device(254, 0), device_to: device(8, 16), sector_from: 1 };
        assert_eq!(
            shown_line(of(EventCode::Queue, write), &[]),
            format!("{head}  Q  WS 8 + 8 [fio]\n")
        );
        assert_eq!(
            shown_line(of(EventCode::Remap, write), &remap.encode()),
            "  8,16   3        7     1.000000002    42  A  WS 8 + 8 <- (254,0) 1\n"
        );
        let unplug = Record { bytes: 0, ..of(EventCode::UnplugTimer, 0) };
        assert_eq!(shown_line(unplug, &encode_number(2)), format!("{head} UT   N [fio] 2\n"));
        let failed = Record { error: 0xfffb, ..of(EventCode::Complete, 0) };
        assert_eq!(shown_line(failed, &[]), format!("{head}  C   R 8 + 8 [65531]\n"));
        let flush = Record { bytes: 0, ..of(EventCode::Complete, category::FLUSH | write) };
        assert_eq!(shown_line(flush, &[]), format!("{head}  C FWS 8 [0]\n"));
    }

    #[test]
    fn a_device_with_a_name_is_shown_by_it() {
        let mut names = TraceNames::default();
        names.add(42, b"fio");
        let say = |name: &str| format!("{}{name}", millrace_runtime::DEVICE_NAME).into_bytes();
        names.add_message(device(240, 0), &say("d0"));
        names.add_message(device(9, 0), &say("vol0"));
        let remap =
            RemapData { device_from: device(9, 0), device_to: device(240, 0), sector_from: 1 };
        let record = Record { device: device(240, 0), pid: 42, cpu: 3, ..of(EventCode::Remap, 0) };
        let entry = TraceEntry { record, data: remap.encode().to_vec(), trace: 0, cpu: 3 };
        let mut out = Vec::new();
        line(&mut out, &entry, &names);
        let expected = "d0       3        7     1.000000002    42  A   R 8 + 8 <- (vol0) 1\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn commands_end_before_last_zeroes_and_driver_data_are_hidden() {
        let issue = of(EventCode::Issue, category::PC);
        assert!(shown_line(issue, &[1, 2, 0, 0]).ends_with("D   R 4096 (01 02 00 ..) [fio]\n"));
        assert!(shown_line(issue, &[1, 2]).ends_with("D   R 4096 (01 02) [fio]\n"));
        assert_eq!(shown_line(of(EventCode::DriverData, category::PC), &[1]), "");
        assert_eq!(shown_line(of(EventCode::Plug, category::PC), &[]), "");
    }
}
