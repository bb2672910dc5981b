//! Serves files of directories on demand: opens a file when a client requests it, and closes it
//! later.
//!
//! Each open file has a volume, a drive and an export named `DIRECTORY/FILE`, like those in the
//! configuration. If other clients use the requested file of the first directory, the client gets
//! its export at once. Otherwise a task looks the file up, even if the file is open.
//!
//! A file system may never answer, for example if an NFS server is down. So all file access is in
//! tasks ([`FileTask`], [`ClosingFile`]). The program runs a task on a thread that holds no lock or
//! resource of the server. [`Server::answer`] and [`Server::unused_files`] create the tasks;
//! [`Server::finish`] and [`Server::close`] end them. Exception: if the requested name refers to
//! another file now, [`Server::finish`] itself flushes and closes the unused file of that name.
//!
//! Invariant: clients get an export on demand only through this module. So an unused export stays
//! unused while it is being closed. Tasks of one directory run one after another.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::Volume;
use millrace_drives::OpenOptions;
use millrace_exports::nbd::{self, ExportRequest, Listen, RequestedExport};
use millrace_machine::{Native, debug_fields};
use millrace_reactor::Config;
use millrace_tls::PeerNames;

use super::config::{ExportConfig, ExportDirectory, OnDemand, ServeConfig};
use super::reload::{VolumeQueues, flush_and_wait};
use super::servers::nbd_export;
use super::{Server, Servers};
use crate::config::{DriveConfig, OpenConfig, VolumeConfig};
use crate::opening::Opened;

const LIST_AGE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct OpenFiles {
    files: HashMap<String, OpenFile>,
    /// Recent listings and the times at which they were made. The key is [`FileTask::list_key`].
    lists: HashMap<String, (Instant, Arc<Vec<String>>)>,
}

impl OpenFiles {
    pub(super) fn follow(&mut self, exports: &[ExportConfig]) {
        self.lists.clear();
        self.files.retain(|name, _| exports.iter().any(|one| one.name == *name));
    }

    fn recent_list(&mut self, key: &str) -> Option<Arc<Vec<String>>> {
        self.lists.retain(|_, (made, _)| made.elapsed() < LIST_AGE);
        self.lists.get(key).map(|(_, list)| Arc::clone(list))
    }

    fn keep_open(&mut self, key: &str) -> Result<(), String> {
        let file = self
            .files
            .get_mut(key)
            .ok_or("the export's file was closed meanwhile; connect again")?;
        (file.is_closing, file.unused_since) = (false, None);
        Ok(())
    }
}

struct OpenFile {
    identity: (u64, u64),
    unused_since: Option<Instant>,
    close_after: Duration,
    /// True while the file is being flushed. The file is then closed unless a client requests it.
    is_closing: bool,
}

/// Callback that checks open volumes before they are served. If the callback returns an error, the
/// volumes are not served.
pub type BeforeServing<'a> = &'a dyn Fn(&Opened) -> Result<(), String>;

/// Result of [`Server::finish`] or [`Server::close`]: exports on demand that were opened or closed,
/// and texts about failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileChanges {
    /// Names of the exports that were opened.
    pub opened: Vec<String>,
    /// Names of the exports that were closed.
    pub closed: Vec<String>,
    /// Texts for the log about failures to open, close or list exports.
    pub failures: Vec<String>,
}

/// Client's request that requires a search in directories.
pub struct FileTask {
    request: ExportRequest,
    directories: Vec<DirectoryCandidate>,
    queues: u16,
    /// Key under which the client's list of file names is cached: the NBD address, and the
    /// directories that the client may use.
    list_key: String,
    names: Vec<String>,
    outcome: Option<Result<FoundExport, String>>,
    failures: Vec<String>,
}

/// Directory in which to look for an export's file. `open` is the device and inode of the file that
/// is already open under the export's name.
struct DirectoryCandidate {
    parent: ExportConfig,
    directory: ExportDirectory,
    open: Option<(u64, u64)>,
}

enum FoundExport {
    /// The file is already open, with this export name.
    Open(String),
    New(Box<NewFile>),
}

struct NewFile {
    at: DirectoryCandidate,
    volume: VolumeConfig,
    identity: (u64, u64),
    driver: millrace_drives::Opened,
}

debug_fields!(FileTask, list_key, names, failures);

impl FileTask {
    /// Returns the name of the directory to search next, or `None` if the task is done.
    #[must_use]
    pub fn directory(&self) -> Option<&str> {
        self.directories.first().map(|one| one.parent.name.as_str())
    }

