//! Files of directories that clients have asked for: opened, served, and closed again.
//!
//! A file becomes a volume, a drive and an export like those of the configuration, named
//! `DIRECTORY/FILE`, so that counters, groups, traces and the end of the server know it. Whatever
//! asks a file system, which may not answer for ever, is done by a [`FileTask`] or a
//! [`ClosingFile`], on a thread of the program that has nothing of the server: [`Server::answer`]
//! and [`Server::unused_files`] make them, [`Server::finish`] and [`Server::close`] take them back.
//! A file that is in use is granted at once.
//!
//! Invariant: clients get such an export from here only, so one that is unused stays unused while
//! it is being closed. The tasks of one directory are done one after the other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::Volume;
use millrace_drives::OpenOptions;
use millrace_exports::nbd::{self, ExportRequest, Listen, RequestedExport};
use millrace_machine::{CpuId, Native};
use millrace_reactor::Config;
use millrace_tls::PeerNames;

use super::config::{ExportConfig, ExportDirectory, OnDemand, ServeConfig};
use super::reload::{VolumeQueues, flush_and_wait};
use super::{Server, Servers};
use crate::config::{DriveConfig, OpenConfig, StartError, VolumeConfig};
use crate::opening::MoreVolumes;

/// How long a list of names is good for. Clients that list all the time share it.
const LIST_AGE: Duration = Duration::from_secs(1);

/// Files that are open, and lists that were made lately.
#[derive(Default)]
pub(super) struct OpenFiles {
    /// By the names of their exports.
    files: HashMap<String, OpenFile>,
    /// By what [`FileTask::list_key`] tells apart.
    lists: HashMap<String, (Instant, Arc<Vec<String>>)>,
}

impl OpenFiles {
    /// Forgets files that the configuration does not have any more.
    pub(super) fn follow(&mut self, exports: &[ExportConfig]) {
        self.lists.clear();
        self.files.retain(|name, _| exports.iter().any(|one| one.name == *name));
    }

    /// A list that was made lately.
    fn recent_list(&mut self, key: &str) -> Option<Arc<Vec<String>>> {
        self.lists.retain(|_, (made, _)| made.elapsed() < LIST_AGE);
        self.lists.get(key).map(|(_, list)| Arc::clone(list))
    }

    /// A file that is open gets a client, also if it was about to be closed.
    fn keep_open(&mut self, key: &str) -> Result<(), String> {
        let file = self.files.get_mut(key).ok_or("the file was closed; connect again")?;
        (file.is_closing, file.unused_since) = (false, None);
        Ok(())
    }
}

struct OpenFile {
    identity: (u64, u64),
    /// Since when nobody uses it.
    unused_since: Option<Instant>,
    /// How long it stays open then.
    close_after: Duration,
    /// It is flushed, and closed then unless a client asks for it.
    is_closing: bool,
}

/// Looks at volumes that are open and not served yet; an error refuses them.
pub type BeforeServing<'a> = &'a dyn Fn(&MoreVolumes) -> Result<(), String>;

/// The outcome of [`Server::answer`], [`Server::finish`] and [`Server::close`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// Names of exports that were opened.
    pub opened: Vec<String>,
    /// Names of exports that were closed.
    pub closed: Vec<String>,
    /// What went wrong, for the log.
    pub failures: Vec<String>,
}

/// The request of a client that takes a look into directories.
pub struct FileTask {
    request: ExportRequest,
    /// The directories that may have it.
    directories: Vec<Candidate>,
    /// Queues of a file's drive.
    queues: u16,
    /// The address and the directories of a list.
    list_key: String,
    names: Vec<String>,
    outcome: Option<Result<FoundExport, String>>,
    failures: Vec<String>,
}

/// A directory that may have a file, and the identity of the file of that name that is open.
struct Candidate {
    parent: ExportConfig,
    directory: ExportDirectory,
    open: Option<(u64, u64)>,
}

/// A file that a task has found.
enum FoundExport {
    /// It is open already.
    Open(String),
    /// It was opened.
    New(Box<NewFile>),
}

/// A file that was opened and is not served yet.
struct NewFile {
    parent: ExportConfig,
    directory: ExportDirectory,
    volume: VolumeConfig,
    identity: (u64, u64),
    driver: millrace_drives::Opened,
}

impl FileTask {
    /// The name of the directory that is looked into next; `None` if the task is done.
    #[must_use]
    pub fn directory(&self) -> Option<&str> {
        self.directories.first().map(|one| one.parent.name.as_str())
    }

