//! `ConfigDifference`: the changes from a running configuration to another one.
//!
//! The comparison also finds changes that a running server cannot make, such as to the number of
//! I/O threads. reload.rs applies the difference; programs print it.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use millrace_block::{ControllerConfig, SchedulerKind};
use millrace_exports::nbd::Listen;

use super::config::{ExportConfig, ServeConfig, ServerConfig};
use crate::assemble::DriveOptions;
use crate::config::VolumeConfig;
use crate::groups::{DEFAULT_GROUP, GroupConfig};

/// Changes from the served configuration to another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigDifference {
    /// Volumes to add, with their drives.
    pub added_volumes: Vec<VolumeConfig>,
    /// Volumes to remove.
    pub removed_volumes: Vec<VolumeConfig>,
    /// Drives whose scheduler changes.
    pub schedulers: Vec<SchedulerChange>,
    /// Groups to add.
    pub added_groups: Vec<GroupConfig>,
    /// Groups to remove.
    pub removed_groups: Vec<GroupConfig>,
    /// Groups that change, as pairs of the current and the new settings.
    pub changed_groups: Vec<(GroupConfig, GroupConfig)>,
    /// Exports to add.
    pub added_exports: Vec<ExportConfig>,
    /// Exports to remove, whose clients are disconnected.
    pub removed_exports: Vec<ExportConfig>,
    /// Exports that change without disconnecting clients, as pairs of the current and the new
    /// settings.
    pub changed_exports: Vec<(ExportConfig, ExportConfig)>,
    /// NBD addresses to add.
    pub added_listeners: Vec<Listen>,
    /// NBD addresses to remove.
    pub removed_listeners: Vec<Listen>,
    /// NBD addresses with changed TLS settings. The new settings apply to clients that connect
    /// later.
    pub changed_listeners: Vec<Listen>,
    /// Names of storage controllers to add. All drives of a storage controller share its tags.
    pub added_controllers: Vec<String>,
    /// Names of storage controllers to remove.
    pub removed_controllers: Vec<String>,
    /// Changes that cannot be made while volumes are served.
    pub refused: Vec<ReloadRefusal>,
}

/// Reason why a running server does not make a change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages explain the fields.
pub enum ReloadRefusal {
    /// The reload removes an export that clients use, and [`ReloadOptions::disconnect`] is not set.
    ///
    /// [`ReloadOptions::disconnect`]: crate::ReloadOptions::disconnect
    #[error("export {export} is in use by {clients}")]
    ExportInUse { export: String, clients: String },
    /// The reload removes the group of a client, but not the export that the client uses.
    #[error(
        "group {group} is in use by client {client} of export {export}; disconnect that client \
         first"
    )]
    GroupInUse { group: String, client: u16, export: String },
    /// The cache of a volume that the reload removes cannot be written back, because a drive fails
    /// writes, and [`ReloadOptions::force`] is not set.
    ///
    /// [`ReloadOptions::force`]: crate::ReloadOptions::force
    #[error(
        "volume {volume}: {bytes} bytes are in its cache only, because drive {drives} fails to write them"
    )]
    Unwritten { volume: String, bytes: u64, drives: String },
    /// The reload changes a setting of [`ServerConfig`], which is possible only at the start of a
    /// server.
    #[error("{0} of the server cannot change while it runs")]
    ServerSetting(&'static str),
    /// Any other reason, as a text for the user. For example, a volume cannot be flushed.
    #[error("{0}")]
    Other(String),
}

/// Change of a drive's scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerChange {
    /// Name of the volume.
    pub volume: String,
    /// Name of the drive.
    pub drive: String,
    /// Current scheduler.
    pub before: SchedulerKind,
    /// New scheduler.
    pub now: SchedulerKind,
}

impl ConfigDifference {
    /// Lists the changes from `served`, which has the current settings, to `other`.
    #[must_use]
    pub fn new(served: &ServeConfig, other: &ServeConfig) -> ConfigDifference {
        let mut found = ConfigDifference::default();
        found.compare_servers(&served.server, &other.server);
        found.compare_controllers(served, other);
        found.compare_volumes(served, other);
        found.compare_groups(served, other);
        found.compare_exports(served, other);
        let listens = |config: &ServeConfig| -> Vec<Listen> {
            config.listeners().into_iter().map(|one| one.listen).collect()
        };
        let (before, now) = (listens(served), listens(other));
        let listeners = ComparedSections::new(&before, &now, |listen| listen);
        let is_changed = |listen: &Listen| served.tls_of(listen) != other.tls_of(listen);
        let both = listeners.both.into_iter().map(|(_, listen)| listen);
        found.changed_listeners = both.filter(|listen| is_changed(listen)).cloned().collect();
        found.added_listeners = listeners.added;
        found.removed_listeners = listeners.removed;
        found
    }

