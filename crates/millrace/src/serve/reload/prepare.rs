//! Prepares a reload without changing anything: opens groups and drives, starts threads, binds
//! sockets.
//!
//! If a step fails, the earlier ones are undone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Controller, Error, Volume};
use millrace_drives::DryRun;
use millrace_exports::nbd::{self, ExportChange};
use millrace_machine::Native;

use super::{ReloadPlan, VolumeQueues, drive_names, parents_first};
use crate::assemble::SetupError;
use crate::config::{ConfigPart, OpenConfig, StartError, VolumeConfig};
use crate::opening::Opened;
use crate::serve::Server;
use crate::serve::groups::ServedGroups;
use crate::serve::servers::{NbdParts, failed};

/// Time for which a dry run waits for files that other processes have locked.
const DRY_RUN_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct PreparedReload {
    pub(super) more: Opened,
    pub(super) groups: Vec<String>,
    /// Number of storage controllers before the reload. If the reload fails, controllers with this
    /// index or a higher one are removed.
    pub(super) controllers: usize,
    pub(super) guests: Vec<String>,
    pub(super) nbd: PreparedNbd,
    pub(super) nbd_places: Vec<usize>,
    /// Groups that this reload has replaced, to restore them if the reload fails. `None` if the
    /// reload has not replaced the groups yet.
    pub(super) groups_before: Option<ServedGroups>,
}

pub(super) enum PreparedNbd {
    None,
    Change(ExportChange),
    Start(nbd::Server),
}

impl Server {
    pub(super) fn prepare(&mut self, plan: ReloadPlan<'_>) -> Result<PreparedReload, StartError> {
        let (controllers, mut groups) = (self.opened.controllers().len(), Vec::new());
        let more = self.open_more(plan, &mut groups).inspect_err(|_| {
            self.close_groups(&groups);
            self.opened.controllers().truncate(controllers);
        })?;
        let mut prepared = PreparedReload {
            more,
            groups,
            controllers,
            guests: Vec::new(),
            nbd: PreparedNbd::None,
            nbd_places: Vec::new(),
            groups_before: None,
        };
        match self.prepare_servers(plan, &mut prepared) {
            Ok(()) => Ok(prepared),
            Err(error) => {
                self.undo(prepared);
                Err(error)
            }
        }
    }

    fn open_more(
        &mut self,
        plan: ReloadPlan<'_>,
        groups: &mut Vec<String>,
    ) -> Result<Opened, StartError> {
        let ReloadPlan { new, difference, options } = plan;
        for config in &new.controllers {
            if difference.added_controllers.contains(&config.name) {
                self.opened.controllers().push(Controller::new(config.clone())?);
            }
        }
        let table = Arc::clone(self.servers.groups.table());
        for config in parents_first(&difference.added_groups) {
            table.open(config.for_layer(&table)?)?;
            groups.push(config.name.clone());
        }
        let of_new = VolumeQueues::of(new);
        let queues = |volume: &VolumeConfig| of_new[&volume.name].all;
        let config = OpenConfig {
            io_threads: new.queues_of_drives(difference.added_volumes.iter().map(queues).collect()),
            volumes: difference.added_volumes.clone(),
            pinned_cpus: new.pinned_cpus(),
            ..OpenConfig::default()
        };
        let until = Instant::now() + DRY_RUN_PATIENCE;
        let dry_run = options.dry_run.then_some(DryRun { until, new_folder: None });
        let opened = self.opened.open_more(&config, None, dry_run);
        opened.map_err(|error| plan.renumbered(error))
    }

    /// Starts the threads of added volumes and exports, and binds sockets. A dry run starts none.
    fn prepare_servers(
        &mut self,
        plan: ReloadPlan<'_>,
        prepared: &mut PreparedReload,
    ) -> Result<(), StartError> {
        let ReloadPlan { new, options, .. } = plan;
        let more = &prepared.more;
        (options.before_serving)(more)
            .map_err(|text| StartError::invalid(ConfigPart::Whole, text))?;
        let mut volumes = self.opened.volumes.clone();
        volumes.extend(more.volumes.iter().cloned());
        if !options.dry_run {
            self.start_workers_of(more)?;
        }
        let groups = self.servers.groups.followed_by(new)?;
        let parts = NbdParts::new(new, &volumes, &groups)?;
        prepared.nbd_places.clone_from(&parts.places);
        prepared.nbd = match &self.servers.nbd {
            Some(nbd) => {
                let change = nbd.prepare(parts.exports, &parts.listeners);
                PreparedNbd::Change(change.map_err(|error| failed(new, error))?)
            }
            None if parts.listeners.is_empty() || options.dry_run => PreparedNbd::None,
            None => PreparedNbd::Start(parts.start(new, &self.servers.requests)?),
        };
        if options.dry_run {
            return Ok(());
        }
        // Sets the new groups before exports to virtual machines start, because the exports'
        // clients join the groups.
        prepared.groups_before = Some(std::mem::replace(&mut self.servers.groups, groups));
        self.start_guests(plan, &volumes, &mut prepared.guests)
    }

