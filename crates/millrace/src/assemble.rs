//! Drives and volumes put together from specs: shared by `serve`, `bench` and programs.
//!
//! Owns the defaults of a drive's queues. Calls the drives crate to open what a spec names and the
//! block layer to make disks and volumes of it; remarks of either (an engine fallen back to, space
//! of unequal drives left over) come back as notes, since a library does not print.

pub(crate) mod places;

use std::sync::Arc;

use millrace_block::{
    Controller, ControllerConfig, CostModel, Disk, DiskConfig, Error, ErrorKind, Groups, Layout,
    SchedulerKind, ServingConfig, Spread, Stack, TRACE_RING_EVENTS, Tracer, Volume, blktrace,
};
use millrace_drives::{FaultControl, OpenOptions, Spec, SpecError, controller_of};
use millrace_machine::{CpuId, Machine, Native, NodeId};
use millrace_runtime::WorkerCpus;

use crate::assemble::places::Places;
use crate::created::{Created, Unfinished};
use crate::groups::{GroupConfig, open_groups};
use crate::serving::{check_serving, needs_workers};
use crate::space::Space;

/// Queue settings of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveOptions {
    /// Which design the layer follows.
    pub stack: Stack,
    /// In which order what waits goes to the drive; only the stack `mq` takes another than none.
    pub scheduler: SchedulerKind,
    /// Software queues: for each core, each node, or one.
    pub software_queues: Spread,
    /// Hardware queues, as far as the driver has them.
    pub hardware_queues: Spread,
    /// Tags of a set, 1 to 65,536; the driver's depth if not given. Behind a controller that has
    /// more: requests in flight in each hardware queue.
    pub queue_depth: Option<u32>,
    /// A request not answered in this time is looked after; 0 for never.
    pub timeout_ns: u64,
    /// What I/Os cost it, for schedulers that share by that.
    pub cost: CostModel,
    /// The CPU of a worker that may serve it for others; the drive has no place for one without.
    pub worker: Option<CpuId>,
    /// Which drive it is in traces: the minor number of its device.
    pub minor: u32,
}

impl Default for DriveOptions {
    fn default() -> Self {
        let layer = DiskConfig::<Native>::default();
        DriveOptions {
            stack: layer.stack,
            scheduler: SchedulerKind::None,
            software_queues: layer.software_queues,
            hardware_queues: layer.hardware_queues,
            queue_depth: layer.queue_depth,
            timeout_ns: layer.timeout_ns,
            cost: layer.cost,
            worker: None,
            minor: 0,
        }
    }
}

/// Settings of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Queues of each of its drives; `worker` comes from `worker_cpus`.
    pub drive: DriveOptions,
    /// I/O threads that will own queues of file drives; 0 counts as 1.
    pub io_threads: u16,
    /// Controllers that its drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups of those who share its drives; without any nobody is told apart, at no cost.
    pub groups: Vec<GroupConfig>,
    /// Which threads serve the drives.
    pub serving: ServingConfig,
    /// CPUs of the drives' workers, dealt out in turn; not used where
    /// [`needs_workers`] says no.
    pub worker_cpus: Vec<CpuId>,
    /// Events that a thread's ring holds while somebody records; 0 for as many as is usual.
    pub trace_ring: usize,
}

/// Major number of drives in traces: the first of those that Linux leaves to local use.
const MAJOR_LOCAL: u32 = 240;
/// Major number of volumes in traces: md's, which tools take to map to other devices.
const MAJOR_MD: u32 = 9;

/// The device of a drive in traces, by its minor number.
#[must_use]
pub fn drive_device(minor: u32) -> u32 {
    blktrace::device(MAJOR_LOCAL, minor)
}

/// The device of a volume in traces, by its minor number.
#[must_use]
pub fn volume_device(minor: u32) -> u32 {
    blktrace::device(MAJOR_MD, minor)
}

