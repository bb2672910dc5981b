//! Files of directories that clients have asked for: opened, served, and closed again.
//!
//! A file becomes a volume, a drive and an export like those of the configuration, named
//! `DIRECTORY/FILE`, so that counters, groups, traces and the end of the server know it. The owner
//! of the server calls this with what [`Servers::requests`](super::Servers::requests) gives, and
//! once a second or so to close what nobody uses; both may wait for file systems and for flushes.
//!
//! Invariant: clients get such an export from here only, so one that is unused stays unused while
//! it is being closed.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_exports::nbd::{self, ExportRequest, Listen, RequestedExport};
use millrace_machine::CpuId;
use millrace_tls::PeerNames;

use super::config::{ExportConfig, ExportDirectory, OnDemand, ServeConfig};
use super::directories::FoundFile;
use super::reload::{VolumeQueues, flush_and_wait};
use super::{Server, Servers};
use crate::config::{DriveConfig, OpenConfig, StartError, VolumeConfig};
use crate::opening::MoreVolumes;

/// How long a list of a directory is good for.
const LIST_AGE: Duration = Duration::from_secs(1);

/// Files that are open, and lists of directories.
#[derive(Default)]
pub(super) struct OpenFiles {
    /// By the names of their exports.
    files: HashMap<String, OpenFile>,
    /// Names of files, by the names of the exports of their directories.
    lists: HashMap<String, (Instant, Arc<Vec<String>>)>,
}

impl OpenFiles {
    /// Forgets files that a configuration does not have any more.
    pub(super) fn follow(&mut self, config: &ServeConfig) {
        self.files.retain(|name, _| config.exports.iter().any(|one| one.name == *name));
        self.lists.clear();
    }

    /// The names of all files that a client may have, but for those of exports with these names.
    fn names_for(
        &mut self,
        config: &ServeConfig,
        request: &ExportRequest,
        failures: &mut Vec<String>,
    ) -> Arc<Vec<String>> {
        let now = Instant::now();
        let mut lists = Vec::new();
        for (parent, directory) in directories_for(config, (&request.listen, request.peer.as_ref()))
        {
            let known = self.lists.get(&parent.name);
            if let Some((_, list)) = known.filter(|(since, _)| now - *since < LIST_AGE) {
                lists.push(Arc::clone(list));
                continue;
            }
            match directory.list() {
                Ok(list) => {
                    if list.skipped > 0 {
                        let (name, skipped) = (&parent.name, list.skipped);
                        failures.push(format!(
                            "export {name}: {skipped} entries of its directory are no regular \
                             files with names in UTF-8, and are not listed"
                        ));
                    }
                    let names = Arc::new(list.names);
                    self.lists.insert(parent.name, (now, Arc::clone(&names)));
                    lists.push(names);
                }
                Err(why) => failures.push(format!("export {}: {why}", parent.name)),
            }
        }
        let on_list = |export: &&ExportConfig| {
            export.on_demand.is_none() && export.nbd.contains(&request.listen)
        };
        let listed = config.exports.iter().filter(on_list).map(|one| one.name.as_str());
        let listed: Vec<&str> = listed.collect();
        let is_hidden = |list: &Vec<String>| {
            listed.iter().any(|name| list.binary_search_by(|one| one.as_str().cmp(name)).is_ok())
        };
        match &lists[..] {
            [one] if !is_hidden(one) => Arc::clone(one),
            _ => {
                let mut names: Vec<String> =
                    lists.iter().flat_map(|list| list.iter().cloned()).collect();
                names.sort_unstable();
                names.dedup();
                names.retain(|name| !listed.contains(&name.as_str()));
                Arc::new(names)
            }
        }
    }
}

struct OpenFile {
    identity: (u64, u64),
    /// Since when nobody uses it.
    unused_since: Option<Instant>,
    /// How long it stays open then.
    close_after: Duration,
}

/// Looks at volumes that are open and not served yet; an error refuses them.
pub type BeforeServing<'a> = &'a dyn Fn(&MoreVolumes) -> Result<(), String>;

/// The outcome of [`Server::answer`] and [`Server::close_unused`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// Names of exports that were opened.
    pub opened: Vec<String>,
    /// Names of exports that were closed.
    pub closed: Vec<String>,
    /// What went wrong, for the log.
    pub failures: Vec<String>,
}

impl FileChanges {
    /// Returns true if other exports are served than before.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.opened.is_empty() || !self.closed.is_empty()
    }
}