    fn start_guests(
        &mut self,
        plan: ReloadPlan<'_>,
        volumes: &[Arc<Volume<Native>>],
        started: &mut Vec<String>,
    ) -> Result<(), StartError> {
        let ReloadPlan { new, difference, .. } = plan;
        let changed = difference.changed_exports.iter();
        let changed = changed.filter(|(before, _)| before.guests.is_none()).map(|(_, now)| now);
        let of_new = VolumeQueues::of(new);
        for export in difference.added_exports.iter().chain(changed) {
            let Some(volume) = volumes.iter().find(|volume| volume.name() == export.volume) else {
                continue;
            };
            let queues = self.queues.get(&export.volume).or_else(|| of_new.get(&export.volume));
            let queues = queues.copied().unwrap_or_default();
            self.servers.add_guests(new, export, (volume, queues.of_guests()))?;
            started.push(export.name.clone());
        }
        Ok(())
    }

    pub(super) fn undo(&mut self, prepared: PreparedReload) {
        let PreparedReload { more, groups, controllers, guests, nbd, groups_before, .. } = prepared;
        drop(nbd);
        let names: Vec<&str> = guests.iter().map(String::as_str).collect();
        let _ = self.servers.remove_guests(&names, Duration::ZERO);
        if let Some(before) = groups_before {
            self.servers.groups = before;
        }
        self.close_more(more);
        self.close_groups(&groups);
        self.opened.controllers().truncate(controllers);
    }

    pub(in crate::serve) fn start_workers_of(&mut self, more: &Opened) -> Result<(), Error> {
        let disks = more.volumes.iter().flat_map(|volume| volume.drives().iter().cloned());
        self.workers.add(&disks.collect::<Vec<_>>())?;
        let reactor = self.reactor();
        let mut flushers = more.caches.iter();
        flushers.try_for_each(|(cache, number)| self.workers.add_flusher(cache, *number, reactor))
    }

    pub(in crate::serve) fn close_more(&mut self, more: Opened) {
        for (cache, _) in &more.caches {
            let _ = self.workers.remove_flusher(cache);
        }
        self.end_workers(&more.volumes, &mut Vec::new());
        let Opened { volumes, caches, mut created, .. } = more;
        let names: Vec<String> = drive_names(&volumes).map(str::to_owned).collect();
        drop((caches, volumes));
        self.opened.forget_drives(|name| names.iter().any(|drive| drive == name));
        created.remove();
    }

    fn close_groups(&self, names: &[String]) {
        // `names` lists parent groups before their children, but children must be closed first.
        for name in names.iter().rev() {
            let _ = self.servers.groups.close(name);
        }
    }
}

impl ReloadPlan<'_> {
    /// Renumbers the added volume or drive that `error` names: replaces its index among the added
    /// ones by its index in the new configuration.
    fn renumbered(self, error: StartError) -> StartError {
        let ReloadPlan { new, difference, .. } = self;
        let drive_of = |name: &str| new.drives().position(|drive| drive.name == name);
        let part = match error.part {
            ConfigPart::Volume(at) => {
                let name = difference.added_volumes.get(at).map(|volume| &volume.name);
                let number = name.and_then(|name| new.volume_number(name));
                number.map_or(ConfigPart::Whole, ConfigPart::Volume)
            }
            ConfigPart::Drive(at) => {
                let mut drives = difference.added_volumes.iter().flat_map(|volume| &volume.drives);
                let number = drives.nth(at).and_then(|drive| drive_of(&drive.name));
                number.map_or(ConfigPart::Whole, ConfigPart::Drive)
            }
            part => part,
        };
        match *error.source {
            SetupError::SameFile { name, other_name, .. } => match drive_of(&other_name) {
                Some(other) => {
                    let source = SetupError::SameFile { name, other, other_name };
                    StartError { part, source: Box::new(source) }
                }
                None => {
                    let text = format!(
                        "drive {name}: its file, export or image is that of drive {other_name}, \
                         which is open until this reload is done: remove that one, reload, and \
                         add this one then"
                    );
                    StartError::invalid(part, text)
                }
            },
            source => StartError { part, source: Box::new(source) },
        }
    }
}
