//! Block status: encodes extents of the export as the descriptors of one chunk, and decodes them.
//!
//! This module merges equal neighbours and limits the length of a status reply. The connection
//! calls it with an iterator over extents from the request's offset on. Clients decode the
//! descriptors.
//!
//! Invariants: there is at least one descriptor, none has length 0, and equal neighbours are
//! merged. The descriptors' total length never exceeds the requested length (as `CMD_FLAG_REQ_ONE`
//! requires), and the iterator is not advanced further than the reply needs. Specification:
//! `NBD_REPLY_TYPE_BLOCK_STATUS`, `NBD_REPLY_TYPE_BLOCK_STATUS_EXT`.

use thiserror::Error;

use crate::export::ReplyStyle;
use crate::reply::{Position, Reply};
use crate::transmission::Request;
use crate::wire::{
    CMD_FLAG_REQ_ONE, REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_BLOCK_STATUS_EXT, Reader, STATE_HOLE,
    STATE_ZERO, Writer,
};

/// Maximum number of descriptors in one chunk.
pub const DESCRIPTORS_MAX: usize = 1 << 20;
/// Maximum total length, in bytes, of the extents in a reply with 32-bit descriptors: the last
/// multiple of the largest block size (64 KiB) below 4 GiB.
const COMPACT_BYTES_MAX: u64 = 0xffff_0000;

/// A range of bytes in one allocation state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// The range is not allocated, so a write may fail for lack of space.
    pub hole: bool,
    /// The range reads as zeroes.
    pub zero: bool,
}

impl Extent {
    const fn flags(self) -> u32 {
        (if self.hole { STATE_HOLE } else { 0 }) | (if self.zero { STATE_ZERO } else { 0 })
    }
}

/// Size of the fields of a descriptor in a status chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DescriptorWidth {
    /// Lengths and flags of 32 bits, in structured replies.
    Bits32,
    /// Lengths and flags of 64 bits, in extended replies.
    Bits64,
}

impl DescriptorWidth {
    /// Returns two sizes in bytes, for the payload of a status chunk: all fields before the first
    /// descriptor, and one descriptor.
    #[must_use]
    pub const fn sizes(self) -> (usize, usize) {
        match self {
            DescriptorWidth::Bits32 => (4, 8),
            DescriptorWidth::Bits64 => (8, 16),
        }
    }
}

/// Reason why a block status cannot be encoded as a chunk.
#[allow(missing_docs)] // The messages describe the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StatusError {
    #[error("block status needs structured replies or extended headers")]
    NoChunks,
    #[error("a buffer of {0} bytes has no room for one descriptor")]
    NoRoom(usize),
    #[error("no extent for the first byte of the range")]
    NoExtent,
}

/// Range and context of a block status request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusQuery {
    /// ID of the metadata context.
    pub context_id: u32,
    /// Length of the range in bytes.
    pub length: u64,
    /// Maximum number of descriptors in the reply, at least 1; the buffer may limit it further.
    pub descriptors_max: usize,
}

impl StatusQuery {
    /// Creates the query for the block status request `request` in the context `context_id`.
    pub const fn new(request: &Request, context_id: u32) -> Self {
        let one = request.has(CMD_FLAG_REQ_ONE);
        let descriptors_max = if one { 1 } else { DESCRIPTORS_MAX };
        StatusQuery { context_id, length: request.length, descriptors_max }
    }

    /// Encodes a complete chunk, the last one of its reply. Returns its length in bytes.
    ///
    /// `extents` begin at the request's offset and are read only as far as needed. Extents of
    /// length 0 are skipped.
    ///
    /// # Errors
    /// [`StatusError`] if the chunk cannot be encoded; the contents of `out` are then undefined.
    pub fn encode(
        &self,
        reply: &Reply,
        extents: impl IntoIterator<Item = Extent>,
        out: &mut [u8],
    ) -> Result<usize, StatusError> {
        let (width, limit) = match reply.style {
            ReplyStyle::Simple => return Err(StatusError::NoChunks),
            ReplyStyle::Structured => (DescriptorWidth::Bits32, self.length.min(COMPACT_BYTES_MAX)),
            ReplyStyle::Extended => (DescriptorWidth::Bits64, self.length),
        };
        let (head, each) = width.sizes();
        let is_wide = width == DescriptorWidth::Bits64;
        let len_bytes = out.len();
        let (header, descriptors) = out
            .split_at_mut_checked(reply.chunk_bytes() + head)
            .ok_or(StatusError::NoRoom(len_bytes))?;
        let room = (descriptors.len() / each).min(self.descriptors_max).min(DESCRIPTORS_MAX);
        if room == 0 {
            return Err(StatusError::NoRoom(len_bytes));
        }
        let count = merge(extents, limit, room, |index, len, flags| {
            put(&mut descriptors[index * each..], width, len, flags);
        });
        if count == 0 {
            return Err(StatusError::NoExtent);
        }
        let kind = if is_wide { REPLY_TYPE_BLOCK_STATUS_EXT } else { REPLY_TYPE_BLOCK_STATUS };
        let mut writer = Writer::new(header);
        reply.chunk(&mut writer, Position::Last, kind, (head + count * each) as u64);
        writer.u32(self.context_id);
        if is_wide {
            writer.u32(u32::try_from(count).expect("at most 2^20 descriptors"));
        }
        Ok(writer.len() + count * each)
    }
}

/// Merges adjacent `extents` with equal flags, up to `limit` bytes and `room` merged extents. Calls
/// `emit` with the index, length and flags of the current merged extent each time the extent grows.
/// Returns the number of merged extents.
fn merge(
    extents: impl IntoIterator<Item = Extent>,
    limit: u64,
    room: usize,
    mut emit: impl FnMut(usize, u64, u32),
) -> usize {
    let mut extents = extents.into_iter();
    let (mut count, mut covered) = (0, 0);
    let mut last = (0, 0);
    while covered < limit {
        let Some(extent) = extents.next() else { break };
        let (len, flags) = (extent.len.min(limit - covered), extent.flags());
        if len == 0 {
            continue;
        }
        if count > 0 && last.1 == flags {
            last.0 += len;
        } else if count < room {
            count += 1;
            last = (len, flags);
        } else {
            break;
        }
        emit(count - 1, last.0, last.1);
        covered += len;
    }
    count
}

fn put(out: &mut [u8], width: DescriptorWidth, len: u64, flags: u32) {
    let mut writer = Writer::new(out);
    match width {
        DescriptorWidth::Bits64 => writer.u64(len).u64(flags.into()),
        DescriptorWidth::Bits32 => {
            writer.u32(u32::try_from(len).expect("limited to 32 bits")).u32(flags)
        }
    };
}

/// Decodes the descriptors of a status chunk. Unknown flags are ignored, and an incomplete
/// descriptor ends the iteration.
pub fn descriptors(bytes: &[u8], width: DescriptorWidth) -> impl Iterator<Item = Extent> + '_ {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(move || {
        let (len, flags) = match width {
            DescriptorWidth::Bits64 => (reader.u64()?, reader.u64()?),
            DescriptorWidth::Bits32 => (reader.u32()?.into(), reader.u32()?.into()),
        };
        let has = |flag: u32| flags & u64::from(flag) != 0;
        Some(Extent { len, hole: has(STATE_HOLE), zero: has(STATE_ZERO) })
    })
}