    /// Finds out whether the file that it looks for next is open. To be called right before
    /// [`FileTask::step`].
    pub fn prepare_step(&mut self, server: &Server) {
        if let (RequestedExport::Named(name), Some(next)) =
            (&self.request.wanted, self.directories.first_mut())
        {
            let open = server.files.files.get(&format!("{}/{name}", next.parent.name));
            next.open = open.map(|file| file.identity);
        }
    }

    /// Looks into the next directory. May take as long as its file system does.
    pub fn step(&mut self) {
        // Clients that ask and hang up do not make others wait.
        if self.request.is_abandoned() {
            self.directories.clear();
        }
        if self.directories.is_empty() {
            return;
        }
        let one = self.directories.remove(0);
        let name = match &self.request.wanted {
            RequestedExport::All => return self.list(&one),
            RequestedExport::Named(name) => name.clone(),
        };
        match one.open_file(&name, self.queues) {
            Ok(None) => {}
            Ok(Some(found)) => self.outcome = Some(Ok(found)),
            Err(why) => self.outcome = Some(Err(why)),
        }
        if self.outcome.is_some() {
            self.directories.clear();
        }
    }

    fn list(&mut self, one: &Candidate) {
        let name = &one.parent.name;
        match one.directory.list() {
            Ok(list) => {
                if list.skipped > 0 {
                    self.failures.push(format!(
                        "export {name}: {} entries of its directory are not listed: they are no \
                         regular files, or have names that are not UTF-8 or have control characters",
                        list.skipped
                    ));
                }
                self.names.extend(list.names);
            }
            Err(why) => self.failures.push(format!("export {name}: {why}")),
        }
    }
}

impl Candidate {
    /// The file of a name, which is opened unless it is; `None` if there is none.
    fn open_file(self, name: &str, queues: u16) -> Result<Option<FoundExport>, String> {
        let Some(found) = self.directory.find(name)? else { return Ok(None) };
        let key = format!("{}/{name}", self.parent.name);
        if self.open == Some(found.identity) {
            return Ok(Some(FoundExport::Open(key)));
        }
        let Candidate { parent, directory, .. } = self;
        let spec = directory.spec(&directory.path.join(name), parent.file_access());
        let spec = spec.map_err(|error| error.to_string())?;
        let options = OpenOptions { file_at: Some(found.path()), ..OpenOptions::default() };
        let driver = millrace_drives::open_with(&spec, queues, &options);
        let driver = driver.map_err(|error| error.to_string())?;
        if let Some(warning) = driver.warnings.first() {
            return Err(warning.clone());
        }
        let drive = DriveConfig { options: directory.options, ..DriveConfig::new(&key, spec) };
        let volume =
            VolumeConfig { cache: directory.cache, ..VolumeConfig::new(&key, vec![drive]) };
        let identity = found.identity;
        let new = NewFile { parent, directory, volume, identity, driver };
        Ok(Some(FoundExport::New(Box::new(new))))
    }
}

/// A file that nobody has used for a while, on its way to be closed.
pub struct ClosingFile {
    name: String,
    volume: Arc<Volume<Native>>,
    reactor: Config,
    flushed: Result<(), String>,
}

impl ClosingFile {
    /// The name of its directory.
    #[must_use]
    pub fn directory(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Flushes it. May take as long as its file system does.
    pub fn flush(&mut self) {
        self.flushed = flush_and_wait(&self.volume, self.reactor);
    }
}

impl Server {
    /// Answers a client that has asked for an export on demand at once, if that is possible; else
    /// returns a task, whose steps are to be done before [`Server::finish`] takes it back.
    pub fn answer(&mut self, request: ExportRequest) -> Option<FileTask> {
        if request.is_abandoned() {
            return None;
        }
        let place = (&request.listen, request.peer.as_ref());
        let (directories, denied) = directories_for(&self.config, place);
        let mut failures = Vec::new();
        if directories.is_empty()
            && let Some(denied) = denied
        {
            let who = request.peer.as_ref().map_or_else(
                || "a client without a certificate".to_owned(),
                |peer| peer.to_string(),
            );
            failures.push(format!("{who} may not use export {denied}: see its tls-allow"));
        }
        let names: Vec<&str> = directories.iter().map(|(one, _)| one.name.as_str()).collect();
        let list_key = format!("{}: {}", request.listen, names.join("/"));
        if let (RequestedExport::All, Some(list)) =
            (&request.wanted, self.files.recent_list(&list_key))
        {
            request.list(list);
            return None;
        }
        let candidate = |(parent, directory)| Candidate { parent, directory, open: None };
        let candidates: Vec<_> = directories.into_iter().map(candidate).collect();
        if let (RequestedExport::Named(name), Some(first)) = (&request.wanted, candidates.first())
            && let Some(server) = &self.servers.nbd
        {
            let key = format!("{}/{name}", first.parent.name);
            if server.is_used_on_demand(&key) {
                request.grant(server, &key);
                return None;
            }
        }
        // One for each I/O thread, one for a flusher.
        let queues = self.config.nbd_threads().saturating_add(1);
        Some(FileTask {
            request,
            directories: candidates,
            queues,
            list_key,
            names: Vec::new(),
            outcome: None,
            failures,
        })
    }

