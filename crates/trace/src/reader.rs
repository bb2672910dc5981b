//! `Reader`: merges the files of a trace into one stream of events, in blkparse's order and in
//! constant memory.
//!
//! The reader owns the files and at most `BATCH` records of each. The order of events is that of
//! blkparse and btt, because the printed lines and spans must equal the output of these tools:
//! - Files are merged by the time of their first waiting event.
//! - The order of a file's records is kept even where times step back a little, as they do when an
//!   interrupt comes between taking the timestamp and writing the record.
//! - If times are equal, reading continues with the file of the last event. A file whose next
//!   events have just been read is queued behind the first waiting file, but before all other files
//!   whose time is not earlier.
//! - A process name applies as soon as its record is read, which is up to `BATCH` events too early.
//!
//! A damaged file is read up to the damage, and the other files to their end.

mod pipe;
mod sequence;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use millrace_block::blktrace::{NotifyKind, Record, category};
use millrace_machine::debug_fields;
use millrace_runtime::trace_file;

use self::pipe::PipeReader;
use self::sequence::SequenceGaps;
use super::file::{CpuFile, TraceRecord};
use super::{DamagedFile, TraceError, TraceNames};

const BATCH: usize = 512;
const BUFFER_BYTES: usize = 64 << 10;

/// Name and location of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceName {
    base: PathBuf,
}

impl TraceName {
    /// Returns the trace `name`, in `dir` if given. The name of one of its files
    /// (`NAME.blktrace.N`) also names the trace; `-` stands for standard input.
    #[must_use]
    pub fn new(name: &str, dir: Option<&Path>) -> TraceName {
        if name == PIPE {
            return TraceName { base: name.into() };
        }
        let name = name.find(".blktrace.").map_or(name, |at| &name[..at]);
        TraceName { base: dir.map_or_else(|| name.into(), |dir| dir.join(name)) }
    }

    /// Returns the trace's name without its directory, as reports show it.
    #[must_use]
    pub fn name(&self) -> String {
        if self.is_pipe() {
            return "stdin".into();
        }
        self.base.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns true if the trace has at least one file.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.cpus().is_ok_and(|cpus| !cpus.is_empty())
    }

    /// Returns the paths of the trace's existing files, in the order of their CPUs.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let cpus = self.cpus().unwrap_or_default();
        cpus.into_iter().map(|cpu| self.file(cpu)).collect()
    }

    fn is_pipe(&self) -> bool {
        self.base == Path::new(PIPE)
    }

    fn file(&self, cpu: u32) -> PathBuf {
        trace_file(&self.base, cpu)
    }

    fn cpus(&self) -> io::Result<Vec<u32>> {
        let first = self.file(0);
        let folder = first.parent().filter(|folder| !folder.as_os_str().is_empty());
        let stem = first.file_stem().unwrap_or_default();
        let of = |entry: io::Result<std::fs::DirEntry>| {
            let name = PathBuf::from(entry.ok()?.file_name());
            let number = name.extension().and_then(OsStr::to_str)?;
            let cpu = number.parse().ok().filter(|cpu: &u32| cpu.to_string() == number)?;
            (name.file_stem() == Some(stem)).then_some(cpu)
        };
        let mut cpus: Vec<u32> =
            std::fs::read_dir(folder.unwrap_or(Path::new(".")))?.filter_map(of).collect();
        cpus.sort_unstable();
        Ok(cpus)
    }
}

const PIPE: &str = "-";

/// One event or message of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// The record; its time is relative to the first event of the trace.
    pub record: Record,
    /// Data of the record, at most [`PDU_KEPT_MAX`](super::PDU_KEPT_MAX) bytes.
    pub data: Vec<u8>,
    /// Index of the trace, in the order in which the traces were opened.
    pub trace: usize,
    /// Number of the CPU whose trace file holds the record. For a pipe, which carries the records
    /// of all CPUs, the CPU number in the record.
    pub cpu: u32,
}

struct FileStream<R> {
    trace: usize,
    file: CpuFile<R>,
    len_bytes: Option<u64>,
    sequence: SequenceGaps,
    waiting: VecDeque<TraceRecord>,
    last_ns: u64,
    /// Error at which reading the file stopped; reported after the events that precede it.
    error: Option<TraceError>,
    ended: bool,
}

