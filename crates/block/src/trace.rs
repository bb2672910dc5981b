//! Trace events: one call at every step of an I/O, by the letters of blktrace.
//!
//! Called from submission, plug, dispatch and completion; the sink is set when a disk is made. Off
//! is one predictable branch per event point. Order promised for every bio: Q <= G <= I <= D <= C,
//! with B, if any, just before D.
//! Kernel counterpart: include/trace/events/block.h and blktrace's actions.

use crate::bio::{Op, OpFlags, Sector, SectorCount};

/// What happened; the discriminant is blktrace's letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// Queued: accepted by `submit`.
    Queue = b'Q',
    /// Split: part of a bio that was too big.
    Split = b'X',
    /// Remapped to a drive of a volume.
    Remap = b'A',
    /// Admitted: a place in the layer is taken.
    GetRequest = b'G',
    /// Appended to the plug.
    Plug = b'P',
    /// Plug emptied.
    Unplug = b'U',
    /// Merged at the end of another.
    BackMerge = b'M',
    /// Merged in front of another.
    FrontMerge = b'F',
    /// Inserted into a software queue.
    Insert = b'I',
    /// Waits for a tag.
    Sleep = b'S',
    /// Its data go through a copy, as its memory does not suit the driver.
    Bounce = b'B',
    /// Dispatched to the driver.
    Issue = b'D',
    /// Given back by the driver as busy.
    Requeue = b'R',
    /// Complete.
    Complete = b'C',
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// When: the stamp of its batch, or its own (setting).
    pub time_ns: u64,
    /// Which drive of the volume.
    pub drive: u16,
    /// Operation.
    pub op: Op,
    /// Modifiers.
    pub flags: OpFlags,
    /// Where on the drive; on the volume before the remap.
    pub sector: Sector,
    /// How long.
    pub nr_sectors: SectorCount,
    /// The submitter's number for it.
    pub user_data: u64,
    /// Whom it is accounted to.
    pub tenant: u16,
}

/// Takes events; called on the thread where they happen, so it must not block.
pub trait TraceSink: Send + Sync {
    /// One event.
    fn trace(&self, event: &Event);
}
