//! Switches a running server to another configuration: completely or not at all.
//!
//! [`Server::reload`] compares the configurations (difference.rs), refuses changes that are
//! impossible or would disconnect clients without permission, and prepares everything that can
//! fail: opens drives, binds sockets, starts threads. Removed volumes are flushed before they are
//! closed; if a flush fails, nothing changes. The final switch cannot fail. I/O continues
//! meanwhile.

mod prepare;
mod removal;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use millrace_block::{Disk, GroupId, Volume};
use millrace_exports::ClientReport;
use millrace_machine::{Native, debug_fields};
use millrace_reactor::Config;

use self::prepare::{PreparedNbd, PreparedReload};
pub(super) use self::removal::flush_and_wait;
use super::Server;
use super::config::{ExportConfig, ServeConfig};
use super::difference::{ConfigDifference, ReloadRefusal};
use crate::config::{StartError, VolumeConfig};
use crate::groups::{DEFAULT_GROUP, GroupConfig, open_groups};
use crate::opening::Opened;

/// Options of a reload.
#[derive(Clone, Copy)]
pub struct ReloadOptions<'a> {
    /// If true, drives are opened and sockets bound as for a reload, but nothing changes.
    pub dry_run: bool,
    /// If true, clients of removed exports are disconnected. If false, such clients make the reload
    /// fail.
    pub disconnect: bool,
    /// If true, volumes are removed even if their cached data cannot be written and is lost.
    pub force: bool,
    /// Callback that checks open volumes before they are served. If the callback returns an error,
    /// the reload is refused.
    pub before_serving: &'a dyn Fn(&Opened) -> Result<(), String>,
}

impl Default for ReloadOptions<'_> {
    fn default() -> Self {
        ReloadOptions {
            dry_run: false,
            disconnect: false,
            force: false,
            before_serving: &|_| Ok(()),
        }
    }
}

debug_fields!(ReloadOptions<'_>, dry_run, disconnect, force);

/// Result of a reload, or of a dry run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// Changes that were made.
    pub difference: ConfigDifference,
    /// Remarks about opened drives, and harmless failures.
    pub notes: Vec<String>,
    /// Texts about likely mistakes, and about data lost because of `force`.
    pub warnings: Vec<String>,
}

/// Reason why a configuration was not loaded. The served configuration has not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// The running server cannot make these changes, or clients use the exports to be removed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<ReloadRefusal>),
    /// The configuration is invalid, or a part of it cannot be opened or served.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Configuration to switch to, with its changes from the served one.
#[derive(Clone, Copy)]
struct ReloadPlan<'a> {
    new: &'a ServeConfig,
    difference: &'a ConfigDifference,
    options: &'a ReloadOptions<'a>,
}

/// Number of hardware queues for I/O threads on each drive of a volume; each thread has one queue.
/// The first `nbd` queues belong to the NBD threads. Queues from `nbd` to `all - 1` belong to
/// threads that serve virtual machines. A drive may have more queues, for threads of the program
/// (`ServerConfig::own_threads`), a cache's flusher and a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct VolumeQueues {
    nbd: u16,
    all: u16,
}

impl VolumeQueues {
    pub(super) fn of(config: &ServeConfig) -> HashMap<String, VolumeQueues> {
        let nbd = config.nbd_threads();
        let volumes = config.volumes.iter().zip(config.io_threads());
        volumes.map(|(volume, all)| (volume.name.clone(), VolumeQueues { nbd, all })).collect()
    }

    pub(super) fn of_nbd(threads: u16) -> VolumeQueues {
        VolumeQueues { nbd: threads, all: threads }
    }

    fn of_guests(self) -> Range<u16> {
        self.nbd..self.all
    }
}

impl Server {
    /// Returns the served configuration, with the current settings of groups and drives.
    #[must_use]
    pub fn config(&self) -> ServeConfig {
        let mut config = self.config.clone();
        let is_configured = |group: &GroupConfig| {
            group.name == DEFAULT_GROUP || self.config.groups.iter().any(|it| it.name == group.name)
        };
        config.groups = self.servers.groups.list().into_iter().filter(is_configured).collect();
        for (volume, settings) in self.opened.volumes.iter().zip(&mut config.volumes) {
            for (disk, drive) in volume.drives().iter().zip(&mut settings.drives) {
                drive.options.scheduler = disk.scheduler().unwrap_or_default();
            }
        }
        config
    }

