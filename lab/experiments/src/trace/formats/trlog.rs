//! The transaction log of nbd-server (`transactionlog`): requests and replies as on the wire.
//!
//! Big-endian: requests (28 bytes: magic, flags and command, cookie, offset, length), simple
//! replies (16 bytes: magic, error, cookie), headers of structured replies (20 bytes), and the
//! log's own records, which have the form of requests and say if each write is followed by its
//! data. The log has no times: every I/O arrives at 0, in the order of the log, as a note tells the
//! user.
//!
//! Source: doc/proto.md of NBD, "Transmission" and "Reserved Magic values"; nbd-trdump(1).

use millrace_block::Op;

use crate::trace::TraceIo;
use crate::trace::devices::DeviceNames;
use crate::trace::error::ReadError;
use crate::trace::input::{InputStream, TraceRecords};
use crate::trace::parser::TraceParser;
use crate::trace::pending::StreamState;

/// Magic numbers of requests, of the log's own records, of simple replies, and of chunks of
/// structured replies.
const REQUEST: u64 = 0x2560_9513;
const LOG: u64 = 0x2560_9514;
const REPLY: u64 = 0x6744_6698;
const CHUNK: u64 = 0x668e_33ef;
/// Value of the offset field in records that set an option of the log. Such records are neither
/// requests nor replies.
const LOG_FROM: u64 = 0x4a93_ba39_a54f_31b6;
/// Command of an option record that says if later write requests in the log include their data.
const SET_DATALOG: u64 = 1;
/// Command flag of NBD that asks for FUA.
const FLAG_FUA: u64 = 1;

pub(in crate::trace) fn is_log(head: &[u8]) -> bool {
    head.len() >= 28 && matches!(number(&head[..4]), REQUEST | LOG)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(in crate::trace) struct Trlog {
    records: TraceRecords,
    with_data: bool,
    io: Option<TraceIo>,
}

impl Trlog {
    pub(in crate::trace) fn boxed(input: InputStream) -> Box<dyn TraceParser> {
        Box::new(Trlog { records: TraceRecords::new(input), with_data: false, io: None })
    }

    fn request(&mut self, devices: &mut DeviceNames) -> Result<(), ReadError> {
        let bytes = self.records.more(24)?;
        let (flags, command) = (number(&bytes[..2]), number(&bytes[2..4]));
        let (from, len_bytes) = (number(&bytes[12..20]), number(&bytes[20..]));
        let op = match command {
            0 => Op::Read,
            1 => Op::Write,
            3 => Op::Flush,
            4 => Op::Discard,
            6 => Op::WriteZeroes,
            _ => return Ok(()),
        };
        if op == Op::Write && self.with_data {
            self.records.pass(len_bytes)?;
        }
        let device = devices.number("nbd").map_err(|problem| self.records.broken(problem))?;
        let fua = op.is_write() && flags & FLAG_FUA != 0;
        let (offset_bytes, len_bytes) = if op == Op::Flush { (0, 0) } else { (from, len_bytes) };
        self.io = Some(TraceIo { device, op, fua, offset_bytes, len_bytes, ..TraceIo::EMPTY });
        Ok(())
    }
}

impl TraceParser for Trlog {
    fn step(&mut self, devices: &mut DeviceNames) -> Result<StreamState, ReadError> {
        let Some(magic) = self.records.begin(4)? else { return Ok(StreamState::Ended) };
        match number(&magic) {
            REQUEST => self.request(devices)?,
            LOG => {
                let bytes = self.records.more(24)?;
                if number(&bytes[12..20]) == LOG_FROM && number(&bytes[2..4]) == SET_DATALOG {
                    self.with_data = number(&bytes[20..]) != 0;
                }
            }
            REPLY => self.records.pass(12)?,
            CHUNK => self.records.pass(16)?,
            other => {
                let known = "a request, a reply or an option of the log";
                return Err(self
                    .records
                    .broken(format!("magic {other:#010x}; {known} is expected")));
            }
        }
        Ok(StreamState::ToCome)
    }

    fn pop(&mut self, _more: StreamState) -> Option<TraceIo> {
        self.io.take()
    }

    fn notes(&self) -> Vec<String> {
        let note =
            "a transaction log has no times: all I/Os arrive at time 0, in the order of the log";
        vec![note.into()]
    }
}
