//! `CpuFile`: the events of one CPU, in blktrace's file format.
//!
//! Sequence numbers count a file's events, including those that were dropped because a ring was
//! full; a message in place of the dropped events tells how many were dropped. Format:
//! include/uapi/linux/blktrace_api.h.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_block::blktrace::{
    EventCode, NotifyKind, RECORD_BYTES, Record, RemapData, encode_number,
};
use millrace_block::{DROPPED_EVENTS, DriverData, TraceEntry, TraceMessage, TraceNote};
use millrace_machine::Machine;

use super::{DEVICE_NAME, RecorderConfig};

/// Maximum length in bytes of the data that follow a record.
const DATA_BYTES_MAX: usize = 128;
const _: () = assert!(DATA_BYTES_MAX >= DriverData::BYTES && DATA_BYTES_MAX >= RemapData::BYTES);
const BUFFER_BYTES: usize = 1 << 18;
/// Size of a submitter's name in bytes, including the terminating zero.
const NAME_BYTES: usize = 16;

pub(super) struct CpuFile {
    pub(super) path: PathBuf,
    pub(super) file: BufWriter<File>,
    cpu: u32,
    sequence: u32,
    named: Vec<u32>,
    /// Events not written yet, because older events may still arrive.
    pub(super) held: Vec<TraceEntry>,
    now: fn() -> u64,
}

impl CpuFile {
    pub(super) fn create<M: Machine>(config: &RecorderConfig, cpu: u32) -> io::Result<CpuFile> {
        let path = trace_file(&config.name, cpu);
        let file = File::create(&path).map_err(|error| named(&path, &error))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let (named, held) = (Vec::new(), Vec::new());
        let mut this = CpuFile { path, file, cpu, sequence: 0, named, held, now: M::now };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut data = [0; 8];
        data[..4].copy_from_slice(&(wall.as_secs() as u32).to_ne_bytes());
        data[4..].copy_from_slice(&wall.subsec_nanos().to_ne_bytes());
        this.note(NotifyKind::Timestamp, 0, &data)?;
        Ok(this)
    }

    fn note(&mut self, note: NotifyKind, pid: u32, data: &[u8]) -> io::Result<()> {
        let (time_ns, action) = ((self.now)(), note.action());
        self.write(Record { time_ns, action, pid, ..Record::default() }, data)
    }

    pub(super) fn name_devices(&mut self, devices: &BTreeMap<u32, String>) -> io::Result<()> {
        for (device, name) in devices {
            self.say(*device, (self.now)(), format!("{DEVICE_NAME}{name}"))?;
        }
        Ok(())
    }

    fn say(&mut self, device: u32, time_ns: u64, mut text: String) -> io::Result<()> {
        let end = (0..=DATA_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        let action = NotifyKind::Message.action();
        self.write(Record { time_ns, action, device, ..Record::default() }, text.as_bytes())
    }

    /// Writes a record of this file's CPU, followed by `data`.
    fn write(&mut self, mut record: Record, data: &[u8]) -> io::Result<()> {
        (record.cpu, record.pdu_len) = (self.cpu, data.len() as u16);
        // Each record is written in one piece, so that the buffer always ends at the end of a
        // record.
        let (mut bytes, end) = ([0; RECORD_BYTES + DATA_BYTES_MAX], RECORD_BYTES + data.len());
        bytes[..RECORD_BYTES].copy_from_slice(&record.encode());
        bytes[RECORD_BYTES..end].copy_from_slice(data);
        self.file.write_all(&bytes[..end]).map_err(|error| named(&self.path, &error))
    }

    /// Writes the events older than `until_ns` in chronological order and flushes the file, so that
    /// a program that is killed leaves only complete records.
    pub(super) fn write_held(
        &mut self,
        until_ns: u64,
        config: &RecorderConfig,
        drops: &mut DropCounts,
    ) -> io::Result<u64> {
        self.held.sort_by_key(|entry| entry.time_ns);
        let ready = self.held.partition_point(|entry| entry.time_ns < until_ns);
        let mut held = std::mem::take(&mut self.held);
        for entry in &held[..ready] {
            match &entry.note {
                None => self.event(entry, config)?,
                Some(TraceNote { remark: TraceMessage::Dropped(events), .. }) => {
                    let events = drops.take(*events);
                    self.dropped(entry.device, entry.time_ns, events)?;
                }
                Some(note) => self.message(entry, note, config)?,
            }
        }
        held.drain(..ready);
        self.held = held;
        self.file.flush().map_err(|error| named(&self.path, &error))?;
        Ok(ready as u64)
    }

    fn message(
        &mut self,
        entry: &TraceEntry,
        note: &TraceNote,
        config: &RecorderConfig,
    ) -> io::Result<()> {
        let group = note.group().and_then(|group| config.groups.get(&group.0));
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = note.write(&mut text, group.map(String::as_str));
        self.say(entry.device, entry.time_ns, text)
    }

    /// Writes a message with the number of dropped events, and skips their sequence numbers.
    pub(super) fn dropped(&mut self, device: u32, time_ns: u64, events: u32) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        self.sequence = self.sequence.wrapping_add(events);
        self.say(device, time_ns, format!("{DROPPED_EVENTS}{events}"))
    }

