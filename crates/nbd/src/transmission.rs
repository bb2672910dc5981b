//! Requests of the transmission phase: parsing and validation.
//!
//! Each request is checked against all rules here, before it reaches the block layer.
//!
//! Invariants: [`parse`] accepts only the negotiated header. After [`RequestVerdict::Accept`] the
//! range is inside the export and aligned to its blocks, the flags are valid for the command, and a
//! payload fits [`RequestLimits::payload_bytes_max`]. A refusal states the number of bytes to
//! discard, so that the start of the next request is known. Specification: "Request message",
//! "Command flags", "Request types", "Error values".

use crate::error::{Errno, ProtocolError};
use crate::export::{ExportInfo, ReplyStyle, Session, TransmissionFlags};
use crate::wire::{
    CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA,
    CMD_FLAG_NO_HOLE, CMD_FLAG_PAYLOAD_LEN, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM,
    CMD_WRITE, CMD_WRITE_ZEROES, EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, REQUEST_BYTES,
    REQUEST_MAGIC, Reader, Writer,
};

/// Largest payload of a read or write in bytes, whatever the export allows.
pub const PAYLOAD_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Maximum payload of a refused request, in bytes, that is received and discarded. A longer payload
/// ends the connection.
pub const DRAIN_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Command of a request.
#[allow(missing_docs)] // The specification's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    Read,
    Write,
    Disc,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    Unknown(u16),
}

impl Command {
    /// Returns the command with this number.
    pub const fn from_wire(number: u16) -> Self {
        match number {
            CMD_READ => Command::Read,
            CMD_WRITE => Command::Write,
            CMD_DISC => Command::Disc,
            CMD_FLUSH => Command::Flush,
            CMD_TRIM => Command::Trim,
            CMD_CACHE => Command::Cache,
            CMD_WRITE_ZEROES => Command::WriteZeroes,
            CMD_BLOCK_STATUS => Command::BlockStatus,
            other => Command::Unknown(other),
        }
    }

    /// Returns the number of this command.
    pub const fn to_wire(self) -> u16 {
        match self {
            Command::Read => CMD_READ,
            Command::Write => CMD_WRITE,
            Command::Disc => CMD_DISC,
            Command::Flush => CMD_FLUSH,
            Command::Trim => CMD_TRIM,
            Command::Cache => CMD_CACHE,
            Command::WriteZeroes => CMD_WRITE_ZEROES,
            Command::BlockStatus => CMD_BLOCK_STATUS,
            Command::Unknown(number) => number,
        }
    }
}

/// A parsed request, not validated yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Identifier chosen by the client, repeated in the reply.
    pub cookie: u64,
    /// Command flags, as `CMD_FLAG_*` bits.
    pub flags: u16,
    /// Command to execute.
    pub command: Command,
    /// Offset of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes. It has 32 bits unless extended headers were negotiated.
    pub length: u64,
}

impl Request {
    /// Returns the length of the payload after the header, in bytes.
    pub fn payload_bytes(&self, style: ReplyStyle) -> u64 {
        let follows = match style {
            ReplyStyle::Extended => self.flags & CMD_FLAG_PAYLOAD_LEN != 0,
            _ => self.command == Command::Write,
        };
        if follows { self.length } else { 0 }
    }

    /// Returns true if the client set this `CMD_FLAG_*`.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Parses the request header at the front of `input`. Returns the request and the length of its
/// header in bytes (28, or 32 if extended); `None` if the header is incomplete.
///
/// # Errors
/// [`ProtocolError::BadMagic`] if the next bytes are not a request; the connection must then be
/// closed.
pub fn parse(input: &[u8], session: &Session) -> Result<Option<(Request, usize)>, ProtocolError> {
    let (expected, header_bytes) = match session.style {
        ReplyStyle::Extended => (EXTENDED_REQUEST_MAGIC, EXTENDED_REQUEST_BYTES),
        _ => (REQUEST_MAGIC, REQUEST_BYTES),
    };
    let mut reader = Reader::new(input);
    let Some(found) = reader.u32() else { return Ok(None) };
    ProtocolError::check_magic("a request", found.into(), expected.into())?;
    Ok(read_request(&mut reader, session.style).map(|request| (request, header_bytes)))
}

fn read_request(reader: &mut Reader<'_>, style: ReplyStyle) -> Option<Request> {
    let flags = reader.u16()?;
    let command = Command::from_wire(reader.u16()?);
    let cookie = reader.u64()?;
    let offset = reader.u64()?;
    let length = match style {
        ReplyStyle::Extended => reader.u64()?,
        _ => reader.u32()?.into(),
    };
    Some(Request { cookie, flags, command, offset, length })
}

/// Limits for requests to one export in one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Transmission flags that the server announced to the client.
    pub flags: TransmissionFlags,
    /// Alignment of offsets and lengths in bytes, a power of two; 1 if the client did not request
    /// block sizes.
    pub block_min: u32,
    /// Largest read or write in bytes.
    pub payload_bytes_max: u64,
    /// Maximum payload of a refused request, in bytes, that is received and discarded. A longer
    /// payload ends the connection.
    pub drain_bytes_max: u64,
}

impl RequestLimits {
    /// Returns the limits for `export` in this session.
    pub fn new(export: &ExportInfo, session: &Session) -> Self {
        RequestLimits {
            size_bytes: export.size_bytes,
            flags: export.flags.negotiated(session.style),
            block_min: if session.block_sizes { export.block_min } else { 1 },
            payload_bytes_max: PAYLOAD_BYTES_MAX.min(export.block_max.into()),
            drain_bytes_max: DRAIN_BYTES_MAX,
        }
    }
}

