//! `Show`: a trace as blkparse's default lines, and its summary at the end.
//!
//! Owns the format of a line, `%D %2c %8s %5T.%9t %5p %2a %3d ` and what follows for each action;
//! the summary's counts are `Summary`'s. Byte for byte what `blkparse -i NAME` prints, which the
//! end-to-end tests compare, where devices have no names; where they do, the name stands in place
//! of the number. Names of processes and messages are bytes of anybody, so lines are bytes too.
//! Called by `millrace trace show`.

mod summary;

use std::io::{self, Write};

use millrace_block::blktrace::{
    EventCode, NotifyKind, Record, RemapData, Rwbs, category, decode_number, major, minor,
};

use self::summary::Summary;
use super::{Entry, Names};

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Prints a trace.
pub struct Show {
    summary: Summary,
    line: Vec<u8>,
    data: DriverData,
    has_hidden: bool,
}

/// What becomes of drivers' data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverData {
    /// Drivers' data are not shown, as by blkparse.
    #[default]
    Hidden,
    /// A line each, with the action d.
    Shown,
}

impl Show {
    /// For traces of these names, which the summary gives.
    #[must_use]
    pub fn new(traces: Vec<String>) -> Show {
        let (summary, data) = (Summary::new(traces), DriverData::Hidden);
        Show { summary, line: Vec::new(), data, has_hidden: false }
    }

    /// This view, with drivers' data hidden or shown.
    #[must_use]
    pub fn with_data(self, data: DriverData) -> Show {
        Show { data, ..self }
    }

    /// The line of one event; empty for what blkparse does not show.
    pub fn entry(&mut self, entry: &Entry, names: &Names) -> &[u8] {
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

    /// What is to be said at the end of lines and counts: that not all was shown.
    #[must_use]
    pub fn last_words(&self) -> &'static str {
        match self.has_hidden {
            true => {
                "\ndiscarded traces containing low-level device driver specific data \
                 (only available in binary output)\n"
            }
            false => "",
        }
    }

    /// Counts by CPU and trace.
    #[must_use]
    pub fn summary(&self) -> String {
        self.summary.text()
    }
}

/// Appends the line of one event; nothing for what blkparse does not show.
pub fn line(out: &mut Vec<u8>, entry: &Entry, names: &Names) {
    // Appending to a vector cannot fail.
    let _ = match shown(&entry.record) {
        Some(Shown::Message) => message(out, entry, names),
        Some(Shown::Code(act)) => event(out, act, entry, names),
        None => Ok(()),
    };
}

/// What of an entry is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Message,
    Code(EventCode),
}

/// What blkparse makes a line of. Commands that pass through have fewer events.
pub(super) fn shown(record: &Record) -> Option<Shown> {
    if record.action >> 16 == 0 {
        return None;
    }
    if record.note() == Some(NotifyKind::Message) {
        return (record.pdu_len > 0).then_some(Shown::Message);
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
    (passes || !record.has(category::PC)).then_some(Shown::Code(act))
}

fn message(out: &mut Vec<u8>, entry: &Entry, names: &Names) -> io::Result<()> {
    device(out, entry.record.device, names)?;
    head(out, entry.record.cpu, &entry.record, ("0", "m", "N"))?;
    // Printed as a string of C: up to its zero.
    out.extend(entry.data.iter().take_while(|byte| **byte != 0));
    out.push(b'\n');
    Ok(())
}

/// What a driver said of a request: text if it is that, or bytes.
fn driver_data(out: &mut Vec<u8>, entry: &Entry, names: &Names) -> io::Result<()> {
    let (record, sequence) = (&entry.record, (entry.record.sequence as i32).to_string());
    let rwbs = Rwbs::of(record);
    device(out, record.device, names)?;
    head(out, entry.cpu, record, (&sequence, "d", rwbs.as_str()))?;
    write!(out, "{} + {} ", record.sector, record.sectors())?;
    if entry.data.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        out.extend(entry.data.iter());
    } else {
        command(out, &entry.data)?;
    }
    out.push(b'\n');
    Ok(())
}

/// The device: its name, or its numbers as blkparse has them.
fn device(out: &mut Vec<u8>, device: u32, names: &Names) -> io::Result<()> {
    match names.device(device) {
        Some(name) => write!(out, "{name:<7} "),
        None => write!(out, "{:3},{:<3} ", major(device), minor(device)),
    }
}

/// What all lines have after the device.
fn head(
    out: &mut Vec<u8>,
    cpu: u32,
    record: &Record,
    (sequence, act, rwbs): (&str, &str, &str),
) -> io::Result<()> {
    // Seconds are an int there, and wrap as such where a time lies before the first.
    let (seconds, rest_ns) = ((record.time_ns / SECOND_NS) as i32, record.time_ns % SECOND_NS);
    write!(out, "{cpu:2} {sequence:>8} ")?;
    write!(out, "{seconds:5}.{rest_ns:09} {:5} {act:>2} {rwbs:>3} ", record.pid)
}

fn event(out: &mut Vec<u8>, act: EventCode, entry: &Entry, names: &Names) -> io::Result<()> {
    let record = &entry.record;
    let remap = RemapData::decode(&entry.data).unwrap_or_default();
    let shown = if act == EventCode::Remap { remap.device_to } else { record.device };
    let sequence = (record.sequence as i32).to_string();
    let rwbs = Rwbs::of(record);
    device(out, shown, names)?;
    head(out, entry.cpu, record, (&sequence, act.letters(), rwbs.as_str()))?;
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

fn ended(out: &mut Vec<u8>, act: EventCode, entry: &Entry) -> io::Result<()> {
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

fn name(out: &mut Vec<u8>, pid: u32, names: &Names) {
    out.push(b'[');
    out.extend(names.of(pid));
    out.push(b']');
}

/// A command's bytes, without the zeroes at the end.
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
        let mut names = Names::default();
        names.add(42, b"fio");
        let record = Record { device: device(259, 1), pid: 42, cpu: 3, ..record };
        let entry = Entry { record, data: data.into(), trace: 0, cpu: 3 };
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
        let mut names = Names::default();
        names.add(42, b"fio");
        let say = |name: &str| format!("{}{name}", millrace_runtime::DEVICE_NAME).into_bytes();
        names.add_message(device(240, 0), &say("d0"));
        names.add_message(device(9, 0), &say("vol0"));
        let remap =
            RemapData { device_from: device(9, 0), device_to: device(240, 0), sector_from: 1 };
        let record = Record { device: device(240, 0), pid: 42, cpu: 3, ..of(EventCode::Remap, 0) };
        let entry = Entry { record, data: remap.encode().to_vec(), trace: 0, cpu: 3 };
        let mut out = Vec::new();
        line(&mut out, &entry, &names);
        let expected = "d0       3        7     1.000000002    42  A   R 8 + 8 <- (vol0) 1\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn commands_end_before_their_last_zeroes_and_drivers_data_are_not_shown() {
        let issue = of(EventCode::Issue, category::PC);
        assert!(shown_line(issue, &[1, 2, 0, 0]).ends_with("D   R 4096 (01 02 00 ..) [fio]\n"));
        assert!(shown_line(issue, &[1, 2]).ends_with("D   R 4096 (01 02) [fio]\n"));
        assert_eq!(shown_line(of(EventCode::DriverData, category::PC), &[1]), "");
        assert_eq!(shown_line(of(EventCode::Plug, category::PC), &[]), "");
    }
}
