//! Opens drives from their specs and creates volumes from them, for `serve`, `bench` and programs.
//!
//! Remarks of drivers and volumes (a fallback to another I/O engine, unused space of unequal
//! drives) are returned as notes, because a library does not print.

pub(crate) mod places;

use std::time::Duration;

use millrace_block::baseline::Stack;
use millrace_block::{CostModel, DiskConfig, Error, ErrorKind, SchedulerKind, Spread, blktrace};
use millrace_drives::SpecError;
use millrace_machine::{CpuId, Native};

/// Queue settings of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveOptions {
    /// Block layer design that the drive uses: multi-queue, single-queue or without queues.
    pub stack: Stack,
    /// Scheduler that orders waiting requests; `None` unless the stack is multi-queue (`mq`).
    pub scheduler: SchedulerKind,
    /// Number of software queues: one for each core, one for each NUMA node, or one in total.
    pub software_queues: Spread,
    /// Number of hardware queues, limited to the number that the driver supports.
    pub hardware_queues: Spread,
    /// Number of tags of each tag set, 1 to 65,536. `None` takes the driver's depth.
    ///
    /// A drive behind a controller uses the controller's tags. For such a drive, a smaller value
    /// limits the requests in flight in each hardware queue.
    pub queue_depth: Option<u32>,
    /// Time after which a request is handled as timed out. Zero disables the timeout.
    pub timeout: Duration,
    /// Cost model of the drive's I/Os, for schedulers that share by cost.
    pub cost: CostModel,
    /// CPU of the worker thread that may serve the drive. If `None`, the drive has no queue for a
    /// worker.
    pub worker: Option<CpuId>,
    /// Minor number of the drive's device in traces.
    pub minor: u32,
}

impl Default for DriveOptions {
    fn default() -> Self {
        let layer = DiskConfig::<Native>::default();
        DriveOptions {
            stack: layer.baseline.stack,
            scheduler: SchedulerKind::None,
            software_queues: layer.software_queues,
            hardware_queues: layer.hardware_queues,
            queue_depth: layer.queue_depth,
            timeout: layer.timeout,
            cost: layer.cost,
            worker: None,
            minor: 0,
        }
    }
}

/// Major device number of drives in traces: the first that Linux reserves for local use.
const MAJOR_LOCAL: u32 = 240;
/// Major device number of volumes in traces. The number belongs to md, whose devices blktrace tools
/// treat as mappings to other devices.
const MAJOR_MD: u32 = 9;

/// Returns the device number of a drive in traces, given its minor number.
#[must_use]
pub fn drive_device(minor: u32) -> u32 {
    blktrace::device(MAJOR_LOCAL, minor)
}

/// Returns the device number of a volume in traces, given its minor number.
#[must_use]
pub fn volume_device(minor: u32) -> u32 {
    blktrace::device(MAJOR_MD, minor)
}

/// Reason why drives could not be opened or could not form a volume. `Display` shows the whole
/// cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// Opening a drive failed.
    #[error("cannot open drive {name}: {cause}")]
    Drive {
        /// Name of the drive.
        name: String,
        /// Error of the driver or its spec.
        cause: SpecError,
    },
    /// Two drives keep their data in the same file, export or Ceph image, and at least one of them
    /// writes.
    #[error(
        "drive {name}: its file, export or image is that of drive {other_name}, too; give each drive one \
         of its own"
    )]
    SameFile {
        /// Name of the drive that cannot be opened.
        name: String,
        /// Index, in the order of opening, of the drive that already uses the file, export or
        /// image.
        other: usize,
        /// Name of the drive that already uses the file, export or image.
        other_name: String,
    },
    /// A queue setting or the layout of the volume is invalid.
    #[error(transparent)]
    Layer(#[from] Error),
}

impl SetupError {
    pub(crate) fn of_drive(name: &str, cause: SpecError) -> SetupError {
        SetupError::Drive { name: name.to_owned(), cause }
    }

    /// Returns the kind of the drive's or volume's error, or `InvalidSetting` for an invalid spec.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            SetupError::SameFile { .. } => ErrorKind::Busy,
            other => other.layer_error().map_or(ErrorKind::InvalidSetting, Error::kind),
        }
    }

    /// Returns the Linux errno, if the operating system refused an operation.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.layer_error().and_then(Error::errno)
    }

    fn layer_error(&self) -> Option<&Error> {
        match self {
            SetupError::Drive { cause: SpecError::Open(error), .. } | SetupError::Layer(error) => {
                Some(error)
            }
            _ => None,
        }
    }
}