impl<R: Read> FileStream<R> {
    fn first_time(&self) -> u64 {
        // An error comes after the last event that could be read.
        self.waiting.front().map_or(self.last_ns, |item| item.record.time_ns)
    }

    /// Returns a note if the records' CPU differs from the number in the file name.
    fn of_another(&self) -> Option<String> {
        let (path, cpu) = (self.file.path(), self.file.cpu());
        let named = path.extension().and_then(OsStr::to_str);
        (named != Some(&cpu.to_string())).then(|| {
            format!(
                "{}: the file name does not end in {cpu}, the CPU of the records",
                path.display()
            )
        })
    }

    /// Reads up to `BATCH` records. Returns true if an event or an error is waiting.
    fn prime(&mut self, names: &mut TraceNames) -> bool {
        while !self.ended && self.waiting.len() < BATCH {
            match self.file.read() {
                Ok(Some(item)) => {
                    names.add_missing(self.sequence.note(&item));
                    if takes_note(&item, names) {
                        continue;
                    }
                    self.last_ns = item.record.time_ns;
                    self.waiting.push_back(item);
                }
                Ok(None) => self.ended = true,
                Err(error) => (self.error, self.ended) = (Some(error), true),
            }
        }
        !self.waiting.is_empty() || self.error.is_some()
    }
}

/// Stores the process or device name that a notification record contains. Returns true if the
/// reader must not return the record to its caller. This is the case for all notifications except
/// messages.
fn takes_note(item: &TraceRecord, names: &mut TraceNames) -> bool {
    match item.record.note() {
        Some(NotifyKind::Message) => names.add_message(item.record.device, &item.data),
        Some(NotifyKind::Process) => names.add(item.record.pid, &item.data),
        _ => {}
    }
    item.record.has(category::NOTIFY) && item.record.note() != Some(NotifyKind::Message)
}

/// Reads the events of one or more traces, in order of time.
pub struct Reader<R = Box<dyn Read + Send>> {
    streams: Vec<FileStream<R>>,
    pipe: Option<PipeReader<R>>,
    notes: Vec<String>,
    /// Streams with an event or error waiting, in the order in which they will be read.
    order: VecDeque<usize>,
    names: TraceNames,
    genesis_ns: Option<u64>,
    damage: Vec<DamagedFile>,
    has_ended: bool,
}

debug_fields!(Reader<R>, notes);

impl Reader {
    /// Opens the files of all CPUs of each trace, or standard input if it is the only name.
    ///
    /// # Errors
    /// Returns an error if a trace has no files or only empty ones, if a file cannot be opened, or
    /// if standard input is named together with others. The first `read` reports a broken first
    /// record.
    pub fn open(names: &[TraceName]) -> Result<Reader, TraceError> {
        if names.iter().any(TraceName::is_pipe) {
            if names.len() > 1 {
                return Err(TraceError::PipeAndFiles);
            }
            let input = BufReader::with_capacity(BUFFER_BYTES, io::stdin());
            return Ok(Reader::from_stream("standard input", Box::new(input)));
        }
        let (mut inputs, mut notes, mut damage) = (Vec::new(), Vec::new(), Vec::new());
        let is_new = |(at, name): &(usize, &TraceName)| !names[..*at].contains(name);
        for (trace, name) in names.iter().enumerate().filter(is_new) {
            let (before, first) = (inputs.len(), name.file(0));
            let cpus = name.cpus().map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => TraceError::Missing { first: first.clone() },
                _ => TraceError::Io { file: first.clone(), offset: 0, source },
            })?;
            for &cpu in &cpus {
                let path = name.file(cpu);
                match open(&path) {
                    Ok((_, Some(0))) => {}
                    Ok((file, len)) => {
                        let input = BufReader::with_capacity(BUFFER_BYTES, file);
                        let input: Box<dyn Read + Send> = Box::new(input);
                        inputs.push((trace, CpuFile::new(path, cpu, input), len));
                    }
                    Err(source) => {
                        let error = TraceError::Io { file: path, offset: 0, source };
                        damage.push(DamagedFile { error, missing_bytes: None });
                    }
                }
            }
            if inputs.len() == before && !cpus.is_empty() {
                // An empty trace is reported as damage, and the other traces are read.
                let error = TraceError::Empty { first: name.file(cpus[0]) };
                damage.push(DamagedFile { error, missing_bytes: None });
            } else if inputs.len() == before {
                return Err(match name.base.is_file() {
                    true => TraceError::NoRecording { file: name.base.clone() },
                    false => TraceError::Missing { first },
                });
            }
            notes.extend(missing(&first, &cpus));
        }
        if inputs.is_empty() && !damage.is_empty() {
            return Err(damage.remove(0).error);
        }
        let mut reader = Reader::of(inputs);
        reader.damage = damage;
        let others: Vec<String> =
            reader.streams.iter().filter_map(FileStream::of_another).collect();
        reader.notes.extend(notes.into_iter().chain(others));
        Ok(reader)
    }
}