    /// Returns true if the configurations are equal.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == ConfigDifference::default()
    }

    fn refuse(&mut self, text: String) {
        self.refused.push(ReloadRefusal::Other(text));
    }

    fn compare_servers(&mut self, served: &ServerConfig, other: &ServerConfig) {
        let keys = [
            ("threads", served.threads != other.threads),
            ("own_threads", served.own_threads != other.own_threads),
            ("cpus", served.cpus != other.cpus),
            ("backend", served.backend != other.backend),
            ("connections-max", served.connections_max != other.connections_max),
            ("handshake-timeout", served.handshake_timeout != other.handshake_timeout),
            ("memory-max", served.memory_max_bytes != other.memory_max_bytes),
            ("spin", served.spin != other.spin),
        ];
        for (key, _) in keys.iter().filter(|(_, differs)| *differs) {
            self.refused.push(ReloadRefusal::ServerSetting(key));
        }
    }

    fn compare_controllers(&mut self, served: &ServeConfig, other: &ServeConfig) {
        let found = ComparedSections::new(&served.controllers, &other.controllers, |one| &one.name);
        for (_, one) in found.both.iter().filter(|(before, now)| before != now) {
            self.refuse(format!(
                "controller {}: its settings cannot change while drives use it; add a controller \
                 with another name instead",
                one.name
            ));
        }
        let names = |all: Vec<ControllerConfig>| all.into_iter().map(|one| one.name).collect();
        self.added_controllers = names(found.added);
        self.removed_controllers = names(found.removed);
    }

    fn compare_volumes(&mut self, served: &ServeConfig, other: &ServeConfig) {
        let found = ComparedSections::new(&served.volumes, &other.volumes, |one| &one.name);
        for (before, volume) in found.both {
            let fixed = fixed_keys(before, volume);
            if !fixed.is_empty() {
                self.refuse(format!(
                    "volume {}: {} cannot change while it is served; remove the volume and its \
                     exports, reload, and add them again",
                    volume.name,
                    fixed.join(", ")
                ));
                continue;
            }
            for (drive, now) in before.drives.iter().zip(&volume.drives) {
                let (before, now) = (drive.options.scheduler, now.options.scheduler);
                if before != now {
                    let (volume, drive) = (volume.name.clone(), drive.name.clone());
                    self.schedulers.push(SchedulerChange { volume, drive, before, now });
                }
            }
        }
        let used: HashSet<&str> = served.drives().map(|one| one.name.as_str()).collect();
        let clashing = found.added.iter().flat_map(|volume| &volume.drives);
        for drive in clashing.filter(|drive| used.contains(drive.name.as_str())) {
            self.refuse(format!(
                "drive {}: a volume that is served has a drive of this name: take another name, or \
                 remove that volume, reload, and add this one then",
                drive.name
            ));
        }
        (self.added_volumes, self.removed_volumes) = (found.added, found.removed);
    }

    fn compare_groups(&mut self, served: &ServeConfig, other: &ServeConfig) {
        // The default group always exists, so a configuration that does not list it is compared
        // with the default settings.
        let all = |config: &ServeConfig| -> Vec<GroupConfig> {
            let has_default = config.groups.iter().any(|group| group.name == DEFAULT_GROUP);
            let default = (!has_default).then(|| GroupConfig::new(DEFAULT_GROUP));
            config.groups.iter().cloned().chain(default).collect()
        };
        let (served, other) = (all(served), all(other));
        let found = ComparedSections::new(&served, &other, |group| &group.name);
        let changed = found.both.into_iter().filter(|(before, now)| before != now);
        self.changed_groups = changed.map(|(before, now)| (before.clone(), now.clone())).collect();
        (self.added_groups, self.removed_groups) = (found.added, found.removed);
    }

    fn compare_exports(&mut self, served: &ServeConfig, other: &ServeConfig) {
        let key = |export: &ExportConfig| {
            let directory = export.directory().map(|directory| directory.path.clone());
            (export.name.clone(), export.volume.clone(), export.read_only, directory)
        };
        let as_guests_see =
            |one: &ExportConfig| (one.guests.clone(), one.group.clone(), one.group_each);
        let found = ComparedSections::new(&served.exports, &other.exports, key);
        for (before, export) in found.both.into_iter().filter(|(before, now)| before != now) {
            let is_of_guests = before.guests.is_some() && export.guests.is_some();
            if is_of_guests && as_guests_see(before) != as_guests_see(export) {
                self.refuse(format!(
                    "export {}: its group and the keys of vhost-user-blk cannot change while \
                     virtual machines are served; remove the export, reload, and add it again",
                    export.name
                ));
                continue;
            }
            self.changed_exports.push((before.clone(), export.clone()));
        }
        (self.added_exports, self.removed_exports) = (found.added, found.removed);
    }
}

struct ComparedSections<'a, T> {
    added: Vec<T>,
    removed: Vec<T>,
    /// Sections that both configurations have, as pairs of the current and the new one.
    both: Vec<(&'a T, &'a T)>,
}

