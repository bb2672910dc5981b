//! `Opening`: opens the drives of a configuration one after another, and makes volumes of them.
//!
//! A program may do work of its own before and after each drive; [`Opened::open`] opens all drives
//! in one call. A dropped `Opening` closes its drives and removes the files that it created.

pub(crate) mod site;

use std::sync::Arc;

#[cfg(feature = "serve")]
use millrace_block::Controller;
use millrace_block::{Disk, Error, ErrorKind, Groups, Volume};
use millrace_cache::Cache;
use millrace_drives::{Cancel, DryRun};
use millrace_machine::{Cpu, CpuId, Machine, Native, Topology, debug_fields};
use millrace_reactor::{Backend, Config};
use millrace_runtime::{DriveWorkers, Pinning, WorkerCpus, worker_cpus};

use self::site::OpenSite;
use crate::assemble::DriveOptions;
use crate::cache::cache_over;
use crate::config::{ConfigPart, DriveConfig, OpenConfig, StartError};
use crate::created::{Created, UnfinishedFiles};
use crate::groups::open_groups;
use crate::space::VolumeSpace;

/// Opened volumes, with their groups and caches.
pub struct Opened {
    /// Volumes in the order of the configuration.
    pub volumes: Vec<Arc<Volume<Native>>>,
    /// Caches of the volumes that have one, each with the queue number of its flusher.
    pub caches: Vec<(Arc<Cache<Native>>, u16)>,
    /// Groups among which the capacity of the drives is divided. All volumes use the same groups.
    pub groups: Arc<Groups<Native>>,
    /// Policy for pinning the drives' workers to CPUs.
    pub pinning: Pinning,
    /// Notes about drives and volumes for the user, such as unused space.
    pub notes: Vec<String>,
    /// Warnings about likely mistakes. For example, the file of a drive contains a qcow2 image.
    pub warnings: Vec<String>,
    /// Files that opening created. A program that fails later removes them.
    pub created: Created,
    /// State that drives opened later will use as well, such as the controllers. `None` in the
    /// result of `open_more`.
    #[cfg_attr(not(feature = "serve"), allow(dead_code))] // Only servers open more.
    site: Option<OpenSite>,
}

debug_fields!(Opened, volumes, created, notes, warnings);

#[cfg(feature = "serve")]
impl Opened {
    /// Opens further volumes with the groups, controllers and tracer of `self`. The caller adds the
    /// result to `self`. If the driver of the first new drive is open already, the caller passes it
    /// as `driver`. In a dry run, the drives are only examined.
    pub(crate) fn open_more(
        &mut self,
        config: &OpenConfig,
        driver: Option<millrace_drives::Opened>,
        dry_run: Option<DryRun>,
    ) -> Result<Opened, StartError> {
        let mut site = self.site.take().expect("drives are opened by one caller at a time");
        (site.driver, site.open.dry_run) = (driver, dry_run);
        let (site, opened) = Opening::at(config, site, &free_cpus(config)).complete();
        self.site = Some(site);
        opened
    }

    /// Removes the records of closed drives, so that other drives may use the same files.
    pub(crate) fn forget_drives(&mut self, is_closed: impl Fn(&str) -> bool) {
        self.site.iter_mut().for_each(|site| site.places.forget(&is_closed));
    }

    pub(crate) fn controllers(&mut self) -> &mut Vec<Arc<Controller<Native>>> {
        &mut self.site.as_mut().expect("drives are opened by one caller at a time").controllers
    }
}

impl Opened {
    /// Returns the volume with this name.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if no volume has this name.
    pub fn volume(&self, name: &str) -> Result<&Arc<Volume<Native>>, Error> {
        let volume = self.volumes.iter().find(|volume| volume.name() == name);
        let text = || format!("no volume {name} was opened");
        volume.ok_or_else(|| Error::new(ErrorKind::InvalidSetting, text()))
    }

    /// Opens all drives and makes all volumes.
    ///
    /// # Errors
    /// Returns the first failure. All drives opened before are closed again, and created files are
    /// removed.
    pub fn open(config: &OpenConfig) -> Result<Opened, StartError> {
        Opening::new(config)?.finish()
    }

