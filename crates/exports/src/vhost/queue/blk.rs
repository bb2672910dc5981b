//! The virtio block device: its features, its configuration space, and its requests.
//!
//! [`parse`] converts a descriptor chain (ring.rs) to an action. The guest may distribute header,
//! data and status over the descriptors in any way. Every length and number of a request is
//! untrusted. Source: virtio 1.2, section 5.2.
#![allow(unsafe_code)]

use millrace_block::{Op, OpFlags, QueueLimits, Sector, Segment, Status};

use crate::vhost::memory::read_once;
use crate::vhost::ring::{DescriptorChain, PlainChain};
use crate::virtio::{HEADER_BYTES, RANGE_BYTES, RANGE_UNMAP, config, feature, kind, status};

/// Maximum number of data segments per request that is announced to guests. Together with header
/// and status they fit into a ring of 128 descriptors without indirect tables.
pub const SEG_MAX: u32 = 128 - 2;
/// Maximum length of a segment, in bytes, that the device announces to guests. [`SEG_MAX`] segments
/// of this length have less than 2 GiB, because some drivers multiply length and number as signed
/// 32-bit integers.
const PIECE_BYTES_MAX: u32 = 16 << 20;
const PAGE_BYTES: u32 = 4096;

/// Maps the block layer's status to virtio's.
#[must_use]
pub fn status_of(status: Status) -> u8 {
    match status {
        Status::Ok => status::OK,
        Status::NotSupported => status::UNSUPP,
        _ => status::IOERR,
    }
}

/// Properties of a volume that the device reports to a guest.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Size in sectors.
    pub capacity: Sector,
    /// Limits of the volume's queue.
    pub limits: QueueLimits,
    /// Maximum number of queues.
    pub queues: u16,
    /// If true, guests may not write.
    pub read_only: bool,
    /// If true, writes may stay in a cache until a flush.
    pub write_back: bool,
    /// If true, EVENT_IDX is offered: notifications may be suppressed by index.
    pub event_idx: bool,
}

impl Config {
    /// Returns the maximum length of a segment in bytes, and the maximum number of segments per
    /// request.
    ///
    /// A segment may have the length of the drives' longest transfer or longest segment, whichever
    /// is shorter, up to 16 MiB. So a large request in a few large pages stays one request. If a
    /// request has several such segments, its total length may exceed the longest transfer, and the
    /// block layer splits the request. Splitting costs less than announcing segments of a few KiB.
    #[must_use]
    pub fn segments(&self) -> (u32, u32) {
        let limits = &self.limits;
        let longest = limits.max_sectors.min(PIECE_BYTES_MAX >> 9) << 9;
        let size = longest.min(limits.max_segment_size) / PAGE_BYTES * PAGE_BYTES;
        (size.max(PAGE_BYTES), u32::from(limits.max_segments).clamp(1, SEG_MAX))
    }

    /// Returns the feature bits of the device.
    #[must_use]
    pub fn features(&self) -> u64 {
        let mut bits = feature::SIZE_MAX
            | feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::CONFIG_WCE
            | feature::MQ
            | feature::INDIRECT_DESC
            | feature::PROTOCOL_FEATURES
            | feature::VERSION_1;
        if self.event_idx {
            bits |= feature::EVENT_IDX;
        }
        if self.read_only {
            return bits | feature::RO;
        }
        if self.limits.max_discard_sectors > 0 {
            bits |= feature::DISCARD;
        }
        if self.limits.max_write_zeroes_sectors > 0 {
            bits |= feature::WRITE_ZEROES;
        }
        bits
    }

