//! The transaction log of nbd-server (`transactionlog`): requests and replies as on the wire.
//!
//! Big-endian: requests (28 bytes: magic, flags and command, cookie, offset, length), simple
//! replies (16: magic, error, cookie), headers of structured replies (20), and the log's own
//! records, which look like requests and say whether each write is followed by its data. The log
//! has no times: every I/O arrives at 0, in the order of the log, as a note tells the user.
//!
//! Source: doc/proto.md of NBD, "Transmission" and "Reserved Magic values"; nbd-trdump(1).

use std::io::{self, Read};

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::{FilePosition, ReadError};
use crate::trace::input::{InputStream, ReadGauge};
use crate::trace::parser::{Problem, TraceParser};

/// Magic of a request.
const REQUEST: u32 = 0x2560_9513;
/// Magic of the log's own records.
const LOG: u32 = 0x2560_9514;
/// Magic of a simple reply.
const REPLY: u32 = 0x6744_6698;
/// Magic of a structured reply chunk.
const CHUNK: u32 = 0x668e_33ef;
/// Value of the offset field in the log's own records.
const LOG_FROM: u64 = 0x4a93_ba39_a54f_31b6;
/// Command of the log's record that turns logging of written data on and off.
const SET_DATALOG: u32 = 1;
/// Command flag of NBD that asks for FUA.
const FLAG_FUA: u16 = 1;

/// Returns true if a trace that begins with these bytes is a transaction log.
pub(in crate::trace) fn is_log(head: &[u8]) -> bool {
    let magic = head.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    matches!(magic, Some(REQUEST | LOG)) && head.len() >= 28
}

/// Reader of a transaction log.
pub(in crate::trace) struct Trlog {
    file: String,
    gauge: ReadGauge,
    input: Box<dyn io::BufRead + Send>,
    with_data: bool,
    offset: u64,
}

impl Trlog {
    pub(in crate::trace) fn new(input: InputStream) -> Trlog {
        let (file, gauge) = (input.label.clone(), input.gauge.clone());
        Trlog { file, gauge, input: input.into_reader(), with_data: false, offset: 0 }
    }

    /// Reads `N` bytes; returns None if the log ends before the first of them.
    fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>, ReadError> {
        let mut bytes = Vec::with_capacity(N);
        let read = self.input.by_ref().take(N as u64).read_to_end(&mut bytes);
        read.map_err(|source| self.failed(source))?;
        match <[u8; N]>::try_from(bytes) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(bytes) if bytes.is_empty() => Ok(None),
            Err(bytes) => Err(self.cut(bytes.len() as u64, N as u64)),
        }
    }

    fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io { file: self.file.clone(), place: FilePosition::Byte(self.offset), source }
    }

    fn broken(&self, problem: Problem) -> ReadError {
        ReadError::Broken {
            file: self.file.clone(),
            place: FilePosition::Byte(self.offset),
            problem,
        }
    }

    fn cut(&self, have: u64, want: u64) -> ReadError {
        self.broken(format!("the log ends inside a record ({have} of {want} bytes)"))
    }

    /// Returns the next request; None at the end.
    fn next_request(&mut self) -> Result<Option<LoggedRequest>, ReadError> {
        loop {
            let Some(magic) = self.take()? else { return Ok(None) };
            match u32::from_be_bytes(magic) {
                REQUEST => {
                    let request = self.request()?;
                    self.offset += 28;
                    self.pass_data(&request)?;
                    return Ok(Some(request));
                }
                LOG => {
                    let option = self.request()?;
                    if option.from == LOG_FROM && u32::from(option.command) == SET_DATALOG {
                        self.with_data = option.len != 0;
                    }
                    self.offset += 28;
                }
                REPLY => self.pass::<12>()?,
                CHUNK => self.pass::<16>()?,
                other => {
                    let known = "a request, a reply or an option of the log";
                    return Err(self.broken(format!("magic {other:#010x}; {known} is expected")));
                }
            }
        }
    }

    /// Reads the rest of a request, after its magic.
    fn request(&mut self) -> Result<LoggedRequest, ReadError> {
        let bytes: [u8; 24] = self.take()?.ok_or_else(|| self.cut(4, 28))?;
        let number = |at: usize, bytes_len: usize| {
            let bytes = bytes[at..at + bytes_len].iter();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (flags, command) = (number(0, 2) as u16, number(2, 2) as u16);
        Ok(LoggedRequest { flags, command, from: number(12, 8), len: number(20, 4) as u32 })
    }

    /// Skips the rest of a record, after its magic.
    fn pass<const N: usize>(&mut self) -> Result<(), ReadError> {
        self.take::<N>()?.ok_or_else(|| self.cut(4, N as u64 + 4))?;
        self.offset += N as u64 + 4;
        Ok(())
    }

    /// Skips the data of a write.
    fn pass_data(&mut self, request: &LoggedRequest) -> Result<(), ReadError> {
        if !self.with_data || request.command != 1 {
            return Ok(());
        }
        let want = u64::from(request.len);
        let passed = io::copy(&mut self.input.by_ref().take(want), &mut io::sink());
        let passed = passed.map_err(|source| self.failed(source))?;
        if passed < want {
            return Err(self.cut(passed, want));
        }
        self.offset += want;
        Ok(())
    }
}

/// A request from the log.
struct LoggedRequest {
    flags: u16,
    command: u16,
    from: u64,
    len: u32,
}

impl TraceParser for Trlog {
    fn next(&mut self, devices: &mut DeviceNames) -> Result<Option<TraceIo>, ReadError> {
        loop {
            let Some(request) = self.next_request()? else { return Ok(None) };
            let op = match request.command {
                0 => Op::Read,
                1 => Op::Write,
                3 => Op::Flush,
                4 => Op::Discard,
                6 => Op::WriteZeroes,
                _ => continue,
            };
            let device = devices.number("nbd").map_err(|problem| self.broken(problem))?;
            let place = (request.from, u64::from(request.len));
            let (offset_bytes, len_bytes) = if op == Op::Flush { (0, 0) } else { place };
            return Ok(Some(TraceIo {
                at_ns: 0,
                device,
                op,
                fua: op.is_write() && request.flags & FLAG_FUA != 0,
                offset_bytes,
                len_bytes,
                latency_ns: None,
            }));
        }
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "a transaction log has no times: all I/Os arrive at time 0, in the order of the log"
                .into(),
        ]
    }

    fn progress(&self) -> (u64, u64) {
        self.gauge.progress()
    }
}