    /// Examines all drives and makes volumes of them, without changing anything. Continues after a
    /// failure.
    ///
    /// # Errors
    /// Fails as [`Opening::new`] does.
    pub fn dry_run(config: &OpenConfig, dry_run: DryRun) -> Result<DryOpened, StartError> {
        let mut opening = Opening::new(config)?;
        opening.site.open.dry_run = Some(dry_run);
        let mut found = DryOpened::default();
        while opening.next_drive().is_some() {
            found.errors.extend(opening.open_next().err());
        }
        for number in 0..config.volumes.len() {
            match opening.make_volume(number).transpose() {
                Ok(volume) => found.volumes.extend(volume),
                Err(error) => found.errors.push(error),
            }
        }
        (found.notes, found.warnings) = (opening.notes, opening.warnings);
        found.notes.extend(found.volumes.iter().filter_map(unused_space));
        Ok(found)
    }

    /// Starts worker threads for the volumes that use them, and the flushers of caches.
    ///
    /// # Errors
    /// Fails as [`DriveWorkers::start`] does.
    pub fn start_workers(&self, backend: Backend) -> Result<DriveWorkers, Error> {
        let disks = self.volumes.iter().flat_map(|volume| volume.drives().iter().cloned());
        let reactor = Config { backend, ..Config::default() };
        let mut workers = DriveWorkers::start(&disks.collect::<Vec<_>>(), reactor, self.pinning)?;
        for (cache, number) in &self.caches {
            workers.add_flusher(cache, *number, reactor)?;
        }
        Ok(workers)
    }
}

/// Findings of [`Opened::dry_run`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DryOpened {
    /// Volumes that could be made from their drives. A dry run creates no caches, so a volume with
    /// a configured cache is listed without the cache.
    pub volumes: Vec<Arc<Volume<Native>>>,
    /// Reasons why drives or volumes could not be opened.
    pub errors: Vec<StartError>,
    /// Notes about drives and volumes for the user, such as unused space.
    pub notes: Vec<String>,
    /// Likely mistakes, such as a drive's file that holds a qcow2 image.
    pub warnings: Vec<String>,
}

fn unused_space(volume: &Arc<Volume<Native>>) -> Option<String> {
    VolumeSpace::of(volume).note(volume.name())
}

type VolumesAndCaches = (Vec<Arc<Volume<Native>>>, Vec<(Arc<Cache<Native>>, u16)>);

/// Drives that are being opened. Dropping this value before [`Opening::finish`] removes the files
/// that it created.
pub struct Opening<'a> {
    config: &'a OpenConfig,
    drives: Vec<(&'a DriveConfig, usize)>,
    site: OpenSite,
    /// CPU of each drive's worker; `None` if the drive has no worker.
    workers: Vec<Option<CpuId>>,
    /// Block-layer object (`Disk`) of each drive opened so far. `None` for a drive that failed to
    /// open; only a dry run continues after that.
    disks: Vec<Option<Arc<Disk<Native>>>>,
    created: UnfinishedFiles,
    groups: Arc<Groups<Native>>,
    pinning: Pinning,
    notes: Vec<String>,
    warnings: Vec<String>,
}