    /// Answers the client of a task, and serves the file that was opened for it.
    pub fn finish(&mut self, task: FileTask, before_serving: BeforeServing<'_>) -> FileChanges {
        let FileTask { request, list_key, names, outcome, failures, .. } = task;
        let mut changes = FileChanges { failures, ..FileChanges::default() };
        let RequestedExport::Named(name) = &request.wanted else {
            let list = self.files.recent_list(&list_key).unwrap_or_else(|| {
                let list = Arc::new(unlisted(&self.config, &request.listen, names));
                self.files.lists.insert(list_key, (Instant::now(), Arc::clone(&list)));
                list
            });
            request.list(list);
            return changes;
        };
        let name = name.clone();
        let served = match outcome {
            None => {
                request.refuse_unknown();
                return changes;
            }
            Some(Ok(FoundExport::Open(key))) => self.files.keep_open(&key).map(|()| key),
            Some(Ok(FoundExport::New(new))) => self.serve_new(*new, before_serving, &mut changes),
            Some(Err(why)) => Err(why),
        };
        match (served, &self.servers.nbd) {
            (Ok(key), Some(server)) => request.grant(server, &key),
            (Ok(_), None) => request.refuse_unknown(),
            (Err(why), _) => {
                changes.failures.push(format!("export {name:?}: {why}"));
                request.refuse(why);
            }
        }
        changes
    }

    /// Files whose clients left a while ago. Each is to be flushed, and given to
    /// [`Server::close`].
    pub fn unused_files(&mut self) -> Vec<ClosingFile> {
        let (now, reactor) = (Instant::now(), self.reactor());
        let Some(server) = &mut self.servers.nbd else { return Vec::new() };
        let mut unused = Vec::new();
        for (name, file) in self.files.files.iter_mut().filter(|(_, file)| !file.is_closing) {
            if server.is_used_on_demand(name) {
                file.unused_since = None;
                continue;
            }
            let since = *file.unused_since.get_or_insert(now);
            let volume = self.opened.volume(name).cloned();
            // Clients that list a server ask about each file, and use none.
            let is_over = now - since >= file.close_after || !server.was_used_on_demand(name);
            if is_over && let Ok(volume) = volume {
                file.is_closing = true;
                let (name, flushed) = (name.clone(), Err("nobody has flushed it".to_owned()));
                unused.push(ClosingFile { name, volume, reactor, flushed });
            }
        }
        unused
    }