impl Server {
    /// Answers a client that has asked for a file, which is opened for it if it is not open yet, or
    /// for the names of all files.
    pub fn answer(
        &mut self,
        request: ExportRequest,
        before_serving: BeforeServing<'_>,
    ) -> FileChanges {
        let mut changes = FileChanges::default();
        match &request.wanted {
            RequestedExport::All => {
                let names = self.files.names_for(&self.config, &request, &mut changes.failures);
                request.list(names);
            }
            RequestedExport::Named(name) => {
                let place = (&request.listen, request.peer.as_ref(), name.as_str());
                let found = self.file_for(place, before_serving, &mut changes);
                let name = name.clone();
                match (found, &self.servers.nbd) {
                    (Ok(Some(export)), Some(server)) => request.grant(server, &export),
                    (Ok(_), _) => request.refuse(format!("there is no export {name:?}")),
                    (Err(why), _) => {
                        changes.failures.push(format!("export {name:?}: {why}"));
                        request.refuse(why);
                    }
                }
            }
        }
        changes
    }

    /// Closes files whose clients left a while ago, or that are gone from their directories since.
    pub fn close_unused(&mut self) -> FileChanges {
        let mut changes = FileChanges::default();
        let now = Instant::now();
        let Some(server) = &self.servers.nbd else { return changes };
        let mut over = Vec::new();
        for (name, file) in &mut self.files.files {
            if server.is_used_on_demand(name) {
                file.unused_since = None;
                continue;
            }
            let since = *file.unused_since.get_or_insert(now);
            if now - since >= file.close_after {
                over.push(name.clone());
            }
        }
        for name in over {
            changes.failures.extend(self.close_file(&name, &mut changes.closed).err());
        }
        if !changes.closed.is_empty() {
            nbd::trim_heap();
        }
        changes
    }

    /// Returns true if files of directories are open.
    #[must_use]
    pub fn has_open_files(&self) -> bool {
        !self.files.files.is_empty()
    }

    /// A configuration with the files that are open, as far as it has their directories.
    #[must_use]
    pub fn with_open_files(&self, config: &ServeConfig) -> ServeConfig {
        let mut config = config.clone();
        for export in &self.config.exports {
            let Some(OnDemand::File(parent)) = &export.on_demand else { continue };
            let directory = |config: &ServeConfig| {
                let found = config.exports.iter().find(|one| one.name == *parent);
                found.filter(|one| matches!(one.on_demand, Some(OnDemand::Directory(_)))).cloned()
            };
            let (Some(before), Some(now)) = (directory(&self.config), directory(&config)) else {
                continue;
            };
            let volume = self.config.volumes.iter().find(|one| one.name == export.volume);
            if let Some(volume) = volume
                && (&before.on_demand, before.read_only) == (&now.on_demand, now.read_only)
            {
                config.volumes.push(volume.clone());
                config.exports.push(export_of_file(&now, export.name.clone()));
            }
        }
        config
    }

    /// The name of the export of a file, which is opened if it is not open yet; `None` if there is
    /// no such file.
    fn file_for(
        &mut self,
        (listen, peer, name): (&Listen, Option<&PeerNames>, &str),
        before_serving: BeforeServing<'_>,
        changes: &mut FileChanges,
    ) -> Result<Option<String>, String> {
        for (parent, directory) in directories_for(&self.config, (listen, peer)) {
            let key = format!("{}/{name}", parent.name);
            let is_used =
                self.servers.nbd.as_ref().is_some_and(|server| server.is_used_on_demand(&key));
            let found = match directory.find(name)? {
                Some(found) => found,
                // Deleted: those who have it keep it.
                None if is_used => return Ok(Some(key)),
                None => continue,
            };
            match self.files.files.get_mut(&key) {
                Some(open) if open.identity == found.identity => {
                    open.unused_since = None;
                    return Ok(Some(key));
                }
                Some(_) if is_used => {
                    return Err(format!(
                        "{name} is another file by now, and clients use the one that had its name \
                         before; connect again when they have left"
                    ));
                }
                Some(_) => self.close_file(&key, &mut changes.closed)?,
                None => {}
            }
            self.open_file((&parent, &directory), (&key, name, &found), before_serving)?;
            changes.opened.push(key.clone());
            return Ok(Some(key));
        }
        Ok(None)
    }