impl<'a, T: Clone> ComparedSections<'a, T> {
    /// Compares two lists. Items with the same `key` form a pair. If a list has several items with
    /// that key, only the first of them is in the pair.
    fn new<K: Eq + Hash>(
        before: &'a [T],
        now: &'a [T],
        key: impl Fn(&'a T) -> K,
    ) -> ComparedSections<'a, T> {
        let (mut added, mut both) = (Vec::new(), Vec::new());
        let mut known: HashMap<K, &T> = before.iter().rev().map(|one| (key(one), one)).collect();
        for one in now {
            match known.remove(&key(one)) {
                Some(before) => both.push((before, one)),
                None => added.push(one.clone()),
            }
        }
        let removed = before.iter().filter(|one| known.contains_key(&key(one)));
        ComparedSections { added, removed: removed.cloned().collect(), both }
    }
}

/// Compares two configurations of a volume. Returns the keys that differ, except keys that can
/// change while the volume is served.
fn fixed_keys(before: &VolumeConfig, now: &VolumeConfig) -> Vec<String> {
    let names = |volume: &VolumeConfig| -> Vec<String> {
        volume.drives.iter().map(|drive| drive.name.clone()).collect()
    };
    let keys = [
        ("drives", names(before) != names(now)),
        ("layout", before.layout != now.layout),
        ("serving", before.serving != now.serving),
        ("cache", before.cache != now.cache),
    ];
    let keys = keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key.to_owned());
    let drives = before.drives.iter().zip(&now.drives).filter(|(before, now)| {
        let scheduler = before.options.scheduler;
        let options = DriveOptions { scheduler, ..now.options };
        before.name == now.name && (before.spec != now.spec || before.options != options)
    });
    let drives = drives.map(|(before, now)| match before.spec == now.spec {
        true => format!("settings of drive {}", now.name),
        false => format!("drive {} ({} -> {})", now.name, before.spec, now.spec),
    });
    keys.chain(drives).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DriveConfig, Identity, ListenerConfig, ListenerTls, ServerFiles, TlsConfig};

    fn config(volumes: &[&str]) -> ServeConfig {
        let drive = |name: &str| DriveConfig::new(name, "null:size=1m".parse().unwrap());
        let export = |name: &&str| ExportConfig {
            name: (*name).to_owned(),
            volume: (*name).to_owned(),
            nbd: vec![Listen::Unix("s".into())],
            ..ExportConfig::default()
        };
        ServeConfig {
            volumes: volumes
                .iter()
                .map(|name| VolumeConfig::new(*name, vec![drive(name)]))
                .collect(),
            exports: volumes.iter().map(export).collect(),
            ..ServeConfig::default()
        }
    }

    #[test]
    fn what_comes_goes_and_changes_is_found() {
        let (served, mut other) = (config(&["a", "b"]), config(&["b", "c"]));
        assert!(ConfigDifference::new(&served, &served).is_empty());
        other.volumes[0].drives[0].options.scheduler = SchedulerKind::Fair;
        other.exports[0].description = "text".to_owned();
        other.exports[1].nbd.push(Listen::Unix("t".into()));
        other.groups = vec![GroupConfig::new("gold")];
        let found = ConfigDifference::new(&served, &other);
        let names = |volumes: &[VolumeConfig]| -> Vec<String> {
            volumes.iter().map(|one| one.name.clone()).collect()
        };
        assert_eq!(names(&found.added_volumes), ["c"]);
        assert_eq!(names(&found.removed_volumes), ["a"]);
        assert_eq!((found.schedulers[0].drive.as_str(), found.schedulers.len()), ("b", 1));
        assert_eq!(found.changed_exports[0].1.name, "b");
        assert_eq!(found.added_listeners, [Listen::Unix("t".into())]);
        assert_eq!((found.added_groups[0].name.as_str(), found.refused.len()), ("gold", 0));
        let back = ConfigDifference::new(&other, &served);
        let mut tls = served.clone();
        let mut listener = ListenerConfig::new(Listen::Unix("s".into()));
        listener.tls = ListenerTls::Own(TlsConfig {
            files: ServerFiles {
                identity: Identity { certificate: "c".into(), key: "k".into() },
                client_ca: None,
            },
            required: true,
        });
        tls.listener_settings.push(listener);
        let found = ConfigDifference::new(&served, &tls);
        assert_eq!(found.changed_listeners, [Listen::Unix("s".into())]);
        assert_eq!(back.removed_listeners, [Listen::Unix("t".into())]);
        assert_eq!(back.removed_groups.len(), 1);
    }

    #[test]
    fn what_cannot_change_is_refused_with_its_name() {
        let (served, mut other) = (config(&["a"]), config(&["a"]));
        other.server.threads += 1;
        other.volumes[0].drives[0].spec = "null:size=2m".parse().unwrap();
        let found = ConfigDifference::new(&served, &other);
        assert_eq!(found.refused[0], ReloadRefusal::ServerSetting("threads"));
        assert!(found.refused[1].to_string().starts_with("volume a: "), "{:?}", found.refused);
        // A drive that moves to another volume is open still.
        let mut moved = config(&["b"]);
        moved.volumes.push(served.volumes[0].clone());
        moved.volumes[0].drives[0].name = "a".to_owned();
        let found = ConfigDifference::new(&served, &moved);
        let text = found.refused[0].to_string();
        assert!(text.starts_with("drive a: a volume that is served has a drive"), "{text}");
    }
}
