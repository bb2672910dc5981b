//! Parser of replies for clients: reads the headers of replies and chunks, but not the data after a
//! header.
//!
//! Invariants: never panics, and never reports more header bytes than were passed. Lengths are
//! bounded before they are used. Specification: "Simple reply message", "Structured reply types".

use crate::status::DESCRIPTORS_MAX;
use crate::wire::{
    EXTENDED_REPLY_MAGIC, REPLY_FLAG_DONE, REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_BLOCK_STATUS_EXT,
    REPLY_TYPE_ERROR_BIT, REPLY_TYPE_ERROR_OFFSET, REPLY_TYPE_NONE, REPLY_TYPE_OFFSET_DATA,
    REPLY_TYPE_OFFSET_HOLE, Reader, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX, STRUCTURED_REPLY_MAGIC,
    string,
};
use crate::{DescriptorWidth, Errno, ProtocolError, ReplyStyle};

/// Maximum length in bytes of one chunk's data that a client accepts.
pub const DATA_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum length in bytes of an error chunk that a client accepts.
pub const ERROR_BYTES_MAX: u64 = 2 * STRING_BYTES_MAX as u64;

/// A reply, or one chunk of a reply. `cookie` identifies the request. Offsets are positions in the
/// export. Lengths are at least 1. `last` marks the last chunk of a reply.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerReply<'a> {
    /// A complete reply. If it answers a read without an error, the data follow this header.
    Simple {
        cookie: u64,
        errno: Option<Errno>,
    },
    /// Data of a read; `length` bytes follow.
    Data {
        cookie: u64,
        offset: u64,
        length: u64,
        last: bool,
    },
    Hole {
        cookie: u64,
        offset: u64,
        length: u64,
        last: bool,
    },
    Done {
        cookie: u64,
    },
    Error {
        cookie: u64,
        errno: Errno,
        /// Offset in the export at which the request failed, if the server stated it.
        at: Option<u64>,
        message: &'a str,
        last: bool,
    },
    /// Block status; descriptors follow, see [`crate::status::descriptors`].
    Status {
        cookie: u64,
        /// ID of the metadata context.
        context_id: u32,
        width: DescriptorWidth,
        /// Number of bytes of descriptors that follow. At least one descriptor follows.
        descriptor_bytes: u64,
        last: bool,
    },
}

/// Parses the reply header at the front of `input`. Returns the reply and the length of its header
/// in bytes; `None` if the header is incomplete.
///
/// # Errors
/// [`ProtocolError::BadMagic`] or [`ProtocolError::BadField`] if the server violated the protocol;
/// the connection must be closed.
pub fn parse_reply(
    input: &[u8],
    style: ReplyStyle,
) -> Result<Option<(ServerReply<'_>, usize)>, ProtocolError> {
    let mut reader = Reader::new(input);
    let Some(magic) = reader.u32() else { return Ok(None) };
    let expected = match style {
        ReplyStyle::Simple => SIMPLE_REPLY_MAGIC,
        ReplyStyle::Structured => STRUCTURED_REPLY_MAGIC,
        ReplyStyle::Extended => EXTENDED_REPLY_MAGIC,
    };
    let reply = if magic == SIMPLE_REPLY_MAGIC && style != ReplyStyle::Extended {
        simple(&mut reader)
    } else {
        ProtocolError::check_magic("a reply", magic.into(), expected.into())?;
        chunk(&mut reader, style)
    };
    Ok(reply.transpose()?.map(|reply| (reply, input.len() - reader.rest().len())))
}

type ParsedHeader<'a> = Option<Result<ServerReply<'a>, ProtocolError>>;

fn simple<'a>(reader: &mut Reader<'a>) -> ParsedHeader<'a> {
    let errno = Errno::from_wire(reader.u32()?);
    Some(Ok(ServerReply::Simple { cookie: reader.u64()?, errno }))
}

struct ChunkHeader {
    cookie: u64,
    kind: u16,
    last: bool,
    length: u64,
}

