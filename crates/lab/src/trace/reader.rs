//! `Reader`: the files of a trace as one stream of events, in blkparse's order, in constant memory.
//!
//! Owns the files and at most `BATCH` records of each. The order is that of blkparse and btt, since
//! spans and lines are only the same if the order is: files are merged by the time of their first
//! waiting event, and a file's own order stays, also where its times step back a little, as those
//! of an interrupt do that came between a stamp and its record. Of equal times, the file that gave
//! the last event goes on; a file that comes up again goes behind the first that is waiting, before
//! all others that are not earlier. Names of processes count from when their record is read, which
//! is up to a batch ahead of when it is due, again as in blkparse.
//! Called by the verbs of `millrace trace`; calls `CpuFile`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use millrace_block::blktrace::{Note, Record, category};
use millrace_runtime::trace_file;

use super::file::{CpuFile, Item};
use super::{Names, TraceError};

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
    /// The trace `name`, in `dir` if there is one. `NAME.blktrace.N`, one file of it, names it too.
    #[must_use]
    pub fn new(name: &str, dir: Option<&Path>) -> TraceName {
        let name = name.find(".blktrace.").map_or(name, |at| &name[..at]);
        TraceName { base: dir.map_or_else(|| name.into(), |dir| dir.join(name)) }
    }

    /// Its name without the folder, as reports show it.
    #[must_use]
    pub fn name(&self) -> String {
        self.base.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn file(&self, cpu: u32) -> PathBuf {
        trace_file(&self.base, cpu)
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

    /// Reads a batch; whether there is anything to tell.
    fn prime(&mut self, names: &mut Names) -> bool {
        while !self.ended && self.waiting.len() < BATCH {
            match self.file.read() {
                Ok(Some(item)) if is_event(&item.record) => {
                    if item.record.note() == Some(Note::Message) {
                        names.add_message(item.record.device, &item.data);
                    }
                    self.last_ns = item.record.time_ns;
                    self.waiting.push_back(item);
                }
                Ok(Some(item)) => note(&item, names),
                Ok(None) => self.ended = true,
                Err(error) => (self.error, self.ended) = (Some(error), true),
            }
        }
        !self.waiting.is_empty() || self.error.is_some()
    }
}

/// Whether a record has a place in the order: all but notes, and messages of those.
fn is_event(record: &Record) -> bool {
    !record.has(category::NOTIFY) || record.note() == Some(Note::Message)
}

fn note(item: &Item, names: &mut Names) {
    if item.record.note() == Some(Note::Process) {
        names.add(item.record.pid, &item.data);
    }
}

/// Reads traces.
pub struct Reader<R = BufReader<File>> {
    streams: Vec<Stream<R>>,
    /// Streams that have something waiting; whose turn it is, first.
    order: VecDeque<usize>,
    names: Names,
    genesis_ns: u64,
    bytes: u64,
    failed: bool,
}

impl Reader {
    /// Opens traces: of each the files from CPU 0 on, up to the first number without a file.
    ///
    /// # Errors
    /// If a trace has no file or only empty ones, or a file cannot be opened. A broken first record
    /// is told by the first `read`.
    pub fn open(names: &[TraceName]) -> Result<Reader, TraceError> {
        let mut inputs = Vec::new();
        let mut bytes = 0;
        for (trace, name) in names.iter().enumerate() {
            let before = bytes;
            for cpu in 0.. {
                let path = name.file(cpu);
                let Some((file, len)) = open(&path)? else { break };
                bytes += len;
                if len > 0 {
                    let input = BufReader::with_capacity(BUFFER_BYTES, file);
                    inputs.push((trace, CpuFile::new(path, cpu, input)));
                }
            }
            if bytes == before {
                let first = name.file(0);
                return Err(match first.exists() {
                    true => TraceError::Empty { first },
                    false => TraceError::Missing { first },
                });
            }
        }
        Ok(Reader::of(inputs, bytes))
    }
}

/// A file and its length; none if there is none.
fn open(path: &Path) -> Result<Option<(File, u64)>, TraceError> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    match opened {
        Ok((len, file)) => Ok(Some((file, len))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TraceError::Io { file: path.into(), offset: 0, source }),
    }
}

impl<R: Read> Reader<R> {
    /// Reads one trace from the inputs of CPUs 0, 1 and so on, instead of from files.
    pub fn from_inputs(inputs: Vec<R>) -> Reader<R> {
        let file =
            |(cpu, input)| (0, CpuFile::new(format!("input.blktrace.{cpu}").into(), cpu, input));
        Reader::of((0..).zip(inputs).map(file).collect(), 0)
    }

    fn of(inputs: Vec<(usize, CpuFile<R>)>, bytes: u64) -> Reader<R> {
        let mut reader = Reader {
            streams: Vec::with_capacity(inputs.len()),
            order: VecDeque::new(),
            names: Names::default(),
            genesis_ns: 0,
            bytes,
            failed: false,
        };
        for (trace, file) in inputs {
            let (waiting, number) = (VecDeque::new(), reader.streams.len());
            let stream = Stream { trace, file, waiting, last_ns: 0, error: None, ended: false };
            reader.streams.push(stream);
            if reader.streams[number].prime(&mut reader.names) {
                reader.queue(number);
            }
        }
        let first = reader.order.front().map(|number| reader.streams[*number].first_time());
        reader.genesis_ns = first.unwrap_or(0);
        reader
    }

    /// The next event; none at the end.
    ///
    /// # Errors
    /// If a file is broken. What came before was told; there is nothing after it.
    pub fn read(&mut self) -> Result<Option<Entry>, TraceError> {
        let Some(&number) = self.order.front().filter(|_| !self.failed) else { return Ok(None) };
        let stream = &mut self.streams[number];
        let Some(item) = stream.waiting.pop_front() else {
            self.failed = true;
            let error = stream.error.take();
            return Err(error.expect("a stream without either is not in the order"));
        };
        let (trace, cpu) = (stream.trace, stream.file.cpu());
        let more = !stream.waiting.is_empty() || stream.prime(&mut self.names);
        if more {
            self.requeue_first(number);
        } else {
            self.order.pop_front();
        }
        let mut record = item.record;
        record.time_ns = record.time_ns.wrapping_sub(self.genesis_ns);
        Ok(Some(Entry { record, data: item.data, trace, cpu }))
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
        if self.bytes == 0 { 0.0 } else { (read as f64 / self.bytes as f64).min(1.0) }
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
