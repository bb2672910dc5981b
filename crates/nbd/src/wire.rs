//! Constants of the NBD wire format, and a reader and a writer of its big-endian integers.
//!
//! No other file contains a number of the protocol. Specification: "Values", and the magic numbers
//! in "Handshake" and "Transmission".
#![allow(missing_docs)] // Names of the specification; a comment says what a name does not.

/// First 8 bytes that a server sends: the letters `NBDMAGIC`.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Magic number `IHAVEOPT`. A newstyle server sends it after [`NBD_MAGIC`], and each option of a
/// client begins with it.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub const PORT_DEFAULT: u16 = 10809;

/// Handshake flag: the server supports fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the server can omit the zeroes after `OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Client flag: the client supports fixed newstyle.
pub const FLAG_C_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Client flag: the client asks to omit the zeroes after `OPT_EXPORT_NAME`.
pub const FLAG_C_NO_ZEROES: u32 = 1 << 1;

/// Option: choose an export and start transmission; errors cannot be reported.
pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;
pub const OPT_EXTENDED_HEADERS: u32 = 11;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
/// Bit that marks an option reply as an error.
pub const REP_ERROR_BIT: u32 = 1 << 31;
pub const REP_ERR_UNSUP: u32 = REP_ERROR_BIT + 1;
pub const REP_ERR_POLICY: u32 = REP_ERROR_BIT + 2;
/// Option error: the data are malformed, or invalid in this state.
pub const REP_ERR_INVALID: u32 = REP_ERROR_BIT + 3;
pub const REP_ERR_PLATFORM: u32 = REP_ERROR_BIT + 4;
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR_BIT + 5;
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR_BIT + 6;
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR_BIT + 7;
/// Option error: the client must ask for the block sizes first.
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR_BIT + 8;
pub const REP_ERR_TOO_BIG: u32 = REP_ERROR_BIT + 9;
/// Option error: extended headers are needed, or are in use already.
pub const REP_ERR_EXT_HEADER_REQD: u32 = REP_ERROR_BIT + 10;

/// Information: size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Information: the canonical name of the export.
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
/// Information: smallest, preferred and largest request size.
pub const INFO_BLOCK_SIZE: u16 = 3;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
/// Command: prefetch a range into the server's cache.
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Command flag: answer only once the data are on stable storage.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Command flag: the zeroes must be allocated.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag: answer a read with one data chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// Command flag: the client wants only one extent in the reply.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag: fail if zeroing would be slow.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
/// Command flag of extended headers: a payload follows, and the length field is its length.
pub const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

/// Chunk flag: the last chunk of its reply.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;
pub const REPLY_TYPE_NONE: u16 = 0;
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// Chunk: 32-bit extents of a metadata context.
pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Chunk: 64-bit extents of a metadata context.
pub const REPLY_TYPE_BLOCK_STATUS_EXT: u16 = 6;
/// Bit that marks a chunk as an error.
pub const REPLY_TYPE_ERROR_BIT: u16 = 1 << 15;
pub const REPLY_TYPE_ERROR: u16 = REPLY_TYPE_ERROR_BIT + 1;
pub const REPLY_TYPE_ERROR_OFFSET: u16 = REPLY_TYPE_ERROR_BIT + 2;

/// Flag of `base:allocation`: the range is not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Flag of `base:allocation`: the range reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// The metadata context that this server offers.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Longest string of the protocol, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
pub const OPTION_HEADER_BYTES: usize = 16;
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Number of zero bytes after the answer to `OPT_EXPORT_NAME`.
pub const EXPORT_NAME_ZEROES: usize = 124;
pub const REQUEST_BYTES: usize = 28;
/// Length of an extended request header in bytes. Compact headers are shorter.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
pub const STRUCTURED_REPLY_BYTES: usize = 20;
pub const EXTENDED_REPLY_BYTES: usize = 32;

/// Reads big-endian integers from the beginning of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Takes `count` bytes. Returns `None`, and takes nothing, if fewer are left.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes a 32-bit length and that many bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Writes big-endian integers into a slice, from its beginning.
///
/// # Panics
/// Each write panics if the slice is full. A peer cannot cause this, because the encoder itself
/// computes all sizes.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    pub const fn new(out: &'a mut [u8]) -> Self {
        Writer { out, len: 0 }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Decodes a string of the protocol. Returns `None` if `bytes` are not UTF-8, contain a NUL or are
/// longer than [`STRING_BYTES_MAX`].
pub fn string(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > STRING_BYTES_MAX || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// Appends a complete option, as a client sends it.
///
/// # Panics
/// Panics if `data` has 4 GiB or more.
pub fn put_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    let len = u32::try_from(data.len()).expect("an option's data is shorter than 4 GiB");
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(data);
}