/// Returns a note that names the missing files between CPU 0 and the last CPU, if any.
fn missing(first: &Path, cpus: &[u32]) -> Option<String> {
    let last = *cpus.last()?;
    let mut gaps = (0..last).filter(|cpu| cpus.binary_search(cpu).is_err());
    let gap = gaps.next()?;
    let more = gaps.count();
    let others = if more > 0 { format!(" and {more} others are") } else { " is".into() };
    let there: Vec<String> = cpus.iter().take(8).map(u32::to_string).collect();
    let rest = if cpus.len() > 8 { ", ..." } else { "" };
    let (folder, there) = (first.with_extension(""), there.join(", "));
    Some(format!("{}.{gap}{others} missing; read: {there}{rest}", folder.display()))
}

/// Opens a file. Returns it with its length, which is `None` for a named pipe.
fn open(path: &Path) -> io::Result<(File, Option<u64>)> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata.is_file().then_some(metadata.len())))
}

impl<R: Read> Reader<R> {
    /// Reads a trace from the contents of its files, one for each CPU from 0.
    pub fn from_inputs(inputs: Vec<R>) -> Reader<R> {
        let file = |(cpu, input)| {
            (0, CpuFile::new(format!("input.blktrace.{cpu}").into(), cpu, input), None)
        };
        Reader::of((0..).zip(inputs).map(file).collect())
    }

    /// Reads the output of `blktrace -o -`, which has the records of all CPUs, from an input that
    /// error messages call `name`.
    pub fn from_stream(name: &str, input: R) -> Reader<R> {
        let mut reader = Reader::of(Vec::new());
        reader.pipe = Some(PipeReader::new(CpuFile::pipe(name.into(), input)));
        reader
    }

    fn of(inputs: Vec<(usize, CpuFile<R>, Option<u64>)>) -> Reader<R> {
        let mut reader = Reader {
            streams: Vec::with_capacity(inputs.len()),
            pipe: None,
            notes: Vec::new(),
            order: VecDeque::new(),
            names: TraceNames::default(),
            genesis_ns: None,
            damage: Vec::new(),
            has_ended: false,
        };
        for (number, (trace, file, len_bytes)) in inputs.into_iter().enumerate() {
            reader.streams.push(FileStream {
                trace,
                file,
                len_bytes,
                sequence: SequenceGaps::default(),
                waiting: VecDeque::new(),
                last_ns: 0,
                error: None,
                ended: false,
            });
            if reader.streams[number].prime(&mut reader.names) {
                reader.queue(number);
            }
        }
        reader
    }

    /// Reads the next event, or returns `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the input is empty, or if damage prevents reading any event at all.
    pub fn read(&mut self) -> Result<Option<TraceEntry>, TraceError> {
        if self.pipe.is_some() {
            return self.read_pipe();
        }
        loop {
            let Some(&number) = self.order.front() else { return self.end() };
            let stream = &mut self.streams[number];
            let Some(item) = stream.waiting.pop_front() else {
                self.order.pop_front();
                let error = stream.error.take();
                let error = error.expect("each stream in `order` must have an event or an error");
                let (offset, have) = (stream.file.offset(), error.bytes_seen());
                let missing = |len: u64| len.saturating_sub(offset).max(have);
                let missing_bytes = stream.len_bytes.map(missing);
                self.damage.push(DamagedFile { error, missing_bytes });
                continue;
            };
            let (trace, cpu) = (stream.trace, stream.file.cpu());
            if stream.waiting.is_empty() && !stream.prime(&mut self.names) {
                self.order.pop_front();
            } else if self.order.len() > 1 && self.streams[number].first_time() > self.time_at(1) {
                self.order.pop_front();
                self.queue(number);
            }
            return Ok(Some(self.entry(item, trace, cpu)));
        }
    }

