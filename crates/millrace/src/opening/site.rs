//! `OpenSite`: the state that all drives of a program share.
//!
//! The state consists of the controllers, the groups, the tracer, and records of where each drive
//! keeps its data. A server keeps its `OpenSite` to open more drives later. These drives must not
//! use the data of drives that are open already.

use std::sync::Arc;

use millrace_block::{
    Controller, ControllerConfig, Disk, DiskConfig, Error, Groups, SchedulerKind,
    TRACE_RING_EVENTS, Tracer,
};
use millrace_drives::{DataPlace, OpenOptions, Opened, Spec, controller_of, file_place};
use millrace_machine::{Native, NodeId};

use crate::assemble::places::Places;
use crate::assemble::{SetupError, drive_device};
use crate::config::DriveConfig;
use crate::created::{UnfinishedFiles, file_id};

#[derive(Default)]
pub(crate) struct OpenSite {
    /// Number of I/O threads that will own queues of the next file drive; 0 counts as 1.
    pub(crate) io_threads: u16,
    /// Open storage controllers. A drive's spec can select one of them by name, as in `null@a:`.
    pub(crate) controllers: Vec<Arc<Controller<Native>>>,
    pub(crate) groups: Option<Arc<Groups<Native>>>,
    pub(crate) tracer: Option<Arc<Tracer<Native>>>,
    pub(crate) open: OpenOptions,
    /// Driver for the next drive, if the driver is already open. If `None`, `OpenSite::open` opens
    /// a driver for the next drive.
    pub(crate) driver: Option<Opened>,
    pub(crate) places: Places,
    /// Number of drives opened so far, including drives that failed to open. In traces, this number
    /// is the minor number of the next drive.
    pub(crate) opened: u32,
}

/// Result of opening a drive: its disk in the block layer, and texts for the user about the drive.
pub(crate) struct OpenedDisk {
    pub(crate) disk: Arc<Disk<Native>>,
    pub(crate) notes: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

impl OpenSite {
    pub(crate) fn new(controllers: &[ControllerConfig]) -> Result<OpenSite, Error> {
        let controllers = controllers.iter().cloned().map(Controller::new);
        let controllers = controllers.collect::<Result<_, _>>()?;
        let tracer = Some(Tracer::new(TRACE_RING_EVENTS));
        Ok(OpenSite { controllers, tracer, ..OpenSite::default() })
    }

    /// Returns the NUMA node of the controller that a drive is attached to, if known.
    pub(crate) fn node_of(&self, spec: &Spec) -> Option<NodeId> {
        controller_of(spec, &self.controllers).ok().flatten()?.config().node
    }

    /// Opens the next drive, and makes a disk of it. A drive that fails to open also takes an index
    /// in `places`, where the index is the drive's position in the order of opening.
    pub(crate) fn open(
        &mut self,
        drive: &DriveConfig,
        created: &mut UnfinishedFiles,
    ) -> Result<OpenedDisk, SetupError> {
        let (name, spec) = (drive.name.as_str(), &drive.spec);
        let opened = match self.driver.take() {
            Some(driver) => Ok(driver),
            // Ignores an invalid spec here, because `open_driver` reports it.
            None => self.places.check(name, file_place(spec).ok().flatten()).and_then(|()| {
                let opened = self.open_driver(drive, created);
                opened.map_err(|error| self.places.explain(name, spec, error))
            }),
        };
        let identity = opened.as_ref().ok().and_then(|opened| opened.identity);
        let opened = opened.and_then(|opened| self.assemble(drive, opened));
        let place = opened.as_ref().ok().and_then(|opened| {
            let read_only = opened.disk.limits().features.read_only;
            identity.map(|identity| DataPlace { identity, read_only })
        });
        let free = self.places.take(name, place);
        let opened = opened?;
        free.map(|()| opened)
    }

    fn open_driver(
        &self,
        drive: &DriveConfig,
        created: &mut UnfinishedFiles,
    ) -> Result<Opened, SetupError> {
        // A drive's worker thread needs a queue of its own, besides the queues of the I/O threads.
        let has_worker = drive.options.worker.is_some();
        let queues = self.io_threads.max(1).saturating_add(u16::from(has_worker));
        let free_path = drive.spec.file().filter(|path| file_id(path).is_none());
        let opened = millrace_drives::open_with(&drive.spec, queues, &self.open);
        let opened = opened.map_err(|cause| SetupError::of_drive(&drive.name, cause))?;
        created.note(free_path, opened.identity);
        Ok(opened)
    }

    fn assemble(&self, drive: &DriveConfig, opened: Opened) -> Result<OpenedDisk, SetupError> {
        let DriveConfig { name, spec, options } = drive;
        let controller = controller_of(spec, &self.controllers);
        let config = DiskConfig {
            name: name.clone(),
            baseline: options.stack.into(),
            software_queues: options.software_queues,
            hardware_queues: options.hardware_queues,
            queue_depth: options.queue_depth,
            timeout: options.timeout,
            cost: options.cost,
            io_threads: self.io_threads.max(1),
            controller: controller.map_err(|cause| SetupError::of_drive(name, cause))?,
            groups: self.groups.clone(),
            worker: options.worker,
            tracer: self.tracer.clone(),
            device: drive_device(options.minor),
            ..DiskConfig::default()
        };
        let disk = Disk::new(opened.driver, config)?;
        if options.scheduler != SchedulerKind::None {
            disk.set_scheduler(options.scheduler)?;
        }
        if let (Some(control), None) = (&opened.fault, spec.get("name")) {
            control.set_name(name);
        }
        let of_drive = |note| format!("drive {name}: {note}");
        let notes = opened.notes.into_iter().map(of_drive).collect();
        let warnings = opened.warnings.into_iter().map(of_drive).collect();
        Ok(OpenedDisk { disk, notes, warnings })
    }
}