fn chunk<'a>(reader: &mut Reader<'a>, style: ReplyStyle) -> ParsedHeader<'a> {
    let last = reader.u16()? & REPLY_FLAG_DONE != 0;
    let kind = reader.u16()?;
    let cookie = reader.u64()?;
    let length = if style == ReplyStyle::Extended {
        let _offset_of_the_request = reader.u64()?;
        reader.u64()?
    } else {
        reader.u32()?.into()
    };
    let chunk = ChunkHeader { cookie, kind, last, length };
    match kind {
        REPLY_TYPE_NONE if length != 0 => bad("length of an empty chunk", length),
        REPLY_TYPE_NONE if !last => bad("flags of an empty chunk", 0),
        REPLY_TYPE_NONE => Some(Ok(ServerReply::Done { cookie })),
        REPLY_TYPE_OFFSET_DATA => data(reader, &chunk),
        REPLY_TYPE_OFFSET_HOLE => hole(reader, &chunk),
        REPLY_TYPE_BLOCK_STATUS => status(reader, &chunk, DescriptorWidth::Bits32),
        REPLY_TYPE_BLOCK_STATUS_EXT if style == ReplyStyle::Extended => {
            status(reader, &chunk, DescriptorWidth::Bits64)
        }
        _ if kind & REPLY_TYPE_ERROR_BIT != 0 => error(reader, &chunk),
        _ => bad("chunk type", kind.into()),
    }
}

const fn bad<'a>(what: &'static str, value: u64) -> ParsedHeader<'a> {
    Some(Err(ProtocolError::BadField { what, value }))
}

fn data<'a>(reader: &mut Reader<'a>, chunk: &ChunkHeader) -> ParsedHeader<'a> {
    let &ChunkHeader { cookie, last, length, .. } = chunk;
    if length <= 8 || length - 8 > DATA_BYTES_MAX {
        return bad("length of a data chunk", length);
    }
    Some(Ok(ServerReply::Data { cookie, offset: reader.u64()?, length: length - 8, last }))
}

fn hole<'a>(reader: &mut Reader<'a>, chunk: &ChunkHeader) -> ParsedHeader<'a> {
    if chunk.length != 12 {
        return bad("length of a hole chunk", chunk.length);
    }
    let (offset, length) = (reader.u64()?, u64::from(reader.u32()?));
    if length == 0 {
        return bad("size of a hole", length);
    }
    Some(Ok(ServerReply::Hole { cookie: chunk.cookie, offset, length, last: chunk.last }))
}

fn status<'a>(
    reader: &mut Reader<'a>,
    chunk: &ChunkHeader,
    width: DescriptorWidth,
) -> ParsedHeader<'a> {
    let (head, each) = width.sizes();
    let (head, each) = (head as u64, each as u64);
    let descriptor_bytes = chunk.length.saturating_sub(head);
    let count = descriptor_bytes / each;
    if count == 0 || !descriptor_bytes.is_multiple_of(each) || count > DESCRIPTORS_MAX as u64 {
        return bad("length of a block status chunk", chunk.length);
    }
    let context_id = reader.u32()?;
    if width == DescriptorWidth::Bits64 {
        let said = u64::from(reader.u32()?);
        if said != 0 && said != count {
            return bad("descriptor count of a block status chunk", said);
        }
    }
    let (cookie, last) = (chunk.cookie, chunk.last);
    Some(Ok(ServerReply::Status { cookie, context_id, width, descriptor_bytes, last }))
}

fn error<'a>(reader: &mut Reader<'a>, chunk: &ChunkHeader) -> ParsedHeader<'a> {
    let &ChunkHeader { cookie, last, length, kind } = chunk;
    let tail = if kind == REPLY_TYPE_ERROR_OFFSET { 8 } else { 0 };
    if length < 6 + tail || length > ERROR_BYTES_MAX {
        return bad("length of an error chunk", length);
    }
    let mut payload = Reader::new(reader.bytes(usize::try_from(length).ok()?)?);
    let (number, message_len) = (payload.u32()?, payload.u16()?);
    if u64::from(message_len) > length - 6 - tail {
        return bad("message length of an error chunk", message_len.into());
    }
    let message = string(payload.bytes(message_len.into())?).unwrap_or("");
    let Some(errno) = Errno::from_wire(number) else { return bad("error of an error chunk", 0) };
    let at = if tail == 0 { None } else { Some(payload.u64()?) };
    Some(Ok(ServerReply::Error { cookie, errno, at, message, last }))
}