    /// Looks up the file that is already served under the requested name, so that
    /// [`FileTask::step`] does not open that file again. Call `prepare_step` right before `step`.
    pub fn prepare_step(&mut self, server: &Server) {
        if let (RequestedExport::Named(name), Some(next)) =
            (&self.request.wanted, self.directories.first_mut())
        {
            let open = server.files.files.get(&format!("{}/{name}", next.parent.name));
            next.open = open.map(|file| file.identity);
        }
    }

    /// Looks for the requested file in the next directory, or lists that directory. Blocks until
    /// the directory's file system answers.
    pub fn step(&mut self) {
        // Skips all directories if the client has disconnected, so that other clients do not wait
        // for a useless search.
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
        self.outcome = one.open_file(&name, self.queues).transpose();
        if self.outcome.is_some() {
            self.directories.clear();
        }
    }

    fn list(&mut self, one: &DirectoryCandidate) {
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

impl DirectoryCandidate {
    /// Opens the file with this name, unless it is open already. Returns `None` if there is no such
    /// file.
    fn open_file(self, name: &str, queues: u16) -> Result<Option<FoundExport>, String> {
        let Some(found) = self.directory.find(name)? else { return Ok(None) };
        let key = format!("{}/{name}", self.parent.name);
        if self.open == Some(found.identity) {
            return Ok(Some(FoundExport::Open(key)));
        }
        let DirectoryCandidate { parent, directory, .. } = &self;
        let spec = directory.spec(&directory.path.join(name), parent.file_access());
        let spec = spec.map_err(|error| error.to_string())?;
        let options = OpenOptions { file_at: Some(found.path()), ..OpenOptions::default() };
        let driver = millrace_drives::open_with(&spec, queues, &options);
        let mut driver = driver.map_err(|error| error.to_string())?;
        if !driver.warnings.is_empty() {
            return Err(driver.warnings.swap_remove(0));
        }
        let drive = DriveConfig { options: directory.options, ..DriveConfig::new(&key, spec) };
        let volume =
            VolumeConfig { cache: directory.cache, ..VolumeConfig::new(&key, vec![drive]) };
        let new = NewFile { at: self, volume, identity: found.identity, driver };
        Ok(Some(FoundExport::New(Box::new(new))))
    }
}

/// A file that no client has used recently and that is about to be closed.
pub struct ClosingFile {
    name: String,
    volume: Arc<Volume<Native>>,
    reactor: Config,
    flushed: Result<(), String>,
}

debug_fields!(ClosingFile, name, flushed);

impl ClosingFile {
    /// Returns the name of the file's directory.
    #[must_use]
    pub fn directory(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Flushes the volume of a file that is about to be closed. May block for a long time if the
    /// file system does not answer.
    pub fn flush(&mut self) {
        self.flushed = flush_and_wait(&self.volume, self.reactor);
    }
}

impl Server {
    /// Answers a client that requested an export on demand, if that is possible at once. Otherwise
    /// returns a task: the caller runs its steps and passes it to [`Server::finish`].
    pub fn answer(&mut self, request: ExportRequest) -> Option<FileTask> {
        if request.is_abandoned() {
            return None;
        }
        let exports = self.config.exports.iter();
        let exports = exports.filter(|export| export.nbd.contains(&request.listen));
        let directories =
            exports.filter_map(|export| Some((export.directory()?.clone(), export.clone())));
        let directories = directories.map(|(directory, parent)| DirectoryCandidate {
            parent,
            directory,
            open: None,
        });
        let (directories, denied): (Vec<_>, Vec<_>) =
            directories.partition(|one| may_use(&one.parent, request.peer.as_ref()));
        let mut failures = Vec::new();
        if directories.is_empty()
            && let Some(DirectoryCandidate { parent: denied, .. }) = denied.last()
        {
            let peer = request.peer.as_ref().map(ToString::to_string);
            let who = peer.unwrap_or_else(|| "a client without a certificate".to_owned());
            failures.push(format!(
                "{who} may not use export {}: its tls-allow does not list this client",
                denied.name
            ));
        }
        let names: Vec<&str> = directories.iter().map(|one| one.parent.name.as_str()).collect();
        let list_key = format!("{}: {}", request.listen, names.join("/"));
        if let (RequestedExport::All, Some(list)) =
            (&request.wanted, self.files.recent_list(&list_key))
        {
            request.list(list);
            return None;
        }
        if let (RequestedExport::Named(name), Some(first)) = (&request.wanted, directories.first())
            && let Some(server) = &self.servers.nbd
        {
            let key = format!("{}/{name}", first.parent.name);
            if server.is_used_on_demand(&key) {
                request.grant(server, &key);
                return None;
            }
        }
        // The drive gets one queue for each I/O thread, and one for the flusher thread of a cache.
        let queues = self.config.nbd_threads().saturating_add(1);
        Some(FileTask {
            request,
            directories,
            queues,
            list_key,
            names: Vec::new(),
            outcome: None,
            failures,
        })
    }

    /// Answers the client of a finished task, and serves the file that was opened for it.
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

    /// Returns files whose clients left some time ago. The caller flushes each and passes it to
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
            // A file that clients have only queried is closed at once. A client that lists the
            // exports may query every file and then use no file.
            let is_over = now - since >= file.close_after || !server.was_used_on_demand(name);
            if is_over && let Ok(volume) = volume {
                file.is_closing = true;
                let (name, flushed) = (name.clone(), Err("nobody has flushed it".to_owned()));
                unused.push(ClosingFile { name, volume, reactor, flushed });
            }
        }
        unused
    }

    /// Closes a file after its flush. If the flush has failed, or if a client uses the file again,
    /// the file stays open.
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
            Err(why) => changes.failures.push(format!("export {name} stays open: {why}")),
        }
        changes
    }

    /// Returns true if any file of a served directory is open on demand.
    #[must_use]
    pub fn has_open_files(&self) -> bool {
        !self.files.files.is_empty()
    }

    /// Returns `config`, plus the volume and export of each file that is open on demand. Omits
    /// files whose directory is missing or has other settings in `config`.
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
                found.filter(|one| one.directory().is_some()).cloned()
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

    fn serve_new(
        &mut self,
        new: NewFile,
        before_serving: BeforeServing<'_>,
        changes: &mut FileChanges,
    ) -> Result<String, String> {
        let NewFile { at: DirectoryCandidate { parent, directory, .. }, volume, identity, driver } =
            new;
        let key = volume.name.clone();
        if !self.config.exports.contains(&parent) {
            return Err("a reload has changed this export; connect again".to_owned());
        }
        if self.files.files.contains_key(&key) {
            if self.servers.nbd.as_ref().is_some_and(|one| one.is_used_on_demand(&key)) {
                return Ok(key);
            }
            // The file open under this name has no clients. Close it, because the name may refer to
            // another file now.
            let open = self.opened.volume(&key).map_err(|error| error.to_string())?;
            flush_and_wait(open, self.reactor())?;
            self.remove_file(&key, &mut changes.failures);
            changes.closed.push(key.clone());
        }
        let config = OpenConfig {
            volumes: vec![volume.clone()],
            io_threads: vec![self.config.nbd_threads()],
            pinned_cpus: self.config.pinned_cpus(),
            ..OpenConfig::default()
        };
        let more = self.opened.open_more(&config, Some(driver), None);
        let more = more.map_err(|error| error.to_string())?;
        let export = export_of_file(&parent, key.clone());
        if let Err(why) = self.serve_file(&more, &export, before_serving) {
            self.close_more(more);
            return Err(why);
        }
        let Opened { volumes, caches, .. } = more;
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

    /// Starts serving an opened file. Adds the export last, because that step cannot be undone.
    fn serve_file(
        &mut self,
        more: &Opened,
        export: &ExportConfig,
        before_serving: BeforeServing<'_>,
    ) -> Result<(), String> {
        before_serving(more)?;
        self.start_workers_of(more).map_err(|error| error.to_string())?;
        // The directory's `tls-allow` was checked when the client requested the file.
        let config = nbd::ExportConfig {
            tls_allow: None,
            ..nbd_export(export, &more.volumes[0], &self.servers.groups)
        };
        let server = self.servers.nbd.as_mut().ok_or("no NBD server runs")?;
        server.add_on_demand(config).map_err(|error| error.to_string())
    }

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

fn may_use(export: &ExportConfig, peer: Option<&PeerNames>) -> bool {
    match &export.tls_allow {
        None => true,
        Some(names) => peer.is_some_and(|peer| names.iter().any(|name| peer.has(name))),
    }
}

fn export_of_file(parent: &ExportConfig, name: String) -> ExportConfig {
    ExportConfig {
        volume: name.clone(),
        name,
        on_demand: Some(OnDemand::File(parent.name.clone())),
        ..parent.clone()
    }
}

fn follow_files(servers: &mut Servers, config: &ServeConfig) {
    let exports = config.exports.iter().enumerate();
    let places = exports.filter(|(_, export)| export.is_of_nbd()).map(|(at, _)| at).collect();
    servers.follow(config, places);
}