/// What drives are opened on.
#[derive(Default)]
pub struct Host {
    /// I/O threads that will own queues of file drives; 0 counts as 1.
    pub io_threads: u16,
    /// Controllers that drives may name.
    pub controllers: Vec<Arc<Controller<Native>>>,
    /// Groups of those who share the drives.
    pub groups: Option<Arc<Groups<Native>>>,
    /// What records the drives' events.
    pub tracer: Option<Arc<Tracer<Native>>>,
    /// Ends the opening of a drive early, and where a file is found.
    pub open: OpenOptions,
    /// The driver of the next drive, if it is open already.
    pub(crate) opened: Option<millrace_drives::Opened>,
}

impl Host {
    /// So many I/O threads, and these controllers, with all their tags free.
    ///
    /// # Errors
    /// If the settings of a controller make no sense on this machine.
    pub fn new(io_threads: u16, controllers: &[ControllerConfig]) -> Result<Host, Error> {
        let controllers = controllers.iter().cloned().map(Controller::new);
        let controllers = controllers.collect::<Result<_, _>>()?;
        let tracer = Some(Tracer::new(TRACE_RING_EVENTS));
        Ok(Host {
            io_threads,
            controllers,
            groups: None,
            tracer,
            open: OpenOptions::default(),
            opened: None,
        })
    }

    /// The NUMA node of the controller that a drive hangs on, if it is known.
    #[must_use]
    pub fn node_of(&self, spec: &Spec) -> Option<NodeId> {
        controller_of(spec, &self.controllers).ok().flatten()?.config().node
    }
}

/// A drive in the layer.
pub struct OpenedDrive {
    /// The disk.
    pub disk: Arc<Disk<Native>>,
    /// Remarks for a person.
    pub notes: Vec<String>,
    /// What is hardly meant, such as that its file is a qcow2 image.
    pub warnings: Vec<String>,
    /// What file it is (device and inode), or which export of which server, if it is one.
    pub identity: Option<(u64, u64)>,
    /// Its file, if it was not there before.
    pub created: Created,
    /// Controls its faults, if it is a fault drive.
    pub fault: Option<FaultControl>,
}

/// The reason why drives or a volume could not be put together. `Display` has the whole cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A drive could not be opened.
    #[error("cannot open drive {name}: {cause}")]
    Drive {
        /// Its name.
        name: String,
        /// Why.
        cause: SpecError,
    },
    /// The drive's file, export of a server or Ceph image is another drive's already, and one of
    /// the two writes to it.
    #[error(
        "drive {name}: its file, export or image is that of drive {other_name}, too; give each drive one \
         of its own"
    )]
    SameFile {
        /// Its name.
        name: String,
        /// Number of the other drive, in the order of opening.
        other: usize,
        /// Name of the other drive.
        other_name: String,
    },
    /// A queue setting or the volume makes no sense.
    #[error(transparent)]
    Layer(#[from] Error),
}

impl SetupError {
    /// The kind of error: of the drive, of the volume, or `InvalidSetting` for a spec that is
    /// wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            SetupError::SameFile { .. } => ErrorKind::Busy,
            other => other.layer_error().map_or(ErrorKind::InvalidSetting, Error::kind),
        }
    }

    /// The Linux errno, if the operating system refused something.
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

/// Opens what a spec names and makes a disk of it.
///
/// # Errors
/// If the drive cannot be opened or the options do not fit it; a file that was made is removed.
pub fn open_drive(
    name: &str,
    spec: &Spec,
    options: &DriveOptions,
    host: &Host,
) -> Result<OpenedDrive, SetupError> {
    // A worker has a queue of its own beside theirs.
    let queues = host.io_threads.max(1).saturating_add(u16::from(options.worker.is_some()));
    let failed = |cause| SetupError::Drive { name: name.to_owned(), cause };
    let makes = Unfinished::before(spec);
    let opened = millrace_drives::open_with(spec, queues, &host.open).map_err(failed)?;
    let mut created = Unfinished::default();
    created.note(makes, opened.identity);
    let opened = assemble_drive((name, spec), opened, options, host)?;
    Ok(OpenedDrive { created: created.keep(), ..opened })
}

