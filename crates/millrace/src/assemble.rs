//! Opens drives from their specs and creates volumes from them, for `serve`, `bench` and programs.
//!
//! Remarks of drivers and volumes (a fallback to another I/O engine, unused space of unequal
//! drives) are returned as notes, because a library does not print.

pub(crate) mod places;

use std::sync::Arc;
use std::time::Duration;

use millrace_block::baseline::Stack;
use millrace_block::{
    Controller, ControllerConfig, CostModel, Disk, DiskConfig, Error, ErrorKind, Groups, Layout,
    SchedulerKind, ServingConfig, Spread, TRACE_RING_EVENTS, Tracer, Volume, blktrace,
};
use millrace_drives::{FaultControl, OpenOptions, Spec, SpecError, controller_of};
use millrace_machine::{CpuId, Machine, Native, NodeId, debug_fields, nanoseconds};
use millrace_runtime::WorkerCpus;

use crate::assemble::places::Places;
use crate::created::{Created, Unfinished};
use crate::groups::{GroupConfig, open_groups};
use crate::serving::{check_serving, needs_workers};
use crate::space::VolumeSpace;

/// Queue settings of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveOptions {
    /// Block layer design that the drive uses: multi-queue, single-queue or without queues.
    pub stack: Stack,
    /// Scheduler that orders waiting requests. Stacks other than `mq` accept only `None`.
    pub scheduler: SchedulerKind,
    /// One software queue for each core, one for each NUMA node, or one in total.
    pub software_queues: Spread,
    /// Number of hardware queues, up to the number that the driver has.
    pub hardware_queues: Spread,
    /// Number of tags of a tag set, 1 to 65,536; `None` takes the driver's depth. A drive behind a
    /// controller uses the controller's tags instead; a smaller number then limits the requests in
    /// flight in each hardware queue.
    pub queue_depth: Option<u32>,
    /// A request that takes longer than this is handled as timed out. Zero disables the timeout.
    pub timeout: Duration,
    /// Cost model of the drive's I/Os, for schedulers that share by cost.
    pub cost: CostModel,
    /// CPU of the worker thread that may serve the drive. `None` opens no queue for a worker.
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
            timeout: Duration::from_nanos(layer.timeout_ns),
            cost: layer.cost,
            worker: None,
            minor: 0,
        }
    }
}

/// Settings of a volume and of all its drives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Queue settings of each drive. The worker's CPU comes from `worker_cpus` instead.
    pub drive: DriveOptions,
    /// Number of I/O threads that will own queues of file drives; 0 counts as 1.
    pub io_threads: u16,
    /// Controllers that the specs of the volume's drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups that share the drives. Without groups, I/O is not accounted by group and costs less.
    pub groups: Vec<GroupConfig>,
    /// Serving mode, which decides the threads that run the drives' queues, and its thresholds.
    pub serving: ServingConfig,
    /// CPUs for the drives' workers, assigned in turn. Unused if [`needs_workers`] returns false.
    pub worker_cpus: Vec<CpuId>,
    /// Capacity of each thread's trace ring, in events; 0 takes the default.
    pub trace_ring: usize,
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

/// Shared context in which drives are opened: threads, controllers, groups and tracer.
#[derive(Default)]
pub struct OpenContext {
    /// Number of I/O threads that will own queues of file drives; 0 counts as 1.
    pub io_threads: u16,
    /// Open storage controllers. A drive's spec can select one of them by name, as in `null@a:`.
    pub controllers: Vec<Arc<Controller<Native>>>,
    /// Groups that share the drives, if any.
    pub groups: Option<Arc<Groups<Native>>>,
    /// Tracer that records the drives' events, if any.
    pub tracer: Option<Arc<Tracer<Native>>>,
    /// Options for opening a drive, such as its cancellation or a dry run.
    pub open: OpenOptions,
    /// Driver of the next drive to open, if that driver is open already.
    pub(crate) opened: Option<millrace_drives::Opened>,
}

debug_fields!(OpenContext, io_threads);

impl OpenContext {
    /// Creates the context for opening drives that `io_threads` I/O threads use. Creates the
    /// storage controllers `controllers`, with all tags free.
    ///
    /// # Errors
    /// Fails if a controller's settings are invalid on this machine.
    pub fn new(io_threads: u16, controllers: &[ControllerConfig]) -> Result<OpenContext, Error> {
        let controllers = controllers.iter().cloned().map(Controller::new);
        let controllers = controllers.collect::<Result<_, _>>()?;
        let tracer = Some(Tracer::new(TRACE_RING_EVENTS));
        Ok(OpenContext { io_threads, controllers, tracer, ..OpenContext::default() })
    }

    /// Returns the NUMA node of the controller that a drive is attached to, if known.
    #[must_use]
    pub fn node_of(&self, spec: &Spec) -> Option<NodeId> {
        controller_of(spec, &self.controllers).ok().flatten()?.config().node
    }
}

