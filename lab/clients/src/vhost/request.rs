//! Virtio-blk requests as a driver writes them, and the statuses that a device returns.
//!
//! The values are those of the virtio specification (1.2, section 5.2.6). The submitting code
//! creates requests, and the ring reads them. Each request uses a slot of the ring, with
//! descriptors and a data buffer. The descriptors are rewritten only if the direction or length of
//! the data changes ([`Shape`]).

use millrace_exports::virtio::{RANGE_BYTES, kind, status};

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads data from the disk.
    Read,
    /// Writes data to the disk.
    Write,
    /// Makes completed writes durable.
    Flush,
    /// Returns the disk's identity, 20 bytes.
    GetId,
    /// Discards a range of sectors. The function [`range`] creates the data of this request.
    Discard,
    /// Makes a range of sectors read as zeroes. The function [`range`] creates the data of this
    /// request.
    WriteZeroes,
}

impl Kind {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Kind::Read => kind::IN,
            Kind::Write => kind::OUT,
            Kind::Flush => kind::FLUSH,
            Kind::GetId => kind::GET_ID,
            Kind::Discard => kind::DISCARD,
            Kind::WriteZeroes => kind::WRITE_ZEROES,
        }
    }
}

/// Request to the disk. The data are in the buffer of the ring slot that the request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Operation of the request.
    pub kind: Kind,
    /// First sector, in units of 512 bytes; 0 for requests without a sector, such as flushes.
    pub sector: u64,
    /// Number of bytes of data, in either direction.
    pub bytes: u32,
}

impl Request {
    /// Creates a request that reads data into the buffer of its ring slot.
    #[must_use]
    pub const fn read(sector: u64, bytes: u32) -> Request {
        Request { kind: Kind::Read, sector, bytes }
    }

    /// Creates a write request. The data to write are in the buffer of the ring slot that the
    /// request uses.
    #[must_use]
    pub const fn write(sector: u64, bytes: u32) -> Request {
        Request { kind: Kind::Write, sector, bytes }
    }

    /// Creates a flush request.
    #[must_use]
    pub const fn flush() -> Request {
        Request { kind: Kind::Flush, sector: 0, bytes: 0 }
    }

    pub(crate) const fn shape(self) -> Shape {
        let direction = match self.kind {
            _ if self.bytes == 0 => Shape::NO_DATA,
            Kind::Read | Kind::GetId => Shape::TO_DRIVER,
            _ => Shape::TO_DEVICE,
        };
        Shape((self.bytes as u64) << 2 | direction)
    }
}

/// Direction and length of a request's data, which determine the request's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape(u64);

impl Shape {
    /// Shape of a ring slot before its first request; no request has this shape. Requests write the
    /// slot's descriptors only if their shape differs from the slot's. So the first request in a
    /// slot always writes them.
    pub(crate) const NONE: Shape = Shape(u64::MAX);
    const NO_DATA: u64 = 0;
    const TO_DRIVER: u64 = 1;
    const TO_DEVICE: u64 = 2;

    pub(crate) const fn bytes(self) -> u32 {
        (self.0 >> 2) as u32
    }

    pub(crate) const fn to_driver(self) -> bool {
        self.0 & 3 == Shape::TO_DRIVER
    }
}

/// Status byte that a device writes for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u8);

impl Status {
    /// The request succeeded.
    pub const OK: Status = Status(status::OK);
    /// The device failed the request.
    pub const IO_ERROR: Status = Status(status::IOERR);

    /// Returns true if the request succeeded.
    #[inline]
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == status::OK
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            status::OK => f.write_str("ok"),
            status::IOERR => f.write_str("I/O error"),
            status::UNSUPP => f.write_str("not supported"),
            other => write!(f, "status {other}, which virtio-blk does not define"),
        }
    }
}

/// Returns the data of a discard or a write of zeroes: one range. `flags` 1 allows unmapping.
#[must_use]
pub fn range(sector: u64, sectors: u32, flags: u32) -> [u8; RANGE_BYTES] {
    let mut bytes = [0; RANGE_BYTES];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}