/// Puts an open driver into the layer, as [`open_drive`] does.
///
/// # Errors
/// If the options do not fit it.
pub(crate) fn assemble_drive(
    (name, spec): (&str, &Spec),
    opened: millrace_drives::Opened,
    options: &DriveOptions,
    host: &Host,
) -> Result<OpenedDrive, SetupError> {
    let io_threads = host.io_threads.max(1);
    let failed = |cause| SetupError::Drive { name: name.to_owned(), cause };
    let controller = controller_of(spec, &host.controllers).map_err(failed)?;
    let config = DiskConfig {
        name: name.to_owned(),
        stack: options.stack,
        software_queues: options.software_queues,
        hardware_queues: options.hardware_queues,
        queue_depth: options.queue_depth,
        timeout_ns: options.timeout_ns,
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

/// A volume of freshly opened drives, called `d0`, `d1` and so on, and remarks for a person.
///
/// # Errors
/// If a drive cannot be opened or they do not make a volume; files that were made are removed.
pub fn build_volume(
    name: &str,
    layout: Layout,
    drives: &[Spec],
    options: &VolumeOptions,
) -> Result<(Arc<Volume<Native>>, Vec<String>), SetupError> {
    Places::default().build_volume(name, (layout, drives), options)
}

impl Places {
    /// As [`build_volume`](crate::build_volume), beside the drives that are open: the first of its
    /// drives is called `d2` if these are two.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::type_complexity)] // What build_volume gives.
    pub fn build_volume(
        &mut self,
        name: &str,
        (layout, drives): (Layout, &[Spec]),
        options: &VolumeOptions,
    ) -> Result<(Arc<Volume<Native>>, Vec<String>), SetupError> {
        let mut host = Host::new(options.io_threads, &options.controllers)?;
        if !options.groups.is_empty() {
            host.groups = Some(open_groups(&options.groups)?);
        }
        if options.trace_ring > 0 {
            host.tracer = Some(Tracer::new(options.trace_ring));
        }
        check_serving(options.serving.serving, options.drive.stack).map_err(|text| {
            Error::new(ErrorKind::InvalidSetting, format!("volume {name}: {text}"))
        })?;
        let workers = match needs_workers(options.serving.serving, drives.len()) {
            true => options.worker_cpus.as_slice(),
            false => &[],
        };
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

/// Says so if a volume leaves some of its drives' bytes unused.
pub fn unused_space(volume: &Volume<Native>) -> Option<String> {
    Space::of(volume).note(volume.name())
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
        let note = "volume v: not served: 1 GiB of its drives, since a stripe takes of each what \
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
        let host = Host::new(1, &[config("a"), config("b")]).unwrap();
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
    fn only_drives_that_share_a_volume_and_have_a_mode_for_it_get_workers() {
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
    fn a_mode_for_workers_is_refused_on_a_stack_without_places_for_them() {
        let drive = DriveOptions { stack: Stack::Sq, ..DriveOptions::default() };
        let serving = ServingConfig::of(Serving::PerDrive);
        let options = VolumeOptions { drive, serving, ..VolumeOptions::default() };
        let drives = specs(&["null:size=1g", "null:size=1g"]);
        let error = build_volume("v", Layout::Linear, &drives, &options).err().unwrap();
        let text = "volume v: serving per-drive goes with stack mq only, not sq: use mq, or inline";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_volume_without_drives_is_an_error_of_the_layer() {
        let error = build_volume("v", Layout::Linear, &[], &VolumeOptions::default()).err();
        assert!(matches!(error, Some(SetupError::Layer(_))), "{error:?}");
    }
}