/// Opened drive as a disk of the block layer, with notes about the drive.
pub struct OpenedDrive {
    /// Disk of the block layer through which the drive is used.
    pub disk: Arc<Disk<Native>>,
    /// Notes about the drive for the user, such as why file I/O uses threads.
    pub notes: Vec<String>,
    /// Texts about likely mistakes, such as a file that holds a qcow2 image.
    pub warnings: Vec<String>,
    /// Identity of the drive's data: device and inode of a file, or the identity of a server's
    /// export. `None` if no other drive can have the same data.
    pub identity: Option<(u64, u64)>,
    /// File that opening the drive created, if any.
    pub created: Created,
    /// Handle that injects faults, if this is a fault drive.
    pub fault: Option<FaultControl>,
}

debug_fields!(OpenedDrive, notes, warnings, identity, created);

/// Reason why drives could not be opened or could not form a volume. `Display` shows the whole
/// cause.
#[derive(Debug, thiserror::Error)]
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

/// Opens the drive that a spec names and makes a disk of it.
///
/// # Errors
/// Fails if the drive cannot be opened or the options do not fit it. In that case a created file is
/// removed.
pub fn open_drive(
    name: &str,
    spec: &Spec,
    options: &DriveOptions,
    host: &OpenContext,
) -> Result<OpenedDrive, SetupError> {
    // A drive's worker thread needs a queue of its own, besides the queues of the I/O threads.
    let queues = host.io_threads.max(1).saturating_add(u16::from(options.worker.is_some()));
    let failed = |cause| SetupError::Drive { name: name.to_owned(), cause };
    let makes = Unfinished::before(spec);
    let opened = millrace_drives::open_with(spec, queues, &host.open).map_err(failed)?;
    let mut created = Unfinished::default();
    created.note(makes, opened.identity);
    let opened = assemble_drive((name, spec), opened, options, host)?;
    Ok(OpenedDrive { created: created.keep(), ..opened })
}

pub(crate) fn assemble_drive(
    (name, spec): (&str, &Spec),
    opened: millrace_drives::Opened,
    options: &DriveOptions,
    host: &OpenContext,
) -> Result<OpenedDrive, SetupError> {
    let io_threads = host.io_threads.max(1);
    let failed = |cause| SetupError::Drive { name: name.to_owned(), cause };
    let controller = controller_of(spec, &host.controllers).map_err(failed)?;
    let config = DiskConfig {
        name: name.to_owned(),
        baseline: options.stack.into(),
        software_queues: options.software_queues,
        hardware_queues: options.hardware_queues,
        queue_depth: options.queue_depth,
        timeout_ns: nanoseconds(options.timeout),
        cost: options.cost,
        io_threads,
        controller,
        groups: host.groups.clone(),
        worker: options.worker,
        tracer: host.tracer.clone(),
        device: drive_device(options.minor),
        ..DiskConfig::default()
    };
    let disk = Disk::new(opened.driver, config)?;
    if options.scheduler != SchedulerKind::None {
        disk.set_scheduler(options.scheduler)?;
    }
    let of_drive = |note| format!("drive {name}: {note}");
    let notes = opened.notes.into_iter().map(of_drive).collect();
    let warnings = opened.warnings.into_iter().map(of_drive).collect();
    if let (Some(control), None) = (&opened.fault, spec.get("name")) {
        control.set_name(name);
    }
    let (identity, fault) = (opened.identity, opened.fault);
    Ok(OpenedDrive { disk, notes, warnings, identity, created: Created::default(), fault })
}

/// Opens drives named `d0`, `d1` and so on, and creates a volume from them. Returns the volume and
/// texts for the user, such as about unused space on the drives.
///
/// # Errors
/// Fails if a drive cannot be opened or the drives cannot form a volume. Files that were created
/// are removed.
pub fn build_volume(
    name: &str,
    layout: Layout,
    drives: &[Spec],
    options: &VolumeOptions,
) -> Result<(Arc<Volume<Native>>, Vec<String>), SetupError> {
    Places::default().build_volume(name, (layout, drives), options)
}