    /// Switches to another configuration, or changes nothing. Clients of exports that stay are not
    /// disturbed.
    ///
    /// # Errors
    /// Returns the reason; nothing has changed in that case.
    pub fn reload(
        &mut self,
        new: &ServeConfig,
        options: &ReloadOptions<'_>,
    ) -> Result<Reloaded, ReloadError> {
        let new = &self.with_open_files(new);
        new.validate()?;
        new.to_open().validate()?;
        open_groups(&new.groups).map_err(StartError::from)?;
        let difference = ConfigDifference::new(&self.config(), new);
        let plan = ReloadPlan { new, difference: &difference, options };
        let refused = self.refusals(plan);
        if !refused.is_empty() {
            return Err(ReloadError::Refused(refused));
        }
        let prepared = self.prepare(plan)?;
        let (notes, mut warnings) = (prepared.more.notes.clone(), prepared.more.warnings.clone());
        if options.dry_run {
            self.undo(prepared);
            return Ok(Reloaded { difference, notes, warnings });
        }
        match self.let_go(plan) {
            Ok(lost) => warnings.extend(lost),
            Err(failures) => {
                self.undo(prepared);
                let failures = failures.into_iter().map(ReloadRefusal::Other);
                return Err(ReloadError::Refused(failures.collect()));
            }
        }
        warnings.extend(self.switch(plan, prepared));
        Ok(Reloaded { difference, notes, warnings })
    }

    fn refusals(&self, plan: ReloadPlan<'_>) -> Vec<ReloadRefusal> {
        let ReloadPlan { new, difference, options } = plan;
        let mut refused = difference.refused.clone();
        let clients = self.servers.observers().clients();
        let removed = difference.removed_exports.iter().map(|export| (export, true, true));
        let changed = difference.changed_exports.iter().map(|(before, now)| {
            let loses_nbd = !before.nbd.is_empty() && now.nbd.is_empty();
            (before, loses_nbd, before.guests.is_some() && now.guests.is_none())
        });
        for (export, loses_nbd, loses_guests) in
            removed.chain(changed).filter(|_| !options.disconnect)
        {
            let name = &export.name;
            let is_its = |client: &&ClientReport| {
                let loses = if client.protocol == "nbd" { loses_nbd } else { loses_guests };
                loses && client.export == *name
            };
            let its: Vec<String> = clients
                .iter()
                .filter(is_its)
                .map(|client| format!("client {} ({})", client.number, client.peer))
                .collect();
            if !its.is_empty() {
                let (export, clients) = (name.clone(), its.join(", "));
                refused.push(ReloadRefusal::ExportInUse { export, clients });
            }
        }
        refused.extend(self.unwritable(difference).filter(|_| !options.force));
        for group in &difference.removed_groups {
            let is_kept = |client: &&ClientReport| {
                let of_export = |one: &ExportConfig| one.name == client.export;
                !difference.removed_exports.iter().any(of_export)
            };
            let mut its = clients.iter().filter(is_kept);
            let is_in =
                |group_id: GroupId| self.servers.groups.configured_name(group_id) == group.name;
            if let Some(client) = its.find(|client| is_in(client.group)) {
                let (group, export) = (group.name.clone(), client.export.clone());
                refused.push(ReloadRefusal::GroupInUse { group, client: client.number, export });
            }
        }
        let changed = difference.changed_exports.iter().map(|(_, now)| now);
        for export in difference.added_exports.iter().chain(changed) {
            let Some(queues) = self.queues.get(&export.volume) else { continue };
            let is_removed = |one: &VolumeConfig| one.name == export.volume;
            if difference.removed_volumes.iter().any(is_removed) {
                continue;
            }
            let has_room = self.servers.free_queues(export, queues.of_guests()).is_some();
            if (!export.nbd.is_empty() && queues.nbd < new.nbd_threads()) || !has_room {
                refused.push(ReloadRefusal::Other(format!(
                    "export {}: the drives of volume {} were opened with queues for {} I/O \
                     threads, and this export needs more: remove the volume, reload, and add both again",
                    export.name, export.volume, queues.all
                )));
            }
        }
        refused
    }

