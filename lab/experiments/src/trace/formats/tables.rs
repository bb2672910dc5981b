//! Text formats with one I/O per line, each described by a table of its columns (`ColumnTable`).
//!
//! To add a format, add a table here and a row in `format.rs`. Each table cites the definition of
//! its format.

use millrace_block::Op;

use super::SECTOR_BYTES;
use crate::trace::columns::{
    Action, Column, ColumnTable,
    TimeUnit::{Ns, Seconds},
};
use crate::trace::parser::{Fields, Problem};

use Column::{Device, DeviceNumber, Ignored, Latency, Length, Number, Offset, Time};

const READ: Action = Action::Io(Op::Read);
const WRITE: Action = Action::Io(Op::Write);
const FLUSH: Action = Action::Io(Op::Flush);

fn commas(text: &str) -> Result<Fields<'_>, Problem> {
    Ok(text.split(',').collect())
}

fn blanks(text: &str) -> Result<Fields<'_>, Problem> {
    Ok(text.split_whitespace().collect())
}

const CSV: ColumnTable =
    ColumnTable { example: "", head: None, split: commas, columns: &[], skipped: "", note: None };

/// Unit of a Windows filetime, in nanoseconds.
pub(in crate::trace) const TICK_NS: u64 = 100;

/// Microsoft Research Cambridge: one week of each volume of several servers. Times are Windows
/// filetimes (100 ns since 1601), which fit into 64 bits in nanoseconds until the year 2185. A
/// device is named `HOST_DISK`, like the files. Source: README.txt of the MSR Cambridge traces
/// (SNIA IOTTA 388); Narayanan et al., "Write Off-Loading", FAST '08.
pub(in crate::trace) static MSR: ColumnTable = ColumnTable {
    example: "128166372003061629,usr,0,Read,7014609920,24576,41286",
    columns: &[
        ("Timestamp", Time(Ns(TICK_NS))),
        ("Hostname", Device("")),
        ("DiskNumber", Device("_")),
        ("Type", Column::Op(&[("Read", READ), ("Write", WRITE)])),
        ("Offset", Offset(1)),
        ("Size", Length(1)),
        ("ResponseTime", Latency(Ns(TICK_NS))),
    ],
    ..CSV
};

/// SYSTOR '17: LUNs of a virtual desktop infrastructure, one hour per file. The last three of nine
/// decimals of a time are noise. Source: README.txt of the traces (SNIA IOTTA 4964); Lee et al.,
/// "Understanding storage traffic characteristics on enterprise virtual desktop infrastructure",
/// SYSTOR '17.
pub(in crate::trace) static SYSTOR: ColumnTable = ColumnTable {
    example: "1456095145.133076000,0.000806000,R,0,899056122368,131072",
    columns: &[
        ("Timestamp", Time(Seconds)),
        ("Response", Latency(Seconds)),
        ("IOType", Column::Op(&[("R", READ), ("W", WRITE), ("", Action::Skip)])),
        ("LUN", Device("LUN")),
        ("Offset", Offset(1)),
        ("Size", Length(1)),
    ],
    skipped: "lines without a type of I/O were skipped",
    ..CSV
};

/// Alibaba: a thousand cloud disks, times in microseconds since 1970. Source: README of
/// github.com/alibaba/block-traces; Li et al., "An In-Depth Analysis of Cloud Block Storage
/// Workloads in Large-Scale Production", IISWC '20.
pub(in crate::trace) static ALIBABA: ColumnTable = ColumnTable {
    example: "0,R,126703661056,4096,1577808000000046",
    columns: &[
        ("device_id", Device("")),
        ("opcode", Column::Op(&[("R", READ), ("W", WRITE)])),
        ("offset", Offset(1)),
        ("length", Length(1)),
        ("timestamp", Time(Ns(1_000))),
    ],
    ..CSV
};