    /// Closes a file that was flushed, unless a client has it by now, or the flush has failed.
    pub fn close(&mut self, closing: ClosingFile) -> FileChanges {
        let mut changes = FileChanges::default();
        let ClosingFile { name, volume, flushed, .. } = closing;
        drop(volume);
        let Some(file) = self.files.files.get_mut(&name).filter(|file| file.is_closing) else {
            return changes;
        };
        file.is_closing = false;
        file.unused_since = None;
        if self.servers.nbd.as_ref().is_some_and(|server| server.is_used_on_demand(&name)) {
            return changes;
        }
        match flushed {
            Ok(()) => {
                self.remove_file(&name, &mut changes.failures);
                changes.closed.push(name);
                nbd::trim_heap();
            }
            Err(why) => changes.failures.push(format!("export {name}: it stays open: {why}")),
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
        if self.files.files.is_empty() {
            return config;
        }
        let served = self.config();
        for export in &served.exports {
            let Some(OnDemand::File(parent)) = &export.on_demand else { continue };
            let directory = |config: &ServeConfig| {
                let found = config.exports.iter().find(|one| one.name == *parent);
                found.filter(|one| matches!(one.on_demand, Some(OnDemand::Directory(_)))).cloned()
            };
            let (Some(before), Some(now)) = (directory(&served), directory(&config)) else {
                continue;
            };
            let volume = served.volumes.iter().find(|one| one.name == export.volume);
            if let Some(volume) = volume
                && (&before.on_demand, before.read_only) == (&now.on_demand, now.read_only)
            {
                config.volumes.push(volume.clone());
                config.exports.push(export_of_file(&now, export.name.clone()));
            }
        }
        config
    }

    /// Serves a file that was opened, to those who are granted it; returns its export's name.
    fn serve_new(
        &mut self,
        new: NewFile,
        before_serving: BeforeServing<'_>,
        changes: &mut FileChanges,
    ) -> Result<String, String> {
        let NewFile { parent, directory, volume, identity, driver } = new;
        let key = volume.name.clone();
        if !self.config.exports.contains(&parent) {
            return Err("its directory has changed; connect again".to_owned());
        }
        if self.files.files.contains_key(&key) {
            if self.servers.nbd.as_ref().is_some_and(|one| one.is_used_on_demand(&key)) {
                return Ok(key);
            }
            // Another file has had this name.
            let open = self.opened.volume(&key).map_err(|error| error.to_string())?;
            flush_and_wait(open, self.reactor())?;
            self.remove_file(&key, &mut changes.failures);
            changes.closed.push(key.clone());
        }
        let config = OpenConfig {
            volumes: vec![volume.clone()],
            io_threads: vec![self.config.nbd_threads()],
            pinned_cpus: self.config.server.cpus.iter().copied().map(CpuId).collect(),
            ..OpenConfig::default()
        };
        let more = self.opened.open_more(&config, Some(driver));
        let more = more.map_err(|error: StartError| error.to_string())?;
        let export = export_of_file(&parent, key.clone());
        if let Err(why) = self.serve_file(&more, &export, before_serving) {
            self.close_more(more);
            return Err(why);
        }
        let MoreVolumes { volumes, caches, .. } = more;
        self.opened.volumes.extend(volumes);
        self.opened.caches.extend(caches);
        self.config.volumes.push(volume);
        self.config.exports.push(export);
        self.queues.insert(key.clone(), VolumeQueues::of_nbd(self.config.nbd_threads()));
        follow_files(&mut self.servers, &self.config);
        let close_after = directory.close_after;
        let open = OpenFile { identity, unused_since: None, close_after, is_closing: false };
        self.files.files.insert(key.clone(), open);
        changes.opened.push(key.clone());
        Ok(key)
    }

    /// Starts what serves a file that was opened; the last step cannot be undone.
    fn serve_file(
        &mut self,
        more: &MoreVolumes,
        export: &ExportConfig,
        before_serving: BeforeServing<'_>,
    ) -> Result<(), String> {
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

    /// Closes a file that is flushed and that nobody uses.
    fn remove_file(&mut self, key: &str, failures: &mut Vec<String>) {
        if let Some(server) = &mut self.servers.nbd {
            server.remove_on_demand(key);
        }
        let is_it = |volume: &Arc<Volume<Native>>| volume.name() == key;
        let gone: Vec<_> = self.opened.volumes.extract_if(.., |volume| is_it(volume)).collect();
        self.end_workers(&gone, failures);
        drop(gone);
        self.opened.forget_drives(|name| name == key);
        self.queues.remove(key);
        self.config.volumes.retain(|one| one.name != key);
        self.config.exports.retain(|one| one.name != key);
        follow_files(&mut self.servers, &self.config);
        self.files.files.remove(key);
    }
}

/// The names of a list that no export with a volume has.
fn unlisted(config: &ServeConfig, listen: &Listen, mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names.dedup();
    let on_list =
        |export: &&ExportConfig| export.on_demand.is_none() && export.nbd.contains(listen);
    let listed = config.exports.iter().filter(on_list);
    let listed: HashSet<&str> = listed.map(|export| export.name.as_str()).collect();
    names.retain(|name| !listed.contains(name.as_str()));
    names
}

/// The directories that a client may use, in the order of the configuration, and one that it may
/// not use.
fn directories_for<'a>(
    config: &'a ServeConfig,
    (listen, peer): (&Listen, Option<&PeerNames>),
) -> (Vec<(ExportConfig, ExportDirectory)>, Option<&'a str>) {
    let may_use = |export: &ExportConfig| match &export.tls_allow {
        None => true,
        Some(names) => peer.is_some_and(|peer| names.iter().any(|name| peer.has(name))),
    };
    let (mut allowed, mut denied) = (Vec::new(), None);
    for export in config.exports.iter().filter(|export| export.nbd.contains(listen)) {
        if let Some(OnDemand::Directory(directory)) = &export.on_demand {
            match may_use(export) {
                true => allowed.push((export.clone(), directory.clone())),
                false => denied = Some(export.name.as_str()),
            }
        }
    }
    (allowed, denied)
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

/// Has the servers' counters follow the exports that they have now.
fn follow_files(servers: &mut Servers, config: &ServeConfig) {
    let is_served = |export: &ExportConfig| {
        !export.nbd.is_empty() && !matches!(export.on_demand, Some(OnDemand::Directory(_)))
    };
    let exports = config.exports.iter().enumerate();
    let places = exports.filter(|(_, export)| is_served(export)).map(|(at, _)| at).collect();
    servers.follow(config, places);
}
