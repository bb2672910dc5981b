//! The traces recorded by VMware's vscsiStats and published by CloudPhysics: binary records of SCSI
//! commands.
//!
//! The file has no header, and all numbers are little-endian. Fields of a record, with their sizes
//! in bits:
//! - Version 1, 32 bytes: serial number (32), data length in bytes (32), number of scatter-gather
//!   elements (32), command (16), version (16), logical block (64), time in microseconds (64).
//! - Version 2, 40 bytes: command (16), version (16), serial number (32), data length in bytes
//!   (32), number of scatter-gather elements (32), logical block (64), time in microseconds (64),
//!   response time in microseconds (64).
//!
//! The upper byte of the version is 1 or 2. A logical block has 512 bytes. Commands are SCSI
//! operation codes. WRITE SAME is taken as write-zeroes. Other commands that neither read nor write
//! nor flush are skipped and counted.
//!
//! Source: libCacheSim's `traceReader/generalReader/vscsi.h` and README, after CloudPhysics;
//! Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST '15. Operation codes: SBC-4.

use millrace_block::Op;

use super::SECTOR_BYTES;
use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::ReadError;
use crate::trace::input::{InputStream, TraceRecords};
use crate::trace::parser::{Problem, TraceParser, scaled};
use crate::trace::pending::StreamState;

const RECORD_BYTES: [usize; 2] = [32, 40];
/// Number of complete records that detection needs. A trace of one record needs only one.
const RECORDS_TRIED: usize = 2;

/// Returns true if every complete record in a trace's first bytes has the same version.
pub(in crate::trace) fn has_version(head: &[u8]) -> bool {
    [(RECORD_BYTES[0], 15, 1), (RECORD_BYTES[1], 3, 2)].into_iter().any(|(bytes, at, version)| {
        let mut records = head.chunks_exact(bytes);
        let is_enough = head.len() == bytes || head.len() >= bytes * RECORDS_TRIED;
        is_enough && records.all(|record| record[at] == version)
    })
}

pub(in crate::trace) struct Vscsi {
    records: TraceRecords,
    version: u8,
    skipped: u64,
    io: Option<TraceIo>,
}

impl Vscsi {
    /// Creates a reader. The version is 2 if the first record says so, otherwise 1.
    pub(in crate::trace) fn boxed(input: InputStream) -> Box<dyn TraceParser> {
        let version = if input.head().get(3) == Some(&2) { 2 } else { 1 };
        Box::new(Vscsi { records: TraceRecords::new(input), version, skipped: 0, io: None })
    }

    fn io(&self, record: &[u8], devices: &mut DeviceNames) -> Result<Option<TraceIo>, Problem> {
        let number = |at: usize, bytes: usize| {
            let bytes = record[at..at + bytes].iter().rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (command, version, len) = match self.version {
            1 => (number(12, 2), number(14, 2), number(4, 4)),
            _ => (number(0, 2), number(2, 2), number(8, 4)),
        };
        if version >> 8 != u64::from(self.version) {
            let (found, first) = (version >> 8, self.version);
            return Err(format!("a record of version {found} in a trace of version {first}"));
        }
        let Some((op, fua)) = operation(command) else { return Ok(None) };
        let latency_us = (self.version == 2).then(|| number(32, 8));
        let latency_ns = latency_us.map(|us| scaled("the response time", us, 1_000)).transpose()?;
        Ok(Some(TraceIo {
            at_ns: scaled("the time", number(24, 8), 1_000)?,
            device: devices.number("vscsi")?,
            op,
            fua,
            offset_bytes: match op {
                Op::Flush => 0,
                _ => scaled("the block", number(16, 8), SECTOR_BYTES)?,
            },
            len_bytes: if op == Op::Flush { 0 } else { len },
            latency_ns,
        }))
    }
}

/// Returns the operation of a SCSI command, and true if the command implies FUA.
fn operation(command: u64) -> Option<(Op, bool)> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some((Op::Read, false)),
        0x0a | 0x2a | 0xaa | 0x8a => Some((Op::Write, false)),
        // WRITE AND VERIFY is durable on completion, because the drive reads the data back from the
        // medium to verify it.
        0x2e | 0xae | 0x8e => Some((Op::Write, true)),
        0x35 | 0x91 => Some((Op::Flush, false)),
        0x41 | 0x93 => Some((Op::WriteZeroes, false)),
        _ => None,
    }
}

impl TraceParser for Vscsi {
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError> {
        let bytes = RECORD_BYTES[usize::from(self.version - 1)];
        let Some(record) = self.records.begin(bytes)? else { return Ok(StreamState::Ended) };
        self.io = self.io(&record, devices).map_err(|problem| self.records.broken(problem))?;
        self.skipped += u64::from(self.io.is_none());
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, _more: StreamState) -> Option<TraceIo> {
        self.io.take()
    }

    fn notes(&self) -> Vec<String> {
        let skipped = self.skipped;
        let note =
            || format!("{skipped} SCSI commands that neither move data nor flush were skipped");
        (skipped > 0).then(note).into_iter().collect()
    }
}
