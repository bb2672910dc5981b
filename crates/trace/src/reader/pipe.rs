//! `PipeReader`: sorts the records of all CPUs that `blktrace -o -` writes to a pipe.
//!
//! Each CPU's records arrive in batches, in order of time, after a delay. So events wait in a
//! window, sorted by time. The oldest event is returned once the newest is more than 2 s younger,
//! or once the window is full. An event that arrives after a younger one was returned is out of
//! order, and is counted. blkparse sorts in the same way for `-i -`.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use super::sequence::SequenceGaps;
use crate::file::{CpuFile, TraceRecord};
use crate::{TraceError, TraceNames};

/// Maximum memory of the waiting events, in bytes: room for about 200,000 events.
const WINDOW_BYTES: usize = 32 << 20;
/// Time within which a CPU's events must arrive; blktrace collects them twice a second.
const PATIENCE_NS: u64 = 2_000_000_000;

const CPUS_MAX: usize = 4_096;

pub(super) struct PipeReader<R> {
    file: CpuFile<R>,
    sequences: HashMap<u32, SequenceGaps>,
    /// Waiting events, sorted by time and then by order of arrival.
    waiting: BTreeMap<(u64, u64), TraceRecord>,
    bytes: usize,
    arrived: u64,
    told_ns: u64,
    late: u64,
    error: Option<TraceError>,
    ended: bool,
}

impl<R: Read> PipeReader<R> {
    pub(super) fn new(file: CpuFile<R>) -> Self {
        PipeReader {
            file,
            sequences: HashMap::new(),
            waiting: BTreeMap::new(),
            bytes: 0,
            arrived: 0,
            told_ns: 0,
            late: 0,
            error: None,
            ended: false,
        }
    }

    /// Returns the next event in order, or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the input is broken, after all events that precede the fault.
    pub(super) fn next(
        &mut self,
        names: &mut TraceNames,
    ) -> Result<Option<TraceRecord>, TraceError> {
        while !self.ended && !self.is_ripe() {
            match self.file.read() {
                Ok(Some(item)) => self.add(item, names),
                Ok(None) => self.ended = true,
                Err(error) => (self.error, self.ended) = (Some(error), true),
            }
        }
        let Some(((time_ns, _), item)) = self.waiting.pop_first() else {
            return self.error.take().map_or(Ok(None), Err);
        };
        self.bytes -= bytes_of(&item);
        self.late += u64::from(time_ns < self.told_ns);
        self.told_ns = self.told_ns.max(time_ns);
        Ok(Some(item))
    }

    pub(super) fn file(&self) -> &CpuFile<R> {
        &self.file
    }

    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Returns true if no event can still arrive that precedes the first waiting event.
    fn is_ripe(&self) -> bool {
        let (first, last) = (self.waiting.first_key_value(), self.waiting.last_key_value());
        let (Some(((first_ns, _), _)), Some(((last_ns, _), _))) = (first, last) else {
            return false;
        };
        self.bytes >= WINDOW_BYTES || last_ns - first_ns > PATIENCE_NS
    }

    fn add(&mut self, item: TraceRecord, names: &mut TraceNames) {
        let cpus = self.sequences.len();
        let cpu = item.record.cpu;
        if cpus < CPUS_MAX || self.sequences.contains_key(&cpu) {
            names.add_missing(self.sequences.entry(cpu).or_default().note(&item));
        }
        if super::takes_note(&item, names) {
            return;
        }
        self.arrived += 1;
        self.bytes += bytes_of(&item);
        self.waiting.insert((item.record.time_ns, self.arrived), item);
    }
}

fn bytes_of(item: &TraceRecord) -> usize {
    size_of::<((u64, u64), TraceRecord)>() + item.data.len()
}
