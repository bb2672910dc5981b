//! Constants of virtio, for both sides of a ring: the device in this crate and the drivers that
//! test it.
//!
//! The names are those of the specification. The device (`vhost`) uses them, and so do the drivers
//! in `millrace-clients`.
//!
//! Source: virtio 1.2, sections 2.7 (rings) and 5.2 (the block device).
#![allow(missing_docs)] // A number's name is its document.

/// Feature bits of the device.
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Feature of vhost-user: protocol features can be negotiated.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;

    const NAMES: [(u64, &str); 4] = [
        (RO, "RO"),
        (DISCARD, "DISCARD"),
        (WRITE_ZEROES, "WRITE_ZEROES"),
        (EVENT_IDX, "EVENT_IDX"),
    ];

    /// Lists the features of a set for messages. Features without a name are listed as a number.
    #[must_use]
    pub fn names(set: u64) -> String {
        let named = NAMES.iter().filter(|(bit, _)| set & bit != 0);
        let mut all: Vec<String> = named.map(|(_, name)| (*name).to_owned()).collect();
        let others = NAMES.iter().fold(set, |left, (bit, _)| left & !bit);
        all.extend((others != 0).then(|| format!("{others:#x}")));
        all.join(" and ")
    }
}

/// Request types.
pub mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status values, which the device writes to the last byte of a request.
pub mod status {
    pub const OK: u8 = 0;
    pub const IOERR: u8 = 1;
    pub const UNSUPP: u8 = 2;
}

/// Flags of a descriptor.
pub mod descriptor {
    pub const NEXT: u16 = 1;
    /// Descriptor flag: the device writes the buffer.
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// Offsets of the configuration space's fields in bytes.
pub mod config {
    pub const CAPACITY: usize = 0;
    pub const SIZE_MAX: usize = 8;
    pub const SEG_MAX: usize = 12;
    pub const BLK_SIZE: usize = 20;
    pub const PHYSICAL_BLOCK_EXP: usize = 24;
    pub const MIN_IO_SIZE: usize = 26;
    pub const OPT_IO_SIZE: usize = 28;
    pub const WRITEBACK: usize = 32;
    pub const NUM_QUEUES: usize = 34;
    pub const MAX_DISCARD_SECTORS: usize = 36;
    pub const MAX_DISCARD_SEG: usize = 40;
    pub const DISCARD_SECTOR_ALIGNMENT: usize = 44;
    pub const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    pub const MAX_WRITE_ZEROES_SEG: usize = 52;
    pub const WRITE_ZEROES_MAY_UNMAP: usize = 56;
    /// Length, in bytes, of the configuration space with all fields that virtio 1.1 defines.
    pub const BYTES: usize = 60;
}

/// Flag of the avail ring: the driver wants no interrupts.
pub const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the device wants no kicks.
pub const NO_NOTIFY: u16 = 1;

/// Length of a descriptor in bytes.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Length in bytes of a request's header: type, reserved, sector.
pub const HEADER_BYTES: usize = 16;
/// Length in bytes of the range in a discard or write-zeroes request.
pub const RANGE_BYTES: usize = 16;
/// Length of a serial number in bytes.
pub const ID_BYTES: usize = 20;
/// Flag of a write-zeroes range: the device may unmap the range.
pub const RANGE_UNMAP: u32 = 1;

/// Returns the sizes, in bytes, of the three areas of a ring with `size` entries: descriptor table,
/// avail ring and used ring.
#[must_use]
pub const fn area_bytes(size: u16) -> [u64; 3] {
    let size = size as u64;
    [DESCRIPTOR_BYTES as u64 * size, 6 + 2 * size, 6 + 8 * size]
}