debug_fields!(Opening<'_>, config, created, notes, warnings);

impl<'a> Opening<'a> {
    /// Prepares to open the drives of `config`. No drive is open yet.
    ///
    /// # Errors
    /// Fails as [`OpenConfig::validate`] does, and if groups or a controller are invalid on this
    /// machine.
    pub fn new(config: &'a OpenConfig) -> Result<Opening<'a>, StartError> {
        config.validate()?;
        let mut site = OpenSite::new(&config.controllers)?;
        site.groups = Some(open_groups(&config.groups)?);
        Ok(Opening::at(config, site, &free_cpus(config)))
    }

    /// Starts to open volumes in addition to those already open. `config` contains only the new
    /// volumes; its groups and controllers are ignored. Workers of drives get the CPUs `cpus` in
    /// turn.
    pub(crate) fn at(config: &'a OpenConfig, site: OpenSite, cpus: &[CpuId]) -> Opening<'a> {
        let groups = site.groups.clone().unwrap_or_else(Groups::new);
        let topology = Native::topology();
        let workers = workers(config, &site, &mut WorkerCpus::new(cpus, &topology));
        let volumes = config.volumes.iter().enumerate();
        let drives =
            volumes.flat_map(|(at, volume)| volume.drives.iter().map(move |one| (one, at)));
        Opening {
            config,
            drives: drives.collect(),
            site,
            workers,
            disks: Vec::new(),
            created: UnfinishedFiles::default(),
            groups,
            pinning: pinning(&topology, &config.pinned_cpus),
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Makes [`Opening::open_next`] fail early once `cancel` is set, if it waits for a lock, a
    /// server or a cluster.
    #[must_use]
    pub fn cancelled_by(mut self, cancel: Cancel) -> Opening<'a> {
        self.site.open.cancel = cancel;
        self
    }

    /// Returns the files created so far. If this `Opening` is dropped, the files are removed.
    #[must_use]
    pub fn created(&self) -> &Created {
        &self.created.0
    }

    /// Returns the drive that [`Opening::open_next`] will open, or `None` if all are open.
    #[must_use]
    pub fn next_drive(&self) -> Option<&'a DriveConfig> {
        self.drives.get(self.disks.len()).map(|(drive, _)| *drive)
    }

    /// Opens the next drive.
    ///
    /// # Errors
    /// Fails if the drive cannot be opened, or its file belongs to another drive.
    ///
    /// # Panics
    /// Panics if all drives are open.
    pub fn open_next(&mut self) -> Result<(), StartError> {
        let number = self.disks.len();
        let drive = self.next_drive().expect("a drive of the configuration is not open yet");
        let (worker, minor) = (self.workers[number], self.site.opened);
        let options = DriveOptions { worker, minor, ..drive.options };
        let drive = DriveConfig { options, ..drive.clone() };
        self.site.io_threads = self.io_threads_of(self.drives[number].1);
        self.site.opened += 1;
        let opened = self.site.open(&drive, &mut self.created);
        self.disks.push(opened.as_ref().ok().map(|opened| Arc::clone(&opened.disk)));
        let opened = opened.map_err(|error| StartError::new(ConfigPart::Drive(number), error))?;
        self.notes.extend(opened.notes);
        self.warnings.extend(opened.warnings);
        Ok(())
    }

    fn open_rest(&mut self) -> Result<(), StartError> {
        while self.next_drive().is_some() {
            self.open_next()?;
        }
        Ok(())
    }

    /// Opens the drives that are not open yet, and creates the volumes.
    ///
    /// # Errors
    /// Fails as [`Opening::open_next`] does, and if the drives cannot form a volume.
    pub fn finish(self) -> Result<Opened, StartError> {
        let (site, opened) = self.complete();
        Ok(Opened { site: Some(site), ..opened? })
    }

    /// Opens the remaining drives and creates the volumes. Also returns the `OpenSite`, the state
    /// that all drives of the program share. After a failure, the `OpenSite` no longer records the
    /// files and devices of the drives of this `Opening`.
    pub(crate) fn complete(mut self) -> (OpenSite, Result<Opened, StartError>) {
        let made = self.open_rest().and_then(|()| self.make_volumes());
        let Opening { mut site, mut created, groups, pinning, mut notes, warnings, drives, .. } =
            self;
        if made.is_err() {
            site.places.forget(|name| drives.iter().any(|(drive, _)| drive.name == name));
        }
        let opened = made.map(|(volumes, caches)| {
            notes.extend(volumes.iter().filter_map(unused_space));
            let created = created.keep();
            Opened { volumes, caches, groups, pinning, notes, warnings, created, site: None }
        });
        (site, opened)
    }

    fn make_volumes(&mut self) -> Result<VolumesAndCaches, StartError> {
        let (mut volumes, mut caches) = (Vec::new(), Vec::new());
        for (number, volume) in self.config.volumes.iter().enumerate() {
            let mut made = self.make_volume(number).expect("all drives are open")?;
            if let Some(config) = volume.cache {
                let threads = self.config.io_threads.get(number).copied().unwrap_or(1).max(1);
                let (cached, cache) = cache_over(made, config, threads)
                    .map_err(|error| StartError::new(ConfigPart::Volume(number), error))?;
                made = cached;
                caches.push((cache, threads));
            }
            volumes.push(made);
        }
        Ok((volumes, caches))
    }

    /// Makes a volume without its cache. Returns `None` if one of its drives is not open.
    fn make_volume(&self, number: usize) -> Option<Result<Arc<Volume<Native>>, StartError>> {
        let volume = &self.config.volumes[number];
        let is_its = |(_, (_, at)): &(_, &(_, usize))| *at == number;
        let members = self.disks.iter().zip(&self.drives).filter(is_its);
        let members = members.map(|(disk, _)| disk.clone()).collect::<Option<Vec<_>>>()?;
        let made =
            Volume::with_serving(volume.name.as_str(), volume.layout, members, volume.serving);
        Some(made.map_err(|error| StartError::new(ConfigPart::Volume(number), error)))
    }

    fn io_threads_of(&self, volume: usize) -> u16 {
        let threads = self.config.io_threads.get(volume).copied().unwrap_or(1);
        match self.config.volumes[volume].cache {
            // The flusher of a cache also needs a queue of each drive.
            Some(_) => threads.max(1).saturating_add(1),
            None => threads,
        }
    }
}

/// Returns the CPU of each drive's worker, in the order of the drives; `None` for drives of a
/// volume without workers.
fn workers(config: &OpenConfig, site: &OpenSite, cpus: &mut WorkerCpus) -> Vec<Option<CpuId>> {
    let mut workers = Vec::new();
    for volume in &config.volumes {
        let has_workers = volume.needs_workers();
        let mut cpu = |drive: &DriveConfig| cpus.next(site.node_of(&drive.spec));
        workers.extend(volume.drives.iter().map(|drive| has_workers.then(|| cpu(drive)).flatten()));
    }
    workers
}

fn free_cpus(config: &OpenConfig) -> Vec<CpuId> {
    worker_cpus(&Native::topology(), &config.pinned_cpus)
}

/// Returns `Pinned` if I/O threads are pinned to the CPUs `busy` and another CPU is left for
/// workers. Otherwise the kernel chooses the workers' CPUs.
fn pinning(topology: &Topology, busy: &[CpuId]) -> Pinning {
    let is_free = |cpu: &Cpu| !busy.contains(&cpu.id);
    match !busy.is_empty() && topology.cpus().iter().any(is_free) {
        true => Pinning::Pinned,
        false => Pinning::Free,
    }
}

#[cfg(test)]
mod tests {
    use millrace_block::ControllerConfig;

    use super::*;
    use crate::config::VolumeConfig;

    #[test]
    fn workers_are_pinned_only_beside_threads_with_cpus_left() {
        let topology = Topology::uniform(1, 2);
        let ids = |cpus: &[u32]| cpus.iter().copied().map(CpuId).collect::<Vec<_>>();
        let place = |busy: &[u32]| {
            let busy = ids(busy);
            (pinning(&topology, &busy), worker_cpus(&topology, &busy))
        };
        assert_eq!(place(&[]), (Pinning::Free, ids(&[1])));
        assert_eq!(place(&[1]), (Pinning::Pinned, ids(&[0])), "CPU 0 is free");
        assert_eq!(place(&[0, 0]), (Pinning::Pinned, ids(&[1])));
        assert_eq!(place(&[0, 1]).0, Pinning::Free, "no CPU is");
    }

    #[test]
    fn a_file_of_two_drives_is_refused_at_the_second() {
        let dir = tempfile::tempdir().unwrap();
        let spec = |path: &str| format!("file:path={}/{path},size=1m", dir.path().display());
        let drive = |name: &str, path: &str| DriveConfig::new(name, spec(path).parse().unwrap());
        let drives = vec![drive("a", "x"), drive("b", "./x")];
        let volumes = vec![VolumeConfig::new("v", drives)];
        let error = Opened::open(&OpenConfig { volumes, ..OpenConfig::default() }).err().unwrap();
        let text = "drive b: its file, export or image is that of drive a, too; give each drive \
                    one of its own";
        assert_eq!((error.part, error.to_string().as_str()), (ConfigPart::Drive(1), text));
    }

    #[test]
    fn drives_of_one_controller_share_its_tags() {
        let config = |name: &str| ControllerConfig {
            name: name.into(),
            tags: 10,
            sharing: millrace_block::Sharing::Controller,
            node: None,
        };
        let controllers = vec![config("a"), config("b")];
        let mut site = OpenSite::new(&controllers).unwrap();
        let mut open = |text: &str| {
            let drive = DriveConfig::new("d", text.parse().unwrap());
            site.open(&drive, &mut UnfinishedFiles::default())
        };
        let hung = ["null@a:", "null@a:", "null@b:", "null:"].map(|text| open(text).unwrap().disk);
        let error = open("null@c:").err().unwrap();
        let users = site.controllers.iter().map(Arc::strong_count).collect::<Vec<_>>();
        assert_eq!((hung.len(), users), (4, vec![3, 2]));
        let text = "cannot open drive d: there is no controller `c`; there are: a, b";
        assert_eq!(error.to_string(), text);
    }
}