    /// Ends the trace. Returns an error if no event could be read because of damaged files.
    fn end(&mut self) -> Result<Option<TraceEntry>, TraceError> {
        let is_first = !std::mem::replace(&mut self.has_ended, true);
        let nothing_told = is_first && self.genesis_ns.is_none() && !self.damage.is_empty();
        if nothing_told { Err(self.damage.remove(0).error) } else { Ok(None) }
    }

    fn read_pipe(&mut self) -> Result<Option<TraceEntry>, TraceError> {
        let (false, Some(pipe)) = (self.has_ended, &mut self.pipe) else { return Ok(None) };
        match pipe.next(&mut self.names) {
            Ok(Some(item)) => {
                let cpu = item.record.cpu;
                return Ok(Some(self.entry(item, 0, cpu)));
            }
            Ok(None) if pipe.file().offset() == 0 => {
                self.has_ended = true;
                return Err(TraceError::Empty { first: pipe.file().path().into() });
            }
            Ok(None) => {}
            Err(error) => self.damage.push(DamagedFile { error, missing_bytes: None }),
        }
        self.end()
    }

    /// Returns the damaged files that were found so far, each with its error.
    #[must_use]
    pub fn damage(&self) -> &[DamagedFile] {
        &self.damage
    }

    fn entry(&mut self, item: TraceRecord, trace: usize, cpu: u32) -> TraceEntry {
        let TraceRecord { mut record, data } = item;
        let genesis_ns = *self.genesis_ns.get_or_insert(record.time_ns);
        record.time_ns = record.time_ns.wrapping_sub(genesis_ns);
        TraceEntry { record, data, trace, cpu }
    }

    /// Returns notes for the reader's user, such as missing files and events out of order.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let late = self.pipe.as_ref().map_or(0, PipeReader::late);
        let late = (late > 0).then(|| {
            format!("standard input: {late} events arrived too late and are shown out of order")
        });
        self.notes.iter().cloned().chain(late).collect()
    }

    /// Returns the names of processes and devices read so far.
    #[must_use]
    pub fn names(&self) -> &TraceNames {
        &self.names
    }

    /// Returns the names of processes and devices read so far, so that the caller can change or
    /// remove names.
    pub fn names_mut(&mut self) -> &mut TraceNames {
        &mut self.names
    }

    /// Returns the fraction of the files' bytes that has been read, 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let read: u64 = self.streams.iter().map(|stream| stream.file.offset()).sum();
        let bytes: u64 = self.streams.iter().filter_map(|stream| stream.len_bytes).sum();
        if bytes == 0 { 0.0 } else { (read as f64 / bytes as f64).min(1.0) }
    }

    /// Returns the files, each with the index of its trace and with its CPU.
    pub fn files(&self) -> impl Iterator<Item = (usize, u32, &Path)> {
        self.streams.iter().map(|stream| (stream.trace, stream.file.cpu(), stream.file.path()))
    }

    fn time_at(&self, place: usize) -> u64 {
        self.streams[self.order[place]].first_time()
    }

    /// Inserts a stream into `order` by the time of its first event. The stream at the front stays
    /// there if the new stream has the same time. Among all other streams with the same time, the
    /// new stream goes first.
    fn queue(&mut self, number: usize) {
        let time = self.streams[number].first_time();
        if self.order.is_empty() || time < self.time_at(0) {
            self.order.push_front(number);
            return;
        }
        let later = (1..self.order.len()).find(|place| self.time_at(*place) >= time);
        self.order.insert(later.unwrap_or(self.order.len()), number);
    }
}

#[cfg(test)]
mod tests;