impl Places {
    /// Makes a volume as [`build_volume`](crate::build_volume) does, and numbers its drives after
    /// those that are already open: if two drives are open, the first drive of the volume is `d2`.
    ///
    /// # Errors
    /// Fails as [`build_volume`](crate::build_volume) does.
    #[allow(clippy::type_complexity)] // As build_volume.
    pub fn build_volume(
        &mut self,
        name: &str,
        (layout, drives): (Layout, &[Spec]),
        options: &VolumeOptions,
    ) -> Result<(Arc<Volume<Native>>, Vec<String>), SetupError> {
        let mut host = OpenContext::new(options.io_threads, &options.controllers)?;
        if !options.groups.is_empty() {
            host.groups = Some(open_groups(&options.groups)?);
        }
        if options.trace_ring > 0 {
            host.tracer = Some(Tracer::new(options.trace_ring));
        }
        check_serving(options.serving.serving, options.drive.stack)
            .map_err(|error| Error::new(error.kind(), format!("volume {name}: {error}")))?;
        let has_workers = needs_workers(options.serving.serving, drives.len());
        let workers = if has_workers { options.worker_cpus.as_slice() } else { &[] };
        let mut workers = WorkerCpus::new(workers, &Native::topology());
        let mut disks: Vec<Arc<Disk<Native>>> = Vec::new();
        let (mut notes, mut created) = (Vec::new(), Unfinished::default());
        for (index, spec) in drives.iter().enumerate() {
            let name = self.next_name();
            let (worker, minor) = (workers.next(host.node_of(spec)), index as u32);
            let drive = DriveOptions { worker, minor, ..options.drive };
            let mut drive = self.open((&name, spec), &drive, &mut host)?;
            created.take(&mut drive.created);
            notes.append(&mut drive.warnings);
            notes.append(&mut drive.notes);
            disks.push(drive.disk);
        }
        let volume = Volume::with_serving(name, layout, disks, options.serving)?;
        notes.extend(unused_space(&volume));
        created.keep();
        Ok((volume, notes))
    }
}

/// Returns a note if the volume leaves a part of its drives unused.
pub fn unused_space(volume: &Volume<Native>) -> Option<String> {
    VolumeSpace::of(volume).note(volume.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::Serving;

    fn specs(texts: &[&str]) -> Vec<Spec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn unequal_drives_make_a_volume_of_the_smallest_and_a_note() {
        let drives = specs(&["null:size=1g", "null:size=2g"]);
        let layout = Layout::Stripe { chunk_sectors: 128 };
        let (volume, notes) =
            build_volume("v", layout, &drives, &VolumeOptions::default()).unwrap();
        assert_eq!(volume.capacity(), 2 << 21);
        let note = "volume v: unused: 1 GiB of its drives, since a stripe takes of each what \
                    the smallest has, in whole chunks of 64 KiB: 1 GiB of d0 (1 GiB), d1 (2 GiB); \
                    layout = \"linear\" serves all";
        assert_eq!(notes, [note]);
    }

    #[test]
    fn drives_of_one_controller_share_its_tags() {
        let config = |name: &str| ControllerConfig {
            name: name.into(),
            tags: 10,
            sharing: millrace_block::Sharing::Controller,
            node: None,
        };
        let host = OpenContext::new(1, &[config("a"), config("b")]).unwrap();
        let open =
            |text: &str| open_drive("d", &text.parse().unwrap(), &DriveOptions::default(), &host);
        let hung = ["null@a:", "null@a:", "null@b:", "null:"].map(|text| open(text).unwrap());
        let users = host.controllers.iter().map(Arc::strong_count).collect::<Vec<_>>();
        assert_eq!((hung.len(), users), (4, vec![3, 2]));
        let error = open("null@c:").err().unwrap();
        let text = "cannot open drive d: there is no controller `c`; there are: a, b";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn only_drives_that_share_a_volume_and_allow_it_get_workers() {
        let worker_cpus = vec![CpuId(0)];
        let workers = |serving, drives: usize| {
            let (serving, worker_cpus) = (ServingConfig::of(serving), worker_cpus.clone());
            let options = VolumeOptions { serving, worker_cpus, ..VolumeOptions::default() };
            let (layout, drives) = (Layout::Linear, specs(&vec!["null:size=1g"; drives]));
            let (volume, _) = build_volume("v", layout, &drives, &options).unwrap();
            volume.disks()[0].worker_cpu().is_some()
        };
        assert!(workers(Serving::PerDrive, 2) && workers(Serving::Auto, 2));
        assert!(!workers(Serving::PerDrive, 1) && !workers(Serving::PerVolume, 2));
    }

    #[test]
    fn mode_for_workers_is_refused_on_stack_without_places_for_them() {
        let drive = DriveOptions { stack: Stack::Sq, ..DriveOptions::default() };
        let serving = ServingConfig::of(Serving::PerDrive);
        let options = VolumeOptions { drive, serving, ..VolumeOptions::default() };
        let drives = specs(&["null:size=1g", "null:size=1g"]);
        let error = build_volume("v", Layout::Linear, &drives, &options).err().unwrap();
        let text = "volume v: serving per-drive needs stack mq, not sq; set stack to mq, or \
                    serving to inline";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_volume_without_drives_is_an_error_of_the_layer() {
        let error = build_volume("v", Layout::Linear, &[], &VolumeOptions::default()).err();
        assert!(matches!(error, Some(SetupError::Layer(_))), "{error:?}");
    }
}