    /// Opens a file and serves it to those who are granted it.
    fn open_file(
        &mut self,
        (parent, directory): (&ExportConfig, &ExportDirectory),
        (key, name, found): (&str, &str, &FoundFile),
        before_serving: BeforeServing<'_>,
    ) -> Result<(), String> {
        let spec = directory.spec(&directory.path.join(name), parent.file_access());
        let spec = spec.map_err(|error| error.to_string())?;
        let drive = DriveConfig { options: directory.options, ..DriveConfig::new(key, spec) };
        let volume = VolumeConfig { cache: directory.cache, ..VolumeConfig::new(key, vec![drive]) };
        let config = OpenConfig {
            volumes: vec![volume.clone()],
            io_threads: vec![self.config.nbd_threads()],
            pinned_cpus: self.config.server.cpus.iter().copied().map(CpuId).collect(),
            ..OpenConfig::default()
        };
        let more = self.opened.open_more(&config, Some(found.path()));
        let more = more.map_err(|error| whole_cause(&error))?;
        let export = export_of_file(parent, key.to_owned());
        if let Err(why) = self.serve_file(&more, &export, before_serving) {
            self.close_more(more);
            return Err(why);
        }
        let MoreVolumes { volumes, caches, .. } = more;
        self.opened.volumes.extend(volumes);
        self.opened.caches.extend(caches);
        self.config.volumes.push(volume);
        self.config.exports.push(export);
        if let Some(queues) = VolumeQueues::of(&self.config).remove(key) {
            self.queues.insert(key.to_owned(), queues);
        }
        follow_files(&mut self.servers, &self.config);
        let close_after = directory.close_after;
        let open = OpenFile { identity: found.identity, unused_since: None, close_after };
        self.files.files.insert(key.to_owned(), open);
        Ok(())
    }

    /// Starts what serves a file that was opened; the last step cannot be undone.
    fn serve_file(
        &mut self,
        more: &MoreVolumes,
        export: &ExportConfig,
        before_serving: BeforeServing<'_>,
    ) -> Result<(), String> {
        if let Some(warning) = more.warnings.first() {
            return Err(warning.clone());
        }
        before_serving(more)?;
        self.start_workers_of(more).map_err(|error| error.to_string())?;
        let config = nbd::ExportConfig {
            description: export.description.clone(),
            read_only: export.read_only,
            group: self.servers.groups.of_export(export),
            on_demand: export.name_on_demand(),
            ..nbd::ExportConfig::new(export.name.as_str(), Arc::clone(&more.volumes[0]))
        };
        let server = self.servers.nbd.as_mut().ok_or("no NBD server runs")?;
        server.add_on_demand(config).map_err(|error| error.to_string())
    }

    /// Flushes and closes a file that nobody uses; if the flush fails it stays.
    fn close_file(&mut self, key: &str, closed: &mut Vec<String>) -> Result<(), String> {
        let Ok(volume) = self.opened.volume(key).cloned() else { return Ok(()) };
        flush_and_wait(&volume, self.reactor())
            .map_err(|why| format!("export {key}: it stays open: {why}"))?;
        if let Some(server) = &mut self.servers.nbd {
            server.remove_on_demand(key);
        }
        self.opened.volumes.retain(|one| one.name() != key);
        let mut failures = Vec::new();
        self.end_workers(&[volume], &mut failures);
        self.opened.forget_drives(|name| name == key);
        self.queues.remove(key);
        self.config.volumes.retain(|one| one.name != key);
        self.config.exports.retain(|one| one.name != key);
        follow_files(&mut self.servers, &self.config);
        self.files.files.remove(key);
        closed.push(key.to_owned());
        failures.pop().map_or(Ok(()), Err)
    }
}

/// The directories that a client may use, in the order of the configuration.
fn directories_for(
    config: &ServeConfig,
    (listen, peer): (&Listen, Option<&PeerNames>),
) -> Vec<(ExportConfig, ExportDirectory)> {
    let may_use = |export: &&ExportConfig| match &export.tls_allow {
        None => true,
        Some(names) => peer.is_some_and(|peer| names.iter().any(|name| peer.has(name))),
    };
    let exports = config.exports.iter().filter(|export| export.nbd.contains(listen));
    let directory = |export: &ExportConfig| match &export.on_demand {
        Some(OnDemand::Directory(directory)) => Some((export.clone(), directory.clone())),
        _ => None,
    };
    exports.filter(may_use).filter_map(directory).collect()
}

/// The export of a file of a directory.
fn export_of_file(parent: &ExportConfig, name: String) -> ExportConfig {
    ExportConfig {
        volume: name.clone(),
        name,
        on_demand: Some(OnDemand::File(parent.name.clone())),
        ..parent.clone()
    }
}

/// An error with its causes, as one line for a client.
fn whole_cause(error: &StartError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Has the servers' counters follow the exports that they have now.
fn follow_files(servers: &mut Servers, config: &ServeConfig) {
    let is_served = |export: &ExportConfig| {
        !export.nbd.is_empty() && !matches!(export.on_demand, Some(OnDemand::Directory(_)))
    };
    let exports = config.exports.iter().enumerate();
    let places = exports.filter(|(_, export)| is_served(export)).map(|(at, _)| at).collect();
    servers.follow(config, places);
}
