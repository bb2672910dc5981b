//! Tracing: the events of an I/O, their recording by threads, and the blktrace format.
//!
//! Uses `queue` for a driver's data about requests; knows no drive. The calls at each step of an
//! I/O are in `disk/trace.rs`. Kernel counterpart: kernel/trace/blktrace.c.

pub mod blktrace;
pub(crate) mod entry;
pub(crate) mod note;
pub(crate) mod tracer;

use crate::bio::{Op, OpFlags, Sector, SectorCount};
use crate::trace::blktrace::EventCode;

/// A step in the life of an I/O; the discriminant is blktrace's letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// Queued: the bio was accepted by `submit`.
    Queue = b'Q',
    /// Split: a bio was too large, or lies on several drives, and was split.
    Split = b'X',
    /// Remapped from the volume to one of its drives.
    Remap = b'A',
    /// Admitted: the bio has a request slot in the layer.
    GetRequest = b'G',
    /// The bio was appended to the plug.
    Plug = b'P',
    /// The plug was emptied.
    Unplug = b'U',
    /// Back merge: the bio was merged at the end of another bio.
    BackMerge = b'M',
    /// Front merge: the bio was merged in front of another bio.
    FrontMerge = b'F',
    /// Inserted: the bio entered a software queue.
    Insert = b'I',
    /// The queue waits for a tag.
    Sleep = b'S',
    /// The data goes through a bounce buffer, because its memory does not suit the driver.
    Bounce = b'B',
    /// Dispatched: the request was handed to the driver.
    Issue = b'D',
    /// Requeued: the driver returned the request as busy.
    Requeue = b'R',
    /// Completed: the driver returned the request as done.
    Complete = b'C',
}

/// One trace event, as a [`TraceSink`] gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// The step that the I/O reached.
    pub action: Action,
    /// Time in nanoseconds: the time of the event's batch or, if so configured, of the event
    /// itself.
    pub time_ns: u64,
    /// Index of the drive in the volume.
    pub drive: u16,
    /// Operation of the I/O.
    pub op: Op,
    /// Flags of the operation.
    pub flags: OpFlags,
    /// First sector on the drive.
    pub sector: Sector,
    /// Length in sectors.
    pub nr_sectors: SectorCount,
    /// The submitter's number for the I/O ([`Bio::with_user_data`](crate::Bio::with_user_data)).
    pub user_data: u64,
    /// Tenant that the I/O is accounted to.
    pub tenant: u16,
}

/// Receives trace events on the thread on which they occur, so it must not block.
pub trait TraceSink: Send + Sync {
    /// Receives one event.
    fn trace(&self, event: &TraceEvent);
}

impl Action {
    /// Returns the kernel's code for the action.
    #[inline(always)]
    pub(crate) fn act(self) -> EventCode {
        match self {
            Action::Queue => EventCode::Queue,
            Action::Split => EventCode::Split,
            Action::Remap => EventCode::Remap,
            Action::GetRequest => EventCode::GetRequest,
            Action::Plug => EventCode::Plug,
            Action::Unplug => EventCode::Unplug,
            Action::BackMerge => EventCode::BackMerge,
            Action::FrontMerge => EventCode::FrontMerge,
            Action::Insert => EventCode::Insert,
            Action::Sleep => EventCode::Sleep,
            Action::Bounce => EventCode::Bounce,
            Action::Issue => EventCode::Issue,
            Action::Requeue => EventCode::Requeue,
            Action::Complete => EventCode::Complete,
        }
    }
}

/// The reason why a plug was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum UnplugReason {
    /// The batch ended or the plug was full (U in traces).
    #[default]
    Explicit,
    /// The plug's owner is about to wait (UT in traces, as in the kernel for a task that is about
    /// to sleep).
    ToWait,
}
