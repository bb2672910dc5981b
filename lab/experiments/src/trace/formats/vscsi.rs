//! The traces recorded by VMware's vscsiStats and published by CloudPhysics: binary records of SCSI
//! commands.
//!
//! Little-endian, without a file header. Version 1 has 32 bytes per record: serial number, length
//! in bytes, number of scatter-gather elements (32 bits each), command and version (16), logical
//! block, microseconds (64). Version 2 has 40: command, version (16), serial number, length,
//! elements (32), block, microseconds, response time in microseconds (64). The upper byte of the
//! version is 1 or 2. Blocks have 512 bytes. Commands are SCSI operation codes; WRITE SAME is taken
//! as write-zeroes; commands that neither read nor write nor flush are skipped and counted.
//!
//! Source: libCacheSim's `traceReader/generalReader/vscsi.h` and README, after CloudPhysics;
//! Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST '15. Operation codes: SBC-4.

use std::io::Read;

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::{FilePosition, ReadError};
use crate::trace::formats::SECTOR_BYTES;
use crate::trace::input::{InputStream, ReadGauge};
use crate::trace::parser::{Problem, TraceParser, scaled};

/// Record size in bytes, by version.
const RECORD_BYTES: [usize; 2] = [32, 40];
/// Number of records that detection needs, unless the trace is a single record.
const RECORDS_TRIED: usize = 2;

/// Detects the version of a trace from its first bytes: every complete record must state it.
pub(in crate::trace) fn version(head: &[u8]) -> Option<u8> {
    [2, 1].into_iter().find(|version| {
        let bytes = RECORD_BYTES[usize::from(version - 1)];
        let mut records = head.chunks_exact(bytes);
        let says = |record: &[u8]| record[if *version == 1 { 15 } else { 3 }] == *version;
        (head.len() == bytes || head.len() >= bytes * RECORDS_TRIED) && records.all(says)
    })
}

/// Reader of a vscsi trace.
pub(in crate::trace) struct Vscsi {
    file: String,
    gauge: ReadGauge,
    input: Box<dyn std::io::BufRead + Send>,
    version: u8,
    offset: u64,
    skipped: u64,
}

impl Vscsi {
    /// Creates a reader; the version is 1 unless the first record states 2.
    pub(in crate::trace) fn new(input: InputStream) -> Vscsi {
        let (file, gauge) = (input.label.clone(), input.gauge.clone());
        let version = if input.head.get(3) == Some(&2) { 2 } else { 1 };
        Vscsi { file, gauge, input: input.into_reader(), version, offset: 0, skipped: 0 }
    }

    /// Returns the next record; None at the end.
    fn record(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        let want = RECORD_BYTES[usize::from(self.version - 1)];
        let mut record = Vec::with_capacity(want);
        let read = self.input.by_ref().take(want as u64).read_to_end(&mut record);
        let place = FilePosition::Byte(self.offset);
        read.map_err(|source| ReadError::Io { file: self.file.clone(), place, source })?;
        match record.len() {
            0 => Ok(None),
            have if have < want => {
                Err(self.broken(format!("the trace ends inside a record ({have} of {want} bytes)")))
            }
            _ => Ok(Some(record)),
        }
    }

    fn broken(&self, problem: Problem) -> ReadError {
        ReadError::Broken {
            file: self.file.clone(),
            place: FilePosition::Byte(self.offset),
            problem,
        }
    }

    fn io(&self, record: &[u8], devices: &mut DeviceNames) -> Result<Option<TraceIo>, Problem> {
        let short = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
        let number = |at: usize, bytes: usize| {
            let bytes = record[at..at + bytes].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (command, version, len, rest) = match self.version {
            1 => (short(12), short(14), number(4, 4), 16),
            _ => (short(0), short(2), number(8, 4), 16),
        };
        if version >> 8 != u16::from(self.version) {
            let (found, first) = (version >> 8, self.version);
            return Err(format!("a record of version {found} in a trace of version {first}"));
        }
        let Some((op, fua)) = operation(command) else { return Ok(None) };
        let latency_us = (self.version == 2).then(|| number(rest + 16, 8));
        let latency_ns = latency_us.map(|us| scaled("the response time", us, 1_000)).transpose()?;
        Ok(Some(TraceIo {
            at_ns: scaled("the time", number(rest + 8, 8), 1_000)?,
            device: devices.number("vscsi")?,
            op,
            fua,
            offset_bytes: match op {
                Op::Flush => 0,
                _ => scaled("the block", number(rest, 8), SECTOR_BYTES)?,
            },
            len_bytes: if op == Op::Flush { 0 } else { len },
            latency_ns,
        }))
    }
}

/// Returns the operation of a SCSI command, and true if it implies FUA.
fn operation(command: u16) -> Option<(Op, bool)> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some((Op::Read, false)),
        0x0a | 0x2a | 0xaa | 0x8a => Some((Op::Write, false)),
        // WRITE AND VERIFY compares the data on the medium, so it is durable on completion.
        0x2e | 0xae | 0x8e => Some((Op::Write, true)),
        0x35 | 0x91 => Some((Op::Flush, false)),
        0x41 | 0x93 => Some((Op::WriteZeroes, false)),
        _ => None,
    }
}

impl TraceParser for Vscsi {
    fn next(&mut self, devices: &mut DeviceNames) -> Result<Option<TraceIo>, ReadError> {
        loop {
            let Some(record) = self.record()? else { return Ok(None) };
            let io = self.io(&record, devices).map_err(|problem| self.broken(problem))?;
            self.offset += record.len() as u64;
            match io {
                Some(io) => return Ok(Some(io)),
                None => self.skipped += 1,
            }
        }
    }

    fn notes(&self) -> Vec<String> {
        let skipped = self.skipped;
        let note =
            || format!("{skipped} SCSI commands that neither move data nor flush were skipped");
        (skipped > 0).then(note).into_iter().collect()
    }

    fn progress(&self) -> (u64, u64) {
        self.gauge.progress()
    }
}