/// Tencent's cloud block storage (CBS): some thousand disks. Source: README of the Tencent Block
/// Storage traces (SNIA IOTTA 27917); Zhang et al., "OSCA: An Online-Model Based Cache Allocation
/// Scheme in Cloud Block Storage Systems", ATC '20.
pub(in crate::trace) static TENCENT: ColumnTable = ColumnTable {
    example: "1538323199,1003027216,16,0,2313",
    columns: &[
        ("Timestamp", Time(Ns(1_000_000_000))),
        ("Offset", Offset(SECTOR_BYTES)),
        ("Size", Length(SECTOR_BYTES)),
        ("IOType", Column::Op(&[("0", READ), ("1", WRITE)])),
        ("VolumeID", Device("")),
    ],
    note: Some("the times are whole seconds, so I/Os of one second arrive together"),
    ..CSV
};

/// Storage Performance Council, used by UMass' Financial and WebSearch traces: application storage
/// unit, block (of 512 bytes in all published traces), bytes, operation, seconds. Source: SPC,
/// "Trace File Format Specification", revision 1.0.1.
pub(in crate::trace) static SPC: ColumnTable = ColumnTable {
    example: "0,303567,3584,w,0.026214",
    columns: &[
        ("ASU", DeviceNumber),
        ("LBA", Offset(SECTOR_BYTES)),
        ("Size", Length(1)),
        ("Opcode", Column::Op(&[("R", READ), ("W", WRITE)])),
        ("Timestamp", Time(Seconds)),
    ],
    ..CSV
};

/// Florida International University: fields separated by blanks, with digests of the data. Source:
/// README of the FIU traces (SNIA IOTTA 390 and 391); Koller and Rangaswami, "I/O Deduplication",
/// FAST '10.
pub(in crate::trace) static FIU: ColumnTable = ColumnTable {
    example: "89967195453000 4892 syslogd 904265560 8 W 6 0 531e779e...",
    split: around_operation,
    columns: &[
        ("the time", Time(Ns(1))),
        ("the process's number", Number),
        ("the process", Ignored),
        ("the sector", Offset(SECTOR_BYTES)),
        ("the size", Length(SECTOR_BYTES)),
        ("the operation", Column::Op(&[("R", READ), ("W", WRITE)])),
        ("the major number", Device("")),
        ("the minor number", Device(",")),
    ],
    ..CSV
};

/// Splits a line of the FIU format. Process names may contain blanks, so the fields after the name
/// are located by the operation: the first `R` or `W` with numbers on both sides.
fn around_operation(text: &str) -> Result<Fields<'_>, Problem> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let place = (5..words.len().saturating_sub(2)).find(|place| {
        let numbers = [place - 2, place - 1, place + 1, place + 2];
        let is_number = |at: &usize| words[*at].bytes().all(|byte| byte.is_ascii_digit());
        matches!(words[*place], "R" | "W") && numbers.iter().all(is_number)
    });
    let place = place.ok_or("no R or W between size and device; at least 8 fields are expected")?;
    let around = words[place - 2..=place + 2].iter().copied();
    Ok(words[..3].iter().copied().chain(around).collect())
}

const IOLOG_ACTIONS: Column = Column::Op(&[
    ("read", READ),
    ("write", WRITE),
    ("trim", Action::Io(Op::Discard)),
    ("sync", FLUSH),
    ("datasync", FLUSH),
    ("sync_file_range", FLUSH),
    ("wait", Action::Wait),
    ("add", Action::Nothing),
    ("open", Action::Nothing),
    ("close", Action::Nothing),
]);

/// fio's I/O log, version 2, as `write_iolog` writes it. It has no times except `wait` lines, in
/// microseconds since the previous wait. Source: fio's documentation, "Trace file format"; fio
/// 3.33.
pub(in crate::trace) static IOLOG: ColumnTable = ColumnTable {
    example: "/dev/sda read 4096 8192",
    head: Some("fio version 2 iolog"),
    split: blanks,
    columns: &[
        ("file", Device("")),
        ("action", IOLOG_ACTIONS),
        ("offset", Offset(1)),
        ("length", Length(1)),
    ],
    ..CSV
};

pub(in crate::trace) static IOLOG3: ColumnTable = ColumnTable {
    example: "1500 /dev/sda read 4096 8192",
    head: Some("fio version 3 iolog"),
    split: blanks,
    columns: &[
        ("timestamp", Time(Ns(1_000))),
        ("file", Device("")),
        ("action", IOLOG_ACTIONS),
        ("offset", Offset(1)),
        ("length", Length(1)),
    ],
    ..CSV
};
