//! Errors of guests in their virtqueues.

/// Error that a guest made in its virtqueue.
#[allow(missing_docs)] // The messages describe the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    #[error(
        "avail.idx is {idx}, but the last entry taken was {taken}, and the ring has only {size} entries"
    )]
    AvailIdx { idx: u16, taken: u16, size: u16 },
    #[error("descriptor index {index} is outside its table of {count}")]
    Index { index: u16, count: u32 },
    #[error("descriptor {head} was made available while it was in flight")]
    InFlight { head: u16 },
    #[error("a descriptor chain loops in a table of {count} descriptors")]
    Loop { count: u32 },
    #[error("{len} bytes at {addr:#x} are not in guest memory")]
    NotMemory { addr: u64, len: u32 },
    #[error("a readable buffer follows a writable one")]
    Order,
    #[error("an indirect table of {len} bytes is not allowed here")]
    Indirect { len: u32 },
}