/// Result of validating a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestVerdict {
    /// Execute the request. For [`Command::Disc`]: close the connection once the requests in flight
    /// have ended.
    Accept,
    /// Refuse the request, and send an error reply.
    Refuse {
        /// The error of the reply.
        errno: Errno,
        /// Length of the payload to discard, in bytes.
        drain_bytes: u64,
        /// Reason of the refusal, sent as the text of an error chunk.
        why: &'static str,
    },
    /// Close the connection, for this reason.
    Disconnect(&'static str),
}

/// Validates `request` against the export's limits.
pub fn check(request: &Request, rules: &RequestLimits, session: &Session) -> RequestVerdict {
    if request.command == Command::Disc {
        return RequestVerdict::Accept;
    }
    let drain_bytes = request.payload_bytes(session.style);
    if drain_bytes > rules.drain_bytes_max {
        return RequestVerdict::Disconnect("the payload of a request is too long to discard");
    }
    let checked = check_flags(request, rules, session)
        .and_then(|()| check_command(request, rules, session))
        .and_then(|()| check_range(request, rules));
    match checked {
        Ok(()) => RequestVerdict::Accept,
        Err((errno, why)) => RequestVerdict::Refuse { errno, drain_bytes, why },
    }
}

type CheckResult = Result<(), (Errno, &'static str)>;

fn einval(conditions: &[(bool, &'static str)]) -> CheckResult {
    match conditions.iter().find(|(holds, _)| *holds) {
        Some((_, why)) => Err((Errno::Einval, why)),
        None => Ok(()),
    }
}

fn check_flags(request: &Request, rules: &RequestLimits, session: &Session) -> CheckResult {
    let chunks = session.style != ReplyStyle::Simple;
    let offers = |flag| rules.flags.contains(flag);
    let mut known = match request.command {
        Command::Read if chunks && offers(TransmissionFlags::DF) => CMD_FLAG_DF,
        Command::Write if session.style == ReplyStyle::Extended => CMD_FLAG_PAYLOAD_LEN,
        Command::WriteZeroes if offers(TransmissionFlags::FAST_ZERO) => {
            CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO
        }
        Command::WriteZeroes => CMD_FLAG_NO_HOLE,
        Command::BlockStatus => CMD_FLAG_REQ_ONE,
        _ => 0,
    };
    if offers(TransmissionFlags::FUA) {
        known |= CMD_FLAG_FUA;
    }
    let no_payload = session.style == ReplyStyle::Extended
        && request.command == Command::Write
        && !request.has(CMD_FLAG_PAYLOAD_LEN);
    einval(&[
        (request.flags & !known != 0, "a flag is not valid for the command"),
        (no_payload, "a write with an extended header must have the flag PAYLOAD_LEN"),
    ])
}

fn check_command(request: &Request, rules: &RequestLimits, session: &Session) -> CheckResult {
    let writes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
    if writes && rules.flags.contains(TransmissionFlags::READ_ONLY) {
        return Err((Errno::Eperm, "the export is read-only"));
    }
    let lacks = |flag| !rules.flags.contains(flag);
    let missing = match request.command {
        Command::Flush => lacks(TransmissionFlags::FLUSH),
        Command::Trim => lacks(TransmissionFlags::TRIM),
        Command::Cache => lacks(TransmissionFlags::CACHE),
        Command::WriteZeroes => lacks(TransmissionFlags::WRITE_ZEROES),
        Command::BlockStatus => session.base_allocation.is_none(),
        Command::Unknown(_) => true,
        Command::Read | Command::Write | Command::Disc => false,
    };
    einval(&[(missing, "the server did not offer this command")])
}

fn check_range(request: &Request, rules: &RequestLimits) -> CheckResult {
    let (offset, length) = (request.offset, request.length);
    if request.command == Command::Flush {
        return einval(&[(
            (offset, length) != (0, 0),
            "a flush must not have an offset or a length",
        )]);
    }
    let unaligned = (offset | length) & (u64::from(rules.block_min) - 1) != 0;
    let payload = matches!(request.command, Command::Read | Command::Write);
    einval(&[
        (length == 0, "the length is 0"),
        (unaligned, "the range is not aligned to the minimum block size"),
        (payload && length > rules.payload_bytes_max, "the length exceeds the maximum block size"),
    ])?;
    if offset.checked_add(length).is_some_and(|end| end <= rules.size_bytes) {
        return Ok(());
    }
    match request.command {
        Command::Write | Command::WriteZeroes => {
            Err((Errno::Enospc, "the range is beyond the end of the export"))
        }
        _ => Err((Errno::Einval, "the range is beyond the end of the export")),
    }
}

/// Encodes the header of `request`. Returns the length of the header in bytes: 32 for an extended
/// header, otherwise 28. The payload of a write follows the header. In the extended header of a
/// write, this function sets the payload flag.
pub fn encode_request(
    request: &Request,
    style: ReplyStyle,
    out: &mut [u8; EXTENDED_REQUEST_BYTES],
) -> usize {
    let &Request { cookie, flags, command, offset, length } = request;
    let mut writer = Writer::new(out);
    if style == ReplyStyle::Extended {
        let payload = if command == Command::Write { CMD_FLAG_PAYLOAD_LEN } else { 0 };
        writer.u32(EXTENDED_REQUEST_MAGIC).u16(flags | payload).u16(command.to_wire());
        return writer.u64(cookie).u64(offset).u64(length).len();
    }
    let length = u32::try_from(length).expect("compact requests have 32-bit lengths");
    writer.u32(REQUEST_MAGIC).u16(flags).u16(command.to_wire());
    writer.u64(cookie).u64(offset).u32(length).len()
}
