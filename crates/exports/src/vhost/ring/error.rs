//! Errors of a guest in its ring.
//!
//! Plain values with a text for the log. ring.rs creates them, io_thread.rs logs them.

/// Error that a guest made in its virtqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// More heads are available than the ring has descriptors.
    #[error(
        "avail.idx {idx} is more than the {size} descriptors of the ring past the last index taken, {taken}"
    )]
    AvailIdx {
        /// avail.idx as the guest wrote it.
        idx: u16,
        /// Number of heads taken, modulo 2^16.
        taken: u16,
        /// Number of descriptors of the ring.
        size: u16,
    },
    /// A head or a next index is outside its table.
    #[error("descriptor index {index} is outside its table of {count}")]
    Index {
        /// Descriptor index as the guest wrote it.
        index: u16,
        /// Number of descriptors in the table.
        count: u32,
    },
    /// A head became available again while it was in flight.
    #[error("descriptor {head} was made available while it was in flight")]
    InFlight {
        /// Head of the chain.
        head: u16,
    },
    /// A chain returns to one of its own descriptors.
    #[error("a descriptor chain loops in a table of {count} descriptors")]
    Loop {
        /// Number of descriptors in the table.
        count: u32,
    },
    /// A buffer or table is not completely in guest memory.
    #[error("{len} bytes at {addr:#x} are not in guest memory")]
    NotMemory {
        /// Guest address of the buffer.
        addr: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A readable buffer follows a writable one.
    #[error("a readable buffer follows a writable one")]
    Order,
    /// An indirect table is in a wrong place or has an invalid size.
    #[error("an indirect table of {len} bytes is not allowed here")]
    Indirect {
        /// Length in bytes.
        len: u32,
    },
}