    /// Returns a refusal for each removed volume whose cache cannot write its data, because a drive
    /// fails or does not answer.
    fn unwritable<'a>(
        &'a self,
        difference: &'a ConfigDifference,
    ) -> impl Iterator<Item = ReloadRefusal> + 'a {
        let is_removed = |name: &str| difference.removed_volumes.iter().any(|it| it.name == name);
        let caches = self.opened.caches.iter().map(|(cache, _)| cache);
        let caches = caches.filter(move |cache| is_removed(cache.below().name()));
        caches.filter_map(|cache| {
            let (volume, disks) = (cache.below().name(), cache.below().disks());
            let risk = cache.at_risk()?;
            let stuck = cache.stuck_drives();
            let failing = risk.drives.iter().filter(|of| of.failed.is_some()).map(|of| of.drive);
            let mut drives: Vec<usize> = failing.chain(stuck).collect();
            drives.sort_unstable();
            drives.dedup();
            let names: Vec<&str> = drives.iter().map(|drive| disks[*drive].name()).collect();
            (!names.is_empty()).then(|| {
                let (volume, drives) = (volume.to_owned(), names.join(", "));
                ReloadRefusal::Unwritten { volume, bytes: risk.bytes, drives }
            })
        })
    }

    /// Makes the changes, which cannot fail. Returns warnings.
    fn switch(&mut self, plan: ReloadPlan<'_>, prepared: PreparedReload) -> Vec<String> {
        let ReloadPlan { new, difference, .. } = plan;
        let PreparedReload { more, nbd, nbd_places, groups_before, .. } = prepared;
        match (nbd, &mut self.servers.nbd) {
            (PreparedNbd::Change(change), Some(nbd)) => drop(nbd.apply(change)),
            (PreparedNbd::Start(server), place) => *place = Some(server),
            _ => {}
        }
        let mut opened = std::mem::take(&mut self.opened.volumes);
        opened.extend(more.volumes);
        self.opened.caches.extend(more.caches);
        let numbers: HashMap<&str, usize> =
            new.volumes.iter().map(|one| one.name.as_str()).zip(0..).collect();
        let is_kept = |volume: &Arc<Volume<Native>>| numbers.contains_key(volume.name());
        let (mut kept, removed): (Vec<_>, Vec<_>) = opened.into_iter().partition(is_kept);
        kept.sort_by_key(|volume| numbers[volume.name()]);
        self.opened.volumes = kept;
        let mut warnings = self.change_settings(difference);
        groups_before.iter().for_each(|before| before.close_left(&self.servers.groups));
        self.end_workers(&removed, &mut warnings);
        let drives: Vec<String> = drive_names(&removed).map(str::to_owned).collect();
        drop(removed);
        self.opened.forget_drives(|name| drives.iter().any(|drive| drive == name));
        let removed = &difference.removed_controllers;
        self.opened.controllers().retain(|one| !removed.contains(&one.config().name));
        self.queues.retain(|name, _| numbers.contains_key(name.as_str()));
        for (name, queues) in VolumeQueues::of(new) {
            self.queues.entry(name).or_insert(queues);
        }
        self.servers.follow(new, nbd_places);
        self.config = new.clone();
        self.files.follow(&self.config.exports);
        warnings
    }

    fn change_settings(&mut self, difference: &ConfigDifference) -> Vec<String> {
        let mut warnings = Vec::new();
        let changed: Vec<GroupConfig> =
            difference.changed_groups.iter().map(|(_, now)| now.clone()).collect();
        for group in parents_first(&changed) {
            let set = self.servers.groups.set(group);
            warnings.extend(set.err().map(|error| error.to_string()));
        }
        for change in &difference.schedulers {
            let mut disks = self.opened.volumes.iter().flat_map(|volume| volume.drives());
            let disk = disks.find(|disk| disk.name() == change.drive);
            let set = disk.map_or(Ok(()), |disk| disk.set_scheduler(change.now));
            warnings.extend(set.err().map(|error| format!("drive {}: {error}", change.drive)));
        }
        let (children, tops): (Vec<_>, Vec<_>) =
            difference.removed_groups.iter().partition(|group| group.parent.is_some());
        for group in children.into_iter().chain(tops) {
            let closed = self.servers.groups.close(&group.name);
            warnings.extend(closed.err().map(|error| error.to_string()));
        }
        warnings
    }

    pub(super) fn end_workers(
        &mut self,
        volumes: &[Arc<Volume<Native>>],
        failures: &mut Vec<String>,
    ) {
        let is_its = |name: &str| volumes.iter().any(|volume| volume.name() == name);
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.opened.caches.drain(..).partition(|(cache, _)| is_its(cache.below().name()));
        self.opened.caches = kept;
        for (cache, _) in gone {
            failures.extend(self.workers.remove_flusher(&cache).err().map(|it| it.to_string()));
        }
        let disks: Vec<Arc<Disk<Native>>> =
            volumes.iter().flat_map(|volume| volume.drives().iter().cloned()).collect();
        failures.extend(self.workers.remove(&disks).err().map(|it| it.to_string()));
    }

    pub(super) fn reactor(&self) -> Config {
        Config { backend: self.config.server.backend, ..Config::default() }
    }
}

fn drive_names(volumes: &[Arc<Volume<Native>>]) -> impl Iterator<Item = &str> {
    volumes.iter().flat_map(|volume| volume.drives().iter().map(|disk| disk.name()))
}

fn parents_first(groups: &[GroupConfig]) -> impl Iterator<Item = &GroupConfig> {
    let tops = groups.iter().filter(|group| group.parent.is_none());
    tops.chain(groups.iter().filter(|group| group.parent.is_some()))
}