    /// Returns the configuration space.
    #[must_use]
    pub fn bytes(&self) -> [u8; config::BYTES] {
        let limits = &self.limits;
        let block = limits.logical_block_size;
        let blocks = |bytes: u32| (bytes / block).max(1);
        let (size_max, seg_max) = self.segments();
        let mut bytes = [0; config::BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(config::CAPACITY, &self.capacity.to_le_bytes());
        put(config::SIZE_MAX, &size_max.to_le_bytes());
        put(config::SEG_MAX, &seg_max.to_le_bytes());
        put(config::BLK_SIZE, &block.to_le_bytes());
        put(
            config::PHYSICAL_BLOCK_EXP,
            &[blocks(limits.physical_block_size).trailing_zeros() as u8, 0],
        );
        let io_min = u16::try_from(blocks(limits.io_min)).unwrap_or(u16::MAX);
        put(config::MIN_IO_SIZE, &io_min.to_le_bytes());
        put(config::OPT_IO_SIZE, &(limits.io_opt / block).to_le_bytes());
        put(config::WRITEBACK, &[u8::from(self.write_back)]);
        put(config::NUM_QUEUES, &self.queues.to_le_bytes());
        if limits.max_discard_sectors > 0 {
            put(config::MAX_DISCARD_SECTORS, &limits.max_discard_sectors.to_le_bytes());
            put(config::MAX_DISCARD_SEG, &1u32.to_le_bytes());
            put(
                config::DISCARD_SECTOR_ALIGNMENT,
                &(limits.discard_granularity >> 9).max(1).to_le_bytes(),
            );
        }
        if limits.max_write_zeroes_sectors > 0 {
            put(config::MAX_WRITE_ZEROES_SECTORS, &limits.max_write_zeroes_sectors.to_le_bytes());
            put(config::MAX_WRITE_ZEROES_SEG, &1u32.to_le_bytes());
            put(config::WRITE_ZEROES_MAY_UNMAP, &[u8::from(limits.max_discard_sectors > 0)]);
        }
        bytes
    }
}

/// Action that a virtio-blk request demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Read or write the data.
    Transfer(Op, Sector),
    /// Flush.
    Flush,
    /// Discard or zero a range.
    Range {
        /// `Discard` or `WriteZeroes`.
        op: Op,
        /// Flags of the bio that performs the discard or zeroing.
        flags: OpFlags,
        /// First sector.
        sector: Sector,
        /// Length in sectors.
        nr_sectors: u32,
    },
    /// Copy the serial number into the data.
    Id,
    /// Answer at once with this virtio status.
    Refused(u8),
}

/// A parsed request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Action that the request demands.
    pub action: Action,
    /// Address of the status byte in guest memory; `None` if the chain has no writable byte.
    pub status: Option<*mut u8>,
    /// Data of the request, as a range of the chain's segments.
    pub data: (usize, usize),
    /// Length of the data in bytes.
    pub data_bytes: u64,
}

/// Returns operation and sector of a plain read or write (one header, data and status buffer each),
/// or `None` for other chains, which [`parse`] handles.
#[inline(always)]
#[must_use]
pub fn parse_plain(plain: &PlainChain) -> Option<(Op, Sector)> {
    // SAFETY: the ring found 16 bytes there.
    let [kind, sector] = unsafe { read_once(plain.header) }.map(u64::from_le);
    let kind = kind as u32;
    let op = match (kind, plain.writable) {
        (kind::IN, true) => Op::Read,
        (kind::OUT, false) => Op::Write,
        _ => return None,
    };
    plain.data.len_bytes.is_multiple_of(512).then_some((op, sector))
}

/// Parses a chain. Afterwards its segments contain only the data, without header and status.
#[inline]
pub fn parse(chain: &mut DescriptorChain) -> Request {
    let DescriptorChain { parts, readable, has_empty, .. } = chain;
    let (count, readable, has_empty) = (parts.len(), *readable, *has_empty);
    let status = cut_status(&mut parts[readable..]);
    // If the last segment held only the status byte, the segment is empty now.
    let end = count - usize::from(parts.last().is_some_and(|part| part.len_bytes == 0));
    let mut header = [0; HEADER_BYTES];
    let first = cut_front(&mut parts[..readable], &mut header);
    let Some(first) = first.filter(|_| status.is_some()) else {
        let action = Action::Refused(status::IOERR);
        return Request { action, status, data: (0, 0), data_bytes: 0 };
    };
    let (kind, rest) = header.split_at(4);
    let kind = u32::from_le_bytes([kind[0], kind[1], kind[2], kind[3]]);
    let mut sector = [0; 8];
    sector.copy_from_slice(&rest[4..12]);
    let sector = u64::from_le_bytes(sector);
    let written = matches!(kind, kind::OUT | kind::DISCARD | kind::WRITE_ZEROES);
    let (data, other) = match written {
        true => ((first, readable), (readable, end)),
        false => ((readable, end), (first, readable)),
    };
    let bytes = |(from, to): (usize, usize), parts: &[Segment]| -> u64 {
        parts[from..to].iter().map(|part| u64::from(part.len_bytes)).sum()
    };
    let mut data_bytes = bytes(data, parts);
    // Segments whose direction does not fit the request's type are an error.
    let stray = bytes(other, parts) > 0;
    let known = written || matches!(kind, kind::IN | kind::FLUSH | kind::GET_ID);
    let action = match kind {
        // Unknown request types are checked first, because a driver that probes for support expects
        // the status UNSUPP.
        _ if !known => Action::Refused(status::UNSUPP),
        _ if stray || has_empty => Action::Refused(status::IOERR),
        kind::IN | kind::OUT => {
            let op = if written { Op::Write } else { Op::Read };
            match data_bytes > 0 && data_bytes.is_multiple_of(512) && data_bytes < 1 << 32 {
                true => Action::Transfer(op, sector),
                false => Action::Refused(status::IOERR),
            }
        }
        kind::FLUSH if data_bytes == 0 => Action::Flush,
        kind::GET_ID => Action::Id,
        kind::DISCARD | kind::WRITE_ZEROES => range(kind, data_bytes, &mut parts[data.0..data.1]),
        _ => Action::Refused(status::IOERR),
    };
    if !matches!(action, Action::Transfer(..) | Action::Id) {
        data_bytes = 0;
    }
    Request { action, status, data, data_bytes }
}

