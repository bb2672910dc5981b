//! What a guest may do to its ring that it must not.
//!
//! Plain values with a text for the log. Made by ring.rs, said by io_thread.rs.

/// What a guest must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// More heads are available than the ring has.
    #[error("avail.idx {idx} is more than {size} heads past {taken}, up to which they are taken")]
    AvailIdx {
        /// As the guest wrote it.
        idx: u16,
        /// Heads taken so far, as the ring counts.
        taken: u16,
        /// Of the ring.
        size: u16,
    },
    /// A head or next index lies outside its table.
    #[error("descriptor {index} of a table of {count}")]
    Index {
        /// As the guest wrote it.
        index: u16,
        /// Descriptors there are.
        count: u32,
    },
    /// A head that is in flight became available again.
    #[error("descriptor {head} is made available while it is in flight")]
    InFlight {
        /// The head.
        head: u16,
    },
    /// A chain comes back to a descriptor that it has.
    #[error("a chain that is a loop in a table of {count} descriptors")]
    Loop {
        /// Descriptors there are.
        count: u32,
    },
    /// A buffer or table is not, or not wholly, in guest memory.
    #[error("{len} bytes at {addr:#x} are not in guest memory")]
    NotMemory {
        /// The buffer's guest address.
        addr: u64,
        /// Its length.
        len: u32,
    },
    /// A readable buffer behind a writable one.
    #[error("a readable buffer behind a writable one")]
    Order,
    /// An indirect table where there may be none, or of a size that is none.
    #[error("an indirect table of {len} bytes that is not allowed there")]
    Indirect {
        /// Its length.
        len: u32,
    },
}
