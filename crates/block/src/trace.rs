//! Tracing: what an event is, how a thread records it, and how blktrace writes it down.
//!
//! Stands on `queue` for what a driver says of its requests; knows no drive. The calls at each step
//! of an I/O are in `disk/trace.rs`. Kernel counterpart: kernel/trace/blktrace.c.

pub mod blktrace;
pub(crate) mod entry;
pub(crate) mod note;
pub(crate) mod tracer;

use crate::bio::{Op, OpFlags, Sector, SectorCount};
use crate::trace::blktrace::Act;

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
    /// Where on the drive.
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

impl Action {
    /// The kernel's code for it.
    #[inline(always)]
    pub(crate) fn act(self) -> Act {
        match self {
            Action::Queue => Act::Queue,
            Action::Split => Act::Split,
            Action::Remap => Act::Remap,
            Action::GetRequest => Act::GetRequest,
            Action::Plug => Act::Plug,
            Action::Unplug => Act::Unplug,
            Action::BackMerge => Act::BackMerge,
            Action::FrontMerge => Act::FrontMerge,
            Action::Insert => Act::Insert,
            Action::Sleep => Act::Sleep,
            Action::Bounce => Act::Bounce,
            Action::Issue => Act::Issue,
            Action::Requeue => Act::Requeue,
            Action::Complete => Act::Complete,
        }
    }
}

/// Why a plug was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Unplug {
    /// The batch has ended, or the plug was full: U.
    #[default]
    Explicit,
    /// Its owner is about to wait: UT, as the kernel has it for a task that is about to sleep.
    ToWait,
}
