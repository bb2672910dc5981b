//! `Reader`: the files of a trace as one stream of events, in blkparse's order, in constant memory.
//!
//! Owns the files and at most `BATCH` records of each. The order is that of blkparse and btt, since
//! spans and lines are only the same if the order is: files are merged by the time of their first
//! waiting event, and a file's own order stays, also where its times step back a little, as those
//! of an interrupt do that came between a stamp and its record. Of equal times, the file that gave
//! the last event goes on; a file that comes up again goes behind the first that is waiting, before
//! all others that are not earlier. Names of processes count from when their record is read, which
//! is up to a batch ahead of when it is due, again as in blkparse. A file that is damaged ends
//! there, and the others are read on; `damage` tells of it.
//! Called by the verbs of `millrace trace`; calls `CpuFile`, and `Pipe` for what comes through one.

mod pipe;
mod sequence;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Stdin};
use std::path::{Path, PathBuf};

use millrace_block::blktrace::{NotifyKind, Record, category};
use millrace_runtime::trace_file;

use self::pipe::Pipe;
use self::sequence::Sequence;
use super::file::{CpuFile, Item};
use super::{Damage, Names, TraceError};

/// Events of a file that are read at once.
const BATCH: usize = 512;
/// Bytes that are read of a file at once.
const BUFFER_BYTES: usize = 64 << 10;

/// What a trace is called, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceName {
    base: PathBuf,
}

impl TraceName {
    /// The trace `name`, in `dir` if there is one. `NAME.blktrace.N`, one file of it, names it too,
    /// and all of them name it once; `-` is what comes on standard input.
    #[must_use]
    pub fn new(name: &str, dir: Option<&Path>) -> TraceName {
        if name == PIPE {
            return TraceName { base: name.into() };
        }
        let name = name.find(".blktrace.").map_or(name, |at| &name[..at]);
        TraceName { base: dir.map_or_else(|| name.into(), |dir| dir.join(name)) }
    }

    /// Its name without the folder, as reports show it.
    #[must_use]
    pub fn name(&self) -> String {
        if self.is_pipe() {
            return "stdin".into();
        }
        self.base.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether there are files of it.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.cpus().is_ok_and(|cpus| !cpus.is_empty())
    }

    /// Its files that are there.
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

    /// The CPUs that there are files of, in their order.
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

/// The name of standard input.
const PIPE: &str = "-";

/// Where a trace comes from.
pub enum Source {
    /// A file of it.
    File(BufReader<File>),
    /// Standard input.
    Pipe(BufReader<Stdin>),
    /// Anything else, such as what a gzipped file holds.
    Other(Box<dyn Read + Send>),
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::File(file) => file.read(buffer),
            Source::Pipe(pipe) => pipe.read(buffer),
            Source::Other(input) => input.read(buffer),
        }
    }
}

/// One event or message of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The record; its time counts from the first event of the trace.
    pub record: Record,
    /// Its data, at most [`PDU_KEPT_MAX`](super::PDU_KEPT_MAX) bytes.
    pub data: Vec<u8>,
    /// Which of the traces it is of, by their order.
    pub trace: usize,
    /// The CPU whose file it is in.
    pub cpu: u32,
}

struct Stream<R> {
    trace: usize,
    file: CpuFile<R>,
    len_bytes: Option<u64>,
    sequence: Sequence,
    waiting: VecDeque<Item>,
    /// Time of the last event that was read.
    last_ns: u64,
    /// Why the file was not read further; told when what came before it is told.
    error: Option<TraceError>,
    ended: bool,
}

impl<R: Read> Stream<R> {
    fn first_time(&self) -> u64 {
        // An error has its place where the file ends for us.
        self.waiting.front().map_or(self.last_ns, |item| item.record.time_ns)
    }

    /// What to say of a file whose records are of another CPU than its name says.
    fn of_another(&self) -> Option<String> {
        let (path, cpu) = (self.file.path(), self.file.cpu());
        let named = path.extension().and_then(OsStr::to_str);
        (named != Some(&cpu.to_string()))
            .then(|| format!("{}: its records are of CPU {cpu}", path.display()))
    }