    fn event(&mut self, entry: &TraceEntry, config: &RecorderConfig) -> io::Result<()> {
        if !self.named.contains(&entry.tenant) {
            self.named.push(entry.tenant);
            let own = || format!("client-{}", entry.tenant);
            let name = config.names.get(&entry.tenant).cloned().unwrap_or_else(own);
            let mut data = [0; NAME_BYTES];
            let bytes = name.as_bytes().iter().take(NAME_BYTES - 1);
            data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            self.note(NotifyKind::Process, entry.tenant, &data)?;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut record = Record {
            sequence: self.sequence,
            time_ns: entry.time_ns,
            sector: entry.sector,
            bytes: entry.bytes,
            action: entry.action,
            pid: entry.tenant,
            device: entry.device,
            error: entry.error as u16,
            ..Record::default()
        };
        let (number, remap);
        let data = match record.act() {
            Some(EventCode::Unplug | EventCode::UnplugTimer) => {
                record.sector = 0;
                number = encode_number(entry.sector);
                &number[..]
            }
            Some(EventCode::DriverData) => entry.data.bytes(),
            Some(EventCode::Split) => {
                number = encode_number(entry.sector + u64::from(entry.bytes >> 9));
                &number[..]
            }
            Some(EventCode::BackMerge) if entry.from != 0 => {
                number = encode_number(entry.from);
                &number[..]
            }
            Some(EventCode::Remap) => {
                let device_from = config.volumes.get(&entry.device).copied();
                let device_from = device_from.unwrap_or(entry.device);
                let (device_to, sector_from) = (entry.device, entry.from);
                remap = RemapData { device_from, device_to, sector_from }.encode();
                &remap[..]
            }
            _ => &[],
        };
        self.write(record, data)
    }
}

#[derive(Default)]
pub(super) struct DropCounts {
    pub(super) all: u64,
    /// Number of dropped events for which a message was written to a trace file.
    pub(super) told: u64,
}

impl DropCounts {
    /// Returns the number of dropped events to report, and counts them as reported. `events` is the
    /// number of events that a thread's ring dropped. Some of these events may be from before the
    /// recording. So the result is limited to the number of dropped events of this recording that
    /// were not reported yet.
    pub(super) fn take(&mut self, events: u32) -> u32 {
        let events = u64::from(events).min(self.all - self.told);
        self.told += events;
        events as u32
    }
}

pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    let path = path.display();
    let text = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("trace file {path}: its directory does not exist; create it")
        }
        _ => format!("trace file {path}: {error}"),
    };
    io::Error::new(error.kind(), text)
}

/// Returns the path of a CPU's file in the trace `name`.
#[must_use]
pub fn trace_file(name: &Path, cpu: u32) -> PathBuf {
    let mut path = name.as_os_str().to_owned();
    path.push(format!(".blktrace.{cpu}"));
    path.into()
}