#[inline]
fn cut_status(writable: &mut [Segment]) -> Option<*mut u8> {
    let last = writable.last_mut()?;
    last.len_bytes -= 1;
    Some(last.start.wrapping_add(last.len_bytes as usize))
}

/// Copies the first `into.len()` bytes of the segments `parts` to `into`, and cuts them off the
/// segments. Returns the index of the segment after these bytes, or `None` if there are too few
/// bytes.
#[inline]
fn cut_front(parts: &mut [Segment], into: &mut [u8]) -> Option<usize> {
    let (mut at, mut first) = (0, 0);
    while at < into.len() {
        let part = parts.get_mut(first)?;
        let len = (part.len_bytes as usize).min(into.len() - at);
        // SAFETY: each segment lies in mapped memory, and the destination is a slice of ours.
        unsafe { copy_out(part.start, &mut into[at..at + len]) };
        at += len;
        part.start = part.start.wrapping_add(len);
        part.len_bytes -= len as u32;
        first += usize::from(part.len_bytes == 0);
    }
    Some(first)
}

/// Copies bytes out of guest memory.
///
/// # Safety
/// `from` is valid for reads of as many bytes as `into` has.
#[inline]
unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    if let Ok(header) = <&mut [u8; HEADER_BYTES]>::try_from(&mut *into) {
        // SAFETY: promised by the caller.
        let [low, high] = unsafe { read_once(from) }.map(u64::to_ne_bytes);
        header[..8].copy_from_slice(&low);
        header[8..].copy_from_slice(&high);
        return;
    }
    for (index, byte) in into.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        *byte = unsafe { from.wrapping_add(index).read_volatile() };
    }
}

/// Copies `from` into guest memory as far as the segments have space. Returns the number of bytes
/// copied.
pub fn copy_in(parts: &[Segment], from: &[u8]) -> u32 {
    let mut at = 0;
    for part in parts {
        let len = (part.len_bytes as usize).min(from.len() - at);
        for (index, byte) in from[at..at + len].iter().enumerate() {
            // SAFETY: each segment lies in mapped memory.
            unsafe { part.start.wrapping_add(index).write_volatile(*byte) };
        }
        at += len;
    }
    at as u32
}

fn range(kind: u32, data_bytes: u64, parts: &mut [Segment]) -> Action {
    let mut bytes = [0; RANGE_BYTES];
    // The configuration space permits a single range per request.
    if data_bytes != RANGE_BYTES as u64 || cut_front(parts, &mut bytes).is_none() {
        return Action::Refused(status::IOERR);
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
    let sector = u64::from(word(0)) | u64::from(word(4)) << 32;
    let (nr_sectors, unmap) = (word(8), word(12));
    let (op, flags) = match (kind, unmap) {
        (kind::DISCARD, 0) => (Op::Discard, OpFlags::NONE),
        (kind::WRITE_ZEROES, 0) => (Op::WriteZeroes, OpFlags::NOUNMAP),
        (kind::WRITE_ZEROES, RANGE_UNMAP) => (Op::WriteZeroes, OpFlags::NONE),
        _ => return Action::Refused(status::UNSUPP),
    };
    Action::Range { op, flags, sector, nr_sectors }
}

#[cfg(test)]
mod tests;
