//! Tracing: the events of an I/O, their recording by threads, and the blktrace format.
//!
//! The calls at each step of an I/O are in `disk/trace.rs`. Kernel counterpart:
//! kernel/trace/blktrace.c.

pub mod blktrace;
pub(crate) mod entry;
pub(crate) mod note;
pub(crate) mod tracer;

use crate::bio::{Op, OpFlags, Sector, SectorCount};
use crate::trace::blktrace::EventCode;

/// A trace event, as passed to a [`TraceSink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// The step that the I/O reached.
    pub action: EventCode,
    /// Time in nanoseconds of the event or of its batch.
    pub time_ns: u64,
    /// Index of the drive in the volume.
    pub drive: u16,
    /// Operation of the I/O.
    pub op: Op,
    /// Flags of the operation.
    pub flags: OpFlags,
    /// First sector of the I/O, counted from the drive's start.
    pub sector: Sector,
    /// Length of the I/O in sectors.
    pub nr_sectors: SectorCount,
    /// The submitter's number for the I/O ([`Bio::with_user_data`](crate::Bio::with_user_data)).
    pub user_data: u64,
    /// Tenant that the I/O is accounted to.
    pub tenant: u16,
}

/// Receives trace events. Called on the thread that causes the event, so a call must not block.
pub trait TraceSink: Send + Sync {
    /// Receives one event.
    fn trace(&self, event: &TraceEvent);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum UnplugReason {
    /// The batch ended or the plug was full (U in traces).
    #[default]
    Explicit,
    /// The plug's owner is about to wait (UT in traces, as in the kernel for a task that goes to
    /// sleep with plugged I/O).
    ToWait,
}