    /// Reads a batch; whether there is anything to tell.
    fn prime(&mut self, names: &mut Names) -> bool {
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

/// Learns the names that a record tells; whether that is all it does, so that it has no place in
/// the order: notes but for messages.
fn takes_note(item: &Item, names: &mut Names) -> bool {
    match item.record.note() {
        Some(NotifyKind::Message) => names.add_message(item.record.device, &item.data),
        Some(NotifyKind::Process) => names.add(item.record.pid, &item.data),
        _ => {}
    }
    item.record.has(category::NOTIFY) && item.record.note() != Some(NotifyKind::Message)
}

/// Reads traces.
pub struct Reader<R = Source> {
    streams: Vec<Stream<R>>,
    /// Instead of them.
    pipe: Option<Pipe<R>>,
    notes: Vec<String>,
    /// Streams that have something waiting; whose turn it is, first.
    order: VecDeque<usize>,
    names: Names,
    /// Time of the first event, from when that is told.
    genesis_ns: Option<u64>,
    damage: Vec<Damage>,
    has_ended: bool,
}

impl Reader {
    /// Opens traces: of each the files of all CPUs, or standard input as the only one.
    ///
    /// # Errors
    /// If a trace has no file or only empty ones, a file cannot be opened, or standard input is
    /// named beside others. A broken first record is told by the first `read`.
    pub fn open(names: &[TraceName]) -> Result<Reader, TraceError> {
        if names.iter().any(TraceName::is_pipe) {
            if names.len() > 1 {
                return Err(TraceError::PipeAndFiles);
            }
            let input = BufReader::with_capacity(BUFFER_BYTES, io::stdin());
            return Ok(Reader::from_pipe(Source::Pipe(input)));
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
                let (file, len) = match open(&path) {
                    Ok(Some(opened)) => opened,
                    Ok(None) => continue,
                    Err(error) => {
                        damage.push(Damage { error, missing_bytes: None });
                        continue;
                    }
                };
                if len != Some(0) {
                    let input = BufReader::with_capacity(BUFFER_BYTES, file);
                    inputs.push((trace, CpuFile::new(path, cpu, Source::File(input)), len));
                }
            }
            if inputs.len() == before && !cpus.is_empty() {
                // The others are read without it.
                let error = TraceError::Empty { first: name.file(cpus[0]) };
                damage.push(Damage { error, missing_bytes: None });
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
        let others: Vec<String> = reader.streams.iter().filter_map(Stream::of_another).collect();
        reader.notes.extend(notes.into_iter().chain(others));
        Ok(reader)
    }
}

/// What to say of files that are missing among those of CPUs 0 to the last.
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

/// A file and its length, which a named pipe does not have; none if there is no file.
fn open(path: &Path) -> Result<Option<(File, Option<u64>)>, TraceError> {
    let opened = File::open(path).and_then(|file| {
        let metadata = file.metadata()?;
        Ok((metadata.is_file().then_some(metadata.len()), file))
    });
    match opened {
        Ok((len, file)) => Ok(Some((file, len))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TraceError::Io { file: path.into(), offset: 0, source }),
    }
}

impl<R: Read> Reader<R> {
    /// Reads one trace from the inputs of CPUs 0, 1 and so on, instead of from files.
    pub fn from_inputs(inputs: Vec<R>) -> Reader<R> {
        let file = |(cpu, input)| {
            (0, CpuFile::new(format!("input.blktrace.{cpu}").into(), cpu, input), None)
        };
        Reader::of((0..).zip(inputs).map(file).collect())
    }

    /// Reads a trace from what `blktrace -o -` writes: the records of all CPUs.
    pub fn from_pipe(input: R) -> Reader<R> {
        Reader::from_stream("standard input", input)
    }

    /// Reads the same from an input of any name.
    pub fn from_stream(name: &str, input: R) -> Reader<R> {
        let mut reader = Reader::of(Vec::new());
        reader.pipe = Some(Pipe::new(CpuFile::pipe(name.into(), input)));
        reader
    }

    fn of(inputs: Vec<(usize, CpuFile<R>, Option<u64>)>) -> Reader<R> {
        let mut reader = Reader {
            streams: Vec::with_capacity(inputs.len()),
            pipe: None,
            notes: Vec::new(),
            order: VecDeque::new(),
            names: Names::default(),
            genesis_ns: None,
            damage: Vec::new(),
            has_ended: false,
        };
        for (trace, file, len_bytes) in inputs {
            let (waiting, number) = (VecDeque::new(), reader.streams.len());
            let (last_ns, error, ended) = (0, None, false);
            let sequence = Sequence::default();
            let stream =
                Stream { trace, file, len_bytes, sequence, waiting, last_ns, error, ended };
            reader.streams.push(stream);
            if reader.streams[number].prime(&mut reader.names) {
                reader.queue(number);
            }
        }
        reader
    }

    /// The next event; none at the end.
    ///
    /// # Errors
    /// If nothing can be read because a file is damaged, or the input is empty.
    pub fn read(&mut self) -> Result<Option<Entry>, TraceError> {
        if self.pipe.is_some() {
            return self.read_pipe();
        }
        loop {
            let Some(&number) = self.order.front() else { return self.end() };
            let stream = &mut self.streams[number];
            let Some(item) = stream.waiting.pop_front() else {
                self.order.pop_front();
                let error = stream.error.take();
                let error = error.expect("a stream without either is not in the order");
                let offset = stream.file.offset();
                let have = error.bytes_seen();
                let missing_bytes =
                    stream.len_bytes.map(|len| len.saturating_sub(offset).max(have));
                self.damage.push(Damage { error, missing_bytes });
                continue;
            };
            let (trace, cpu) = (stream.trace, stream.file.cpu());
            let more = !stream.waiting.is_empty() || stream.prime(&mut self.names);
            if more {
                self.requeue_first(number);
            } else {
                self.order.pop_front();
            }
            return Ok(Some(self.entry(item, trace, cpu)));
        }
    }

    /// The end, or the damage because of which there was nothing before it.
    fn end(&mut self) -> Result<Option<Entry>, TraceError> {
        let is_first = !std::mem::replace(&mut self.has_ended, true);
        let nothing_told = is_first && self.genesis_ns.is_none() && !self.damage.is_empty();
        if nothing_told { Err(self.damage.remove(0).error) } else { Ok(None) }
    }

    fn read_pipe(&mut self) -> Result<Option<Entry>, TraceError> {
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
            Err(error) => self.damage.push(Damage { error, missing_bytes: None }),
        }
        self.end()
    }

    /// Files that were not read to their end, so far.
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// An event as it is told: its time counts from the first one.
    fn entry(&mut self, Item { mut record, data }: Item, trace: usize, cpu: u32) -> Entry {
        let genesis_ns = *self.genesis_ns.get_or_insert(record.time_ns);
        record.time_ns = record.time_ns.wrapping_sub(genesis_ns);
        Entry { record, data, trace, cpu }
    }

    /// What whoever reads the trace should know of it.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let late = self.pipe.as_ref().map_or(0, Pipe::late);
        let late = (late > 0).then(|| {
            format!("standard input: {late} events came so late that they are told out of order")
        });
        self.notes.iter().cloned().chain(late).collect()
    }

    /// Names of processes and devices that were read so far.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Names of processes and devices, to be changed.
    pub fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// How far it is, 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let read: u64 = self.streams.iter().map(|stream| stream.file.offset()).sum();
        let bytes: u64 = self.streams.iter().filter_map(|stream| stream.len_bytes).sum();
        if bytes == 0 { 0.0 } else { (read as f64 / bytes as f64).min(1.0) }
    }

    /// Files, each with the number of its trace and its CPU.
    pub fn files(&self) -> impl Iterator<Item = (usize, u32, &Path)> {
        self.streams.iter().map(|stream| (stream.trace, stream.file.cpu(), stream.file.path()))
    }

    fn time_at(&self, place: usize) -> u64 {
        self.streams[self.order[place]].first_time()
    }

    /// The first stream has told an event: it stays first unless the next one is now earlier.
    fn requeue_first(&mut self, number: usize) {
        let time = self.streams[number].first_time();
        if self.order.len() > 1 && time > self.time_at(1) {
            self.order.pop_front();
            self.queue(number);
        }
    }

    /// Puts a stream into the order: before the first if it is earlier, else behind it and behind
    /// all that follow and are earlier.
    fn queue(&mut self, number: usize) {
        let time = self.streams[number].first_time();
        if self.order.is_empty() || time < self.time_at(0) {
            self.order.push_front(number);
            return;
        }
        let mut place = 1;
        while place < self.order.len() && self.time_at(place) < time {
            place += 1;
        }
        self.order.insert(place, number);
    }
}

#[cfg(test)]
mod tests;
