//! Configuration of exports, listeners and I/O threads, as plain structs.
//!
//! This module also derives settings that depend on several sections: the exports of each NBD
//! address, and the number of hardware queues that each drive needs.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_block::ControllerConfig;
use millrace_cache::CacheConfig;
use millrace_drives::FileAccess;
use millrace_exports::nbd::{self, Listen, ListenConfig};
use millrace_exports::vhost::{POLL_MAX, QUEUES_MAX, Threads, VhostSocket, WAIT_MAX};
use millrace_machine::{CpuId, Machine, Native};
use millrace_reactor::Backend;

use crate::assemble::DriveOptions;
use crate::config::{ConfigPart, DriveConfig, OpenConfig, StartError, VolumeConfig};
use crate::groups::{DEFAULT_GROUP, GroupConfig};

use super::listeners::{ListenerConfig, TlsConfig};

/// Default number of I/O threads for NBD. On a machine with fewer CPUs, one thread for each CPU.
const THREADS_DEFAULT_MAX: usize = 4;
/// By default, a guest has one queue for each CPU of the machine, but at least this number.
const QUEUES_DEFAULT_MIN: usize = 16;

const CLOSE_AFTER: Duration = Duration::from_secs(10);

/// Configuration of all drives, volumes and exports of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeConfig {
    /// Storage controllers (tags shared by several drives) that the specs of drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups of clients, which share the drives by weights, limits and latency targets.
    pub groups: Vec<GroupConfig>,
    /// Volumes with their drives.
    pub volumes: Vec<VolumeConfig>,
    /// Exports of the volumes.
    pub exports: Vec<ExportConfig>,
    /// Access and TLS settings of NBD addresses. An address without an entry has default settings.
    pub listener_settings: Vec<ListenerConfig>,
    /// Threads and limits of the NBD server.
    pub server: ServerConfig,
}

/// Export: a volume, with the name by which clients select it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportConfig {
    /// Name by which clients select the export.
    pub name: String,
    /// Description for people; may be empty.
    pub description: String,
    /// Name of the exported volume.
    pub volume: String,
    /// If true, writes of clients are refused.
    pub read_only: bool,
    /// Group of the export's clients; `None` for the default group.
    pub group: Option<String>,
    /// If true, each client gets a group of its own below `group`, with the same limits and latency
    /// target.
    pub group_each: bool,
    /// Addresses at which NBD serves the export. The first export of an address is its default
    /// export.
    pub nbd: Vec<Listen>,
    /// Client certificates with one of these names give access over NBD; `None` admits all clients.
    pub tls_allow: Option<Vec<String>>,
    /// Settings for virtual machines, if they may use the export.
    pub guests: Option<GuestConfig>,
    /// Set if NBD opens the export only when a client requests it.
    pub on_demand: Option<OnDemand>,
}

/// Kind of an export that NBD opens on demand: a directory of files, or one file that was opened
/// from a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnDemand {
    /// The export stands for the files of a directory, and has no volume itself.
    Directory(ExportDirectory),
    /// The export is one file of a directory. A running server makes such an export when a client
    /// requests the file. The field is the name of the directory's export.
    File(String),
}

/// A directory whose files are exports: a file is opened when a client requests its name, and
/// closed some time after its last client has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportDirectory {
    /// Path of the directory.
    pub path: PathBuf,
    /// Queue settings of the drives that are opened for the directory's files.
    pub options: DriveOptions,
    /// Keys of the driver `file`, such as `direct`. The keys `path`, `size`, `grow` and `read-only`
    /// are ignored, because the server decides them for each file.
    pub file_keys: Vec<(String, String)>,
    /// Cache over each file; `None` for no cache.
    pub cache: Option<CacheConfig>,
    /// Time that a file stays open after its last client has left.
    pub close_after: Duration,
}

impl ExportDirectory {
    /// Returns default settings for serving the files of the directory `path`. Creates nothing on
    /// disk.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> ExportDirectory {
        ExportDirectory {
            path: path.into(),
            options: DriveOptions::default(),
            file_keys: Vec::new(),
            cache: None,
            close_after: CLOSE_AFTER,
        }
    }
}

impl ExportConfig {
    /// Returns the directory whose files are exports, if the export stands for one.
    #[must_use]
    pub fn directory(&self) -> Option<&ExportDirectory> {
        match &self.on_demand {
            Some(OnDemand::Directory(directory)) => Some(directory),
            _ => None,
        }
    }

    /// Returns true if the export is a single file that the server opened on demand from a
    /// directory.
    #[must_use]
    pub fn is_open_file(&self) -> bool {
        matches!(self.on_demand, Some(OnDemand::File(_)))
    }

    /// Returns true if an NBD server serves the export's volume.
    pub(super) fn is_of_nbd(&self) -> bool {
        !self.nbd.is_empty() && self.directory().is_none()
    }

    pub(super) fn guest_threads(&self) -> u16 {
        self.guests.as_ref().map_or(0, GuestConfig::thread_count)
    }

    pub(super) fn file_access(&self) -> FileAccess {
        if self.read_only { FileAccess::ReadOnly } else { FileAccess::ReadWrite }
    }

    /// If this is the export of one file in an exported directory, returns the file's part of the
    /// export name: `disk.img` of `images/disk.img`. `None` for other exports.
    pub(super) fn name_on_demand(&self) -> Option<String> {
        let Some(OnDemand::File(parent)) = &self.on_demand else { return None };
        self.name.strip_prefix(parent.as_str())?.strip_prefix('/').map(str::to_owned)
    }
}

/// Settings of an export to virtual machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestConfig {
    /// Vhost-user socket shared with the frontend.
    pub socket: VhostSocket,
    /// Maximum number of queues of a guest, 1 to 256.
    pub queues: u16,
    /// Number of I/O threads that serve the queues.
    pub threads: Threads,
    /// CPUs to pin the threads to, in turn; empty if they are not pinned.
    pub cpus: Vec<CpuId>,
    /// Serial number, at most 20 bytes; `None` takes the export's name.
    pub serial: Option<String>,
    /// Maximum time for which a thread polls before it sleeps.
    pub poll_max: Duration,
    /// Maximum time to wait for more requests that can be submitted together.
    pub batch_wait: Duration,
    /// If true, the virtio feature EVENT_IDX, which suppresses notifications, is offered.
    pub event_idx: bool,
}

impl GuestConfig {
    /// Returns default settings for a socket: one queue for each CPU, but at least 16; one thread
    /// for each queue, but at most one for each CPU.
    #[must_use]
    pub fn new(socket: VhostSocket) -> GuestConfig {
        let cpus = Native::topology().cpus().len();
        GuestConfig {
            socket,
            queues: cpus.clamp(QUEUES_DEFAULT_MIN, QUEUES_MAX.into()) as u16,
            threads: Threads::PerQueue,
            cpus: Vec::new(),
            serial: None,
            poll_max: POLL_MAX,
            batch_wait: WAIT_MAX,
            event_idx: true,
        }
    }

    /// Returns the number of the export's I/O threads, which may depend on this machine's CPUs.
    #[must_use]
    pub fn thread_count(&self) -> u16 {
        self.threads.count(self.queues, &self.cpus)
    }

    /// Returns the CPUs that the threads are pinned to.
    pub fn pinned_cpus(&self) -> impl Iterator<Item = CpuId> {
        self.cpus.iter().copied().take(usize::from(self.thread_count()))
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.socket {
            VhostSocket::Listen(path, _) | VhostSocket::Connect(path) => path,
        }
    }
}

/// Threads and limits of the NBD server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Number of I/O threads for NBD, at least 1.
    pub threads: u16,
    /// CPUs to pin threads to: thread `i` goes to `cpus[i % len]`; empty if they are not pinned.
    pub cpus: Vec<CpuId>,
    /// Number of threads of the program itself, besides the server's I/O threads, that may use the
    /// served volumes at the same time, through channels or devices.
    pub own_threads: u16,
    /// I/O backend of all threads: io_uring or epoll.
    pub backend: Backend,
    /// Maximum number of NBD connections at a time. Further ones are closed at once.
    pub connections_max: u32,
    /// Timeout of a client's negotiation.
    pub handshake_timeout: Duration,
    /// Memory limit for the payload of all NBD connections in bytes, at least 1 MiB.
    pub memory_max_bytes: u64,
    /// Maximum time for which a thread polls before it sleeps; zero disables polling. `None` polls
    /// for 100 us, as long as that improves throughput.
    pub spin: Option<Duration>,
    /// TLS of the NBD addresses that have no TLS settings of their own.
    pub tls: Option<TlsConfig>,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        let default = nbd::ServerConfig::default();
        ServerConfig {
            threads: Native::topology().cpus().len().clamp(1, THREADS_DEFAULT_MAX) as u16,
            cpus: default.cpus,
            own_threads: 0,
            backend: default.backend,
            connections_max: default.connections_max,
            handshake_timeout: default.handshake_timeout,
            memory_max_bytes: default.memory_max_bytes,
            spin: default.spin,
            tls: None,
        }
    }
}

impl ServeConfig {
    /// Returns all drives in the order in which they are opened: volume after volume.
    pub fn drives(&self) -> impl Iterator<Item = &DriveConfig> {
        self.volumes.iter().flat_map(|volume| &volume.drives)
    }

    /// Returns the index of a volume.
    #[must_use]
    pub fn volume_number(&self, name: &str) -> Option<usize> {
        self.volumes.iter().position(|volume| volume.name == name)
    }

    /// Returns the NBD addresses with their exports, in the order in which exports name them.
    #[must_use]
    pub fn listeners(&self) -> Vec<ListenConfig> {
        let (mut listeners, mut places) = (Vec::<ListenConfig>::new(), HashMap::new());
        for (number, export) in self.exports.iter().enumerate() {
            for listen in export.nbd.iter().filter(|_| !export.is_open_file()) {
                let place = *places.entry(listen).or_insert(listeners.len());
                if place == listeners.len() {
                    listeners.push(ListenConfig {
                        access: self.access_of(listen),
                        ..ListenConfig::new(listen.clone(), Vec::new())
                    });
                }
                let listener = &mut listeners[place];
                match export.on_demand {
                    Some(_) => listener.on_demand = true,
                    None => listener.exports.push(number),
                }
            }
        }
        listeners
    }

    /// Returns the configuration of all drives and volumes to open.
    #[must_use]
    pub fn to_open(&self) -> OpenConfig {
        OpenConfig {
            controllers: self.controllers.clone(),
            groups: self.groups.clone(),
            volumes: self.volumes.clone(),
            io_threads: self.queues_of_drives(self.io_threads()),
            pinned_cpus: self.pinned_cpus(),
        }
    }

    /// Returns the CPUs to which threads of the server and of exports to virtual machines are
    /// pinned. Workers of drives avoid them.
    pub(crate) fn pinned_cpus(&self) -> Vec<CpuId> {
        let guests = self.exports.iter().filter_map(|export| export.guests.as_ref());
        let of_guests = guests.flat_map(GuestConfig::pinned_cpus);
        self.server.cpus.iter().copied().chain(of_guests).collect()
    }

    /// Checks the exports for contradictions that a start of the servers would report late or not
    /// at all. Accesses neither files nor sockets.
    ///
    /// # Errors
    /// Returns the first contradiction, with the part of the configuration that causes it.
    pub fn validate(&self) -> Result<(), StartError> {
        let volumes: HashSet<&str> = self.volumes.iter().map(|one| one.name.as_str()).collect();
        let groups: HashSet<&str> = self.groups.iter().map(|one| one.name.as_str()).collect();
        // Maps each combination of a group name and `group_each` to the first export that has it.
        // If two exports of a group differ in `group_each`, the map shows it. This is an error.
        let mut first_of = HashMap::new();
        for export in &self.exports {
            first_of.entry((export.group_name(), export.group_each)).or_insert(export);
        }
        for (number, export) in self.exports.iter().enumerate() {
            let wrong = |what: &str| {
                let text = format!("export {}: {what}", export.name);
                StartError::invalid(ConfigPart::Export(number), text)
            };
            if export.directory().is_none() && !volumes.contains(export.volume.as_str()) {
                return Err(wrong(&format!("there is no volume {}", export.volume)));
            }
            let name = export.group_name();
            if name != DEFAULT_GROUP && !groups.contains(name) {
                return Err(wrong(&format!("there is no group {name}")));
            }
            if let Some(other) = first_of.get(&(name, !export.group_each)) {
                return Err(wrong(&format!(
                    "group {name} has a group for each client here, and none at export {}; name \
                     two groups",
                    other.name
                )));
            }
            self.check_tls_allow(export).map_err(|text| wrong(&text))?;
            if export.nbd.is_empty() && export.guests.is_none() {
                return Err(wrong(
                    "the export has no address; give it an NBD address or a vhost-user-blk socket",
                ));
            }
            if export.guests.as_ref().is_some_and(|one| !(1..=QUEUES_MAX).contains(&one.queues)) {
                return Err(wrong(&format!("the number of queues must be 1 to {QUEUES_MAX}")));
            }
        }
        if self.exports.is_empty() {
            return Err(StartError::invalid(ConfigPart::Whole, "nothing is exported"));
        }
        if let Some((number, text)) = self.directory_problems().into_iter().next() {
            return Err(StartError::invalid(ConfigPart::Export(number), text));
        }
        self.check_listeners()
    }

    /// Returns the problems of directory exports, each with the index of its export. Volumes and
    /// drives of a directory's files are named `DIRECTORY/FILE`, so no other volume, drive or
    /// export may have a name that begins like that.
    #[must_use]
    pub fn directory_problems(&self) -> Vec<(usize, String)> {
        let (mut problems, mut names) = (Vec::new(), HashSet::new());
        let of_files =
            |name: &str| self.exports.iter().any(|one| one.name == name && one.is_open_file());
        for (number, export) in self.exports.iter().enumerate() {
            let Some(directory) = export.directory() else { continue };
            let mut add = |text: String| {
                problems.push((number, format!("export {}: {text}", export.name)));
            };
            if let Err(text) = check_directory(export, directory) {
                add(text);
            }
            if export.name.contains('/') {
                add("the name of a directory export must not contain a slash; choose another name"
                    .to_owned());
            }
            if !names.insert(&export.name) {
                add("another directory export has this name; choose another name".to_owned());
            }
            let begin = format!("{}/", export.name);
            let drives = self.drives().map(|drive| &drive.name);
            let volumes = self.volumes.iter().map(|volume| &volume.name);
            let exports = self.exports.iter().filter(|one| one.on_demand.is_none());
            let mut all = drives.chain(volumes).chain(exports.map(|export| &export.name));
            if let Some(taken) = all.find(|name| name.starts_with(&begin) && !of_files(name)) {
                add(format!(
                    "a file of this directory may get the name {taken}, which is in use; choose \
                     another name for {taken} or for the export"
                ));
            }
        }
        problems
    }

    /// Checks that the directories of all exports exist.
    ///
    /// # Errors
    /// Returns an error for the first directory that does not exist. The error has the index of the
    /// export.
    pub fn check_directories(&self) -> Result<(), StartError> {
        for (number, export) in self.exports.iter().enumerate() {
            if let Some(directory) = export.directory() {
                let wrong = |text: String| StartError::invalid(ConfigPart::Export(number), text);
                directory.check().map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// Returns the number of I/O threads for NBD, or 0 if no export uses NBD.
    pub(super) fn nbd_threads(&self) -> u16 {
        let has_nbd = self.exports.iter().any(|export| !export.nbd.is_empty());
        if has_nbd { self.server.threads } else { 0 }
    }

    /// Returns the number of hardware queues that each volume's drives need: one for each I/O
    /// thread of the volume, and one for each of the program's own threads
    /// (`ServerConfig::own_threads`).
    pub(super) fn queues_of_drives(&self, io_threads: Vec<u16>) -> Vec<u16> {
        let own = self.server.own_threads;
        io_threads.into_iter().map(|threads| threads.saturating_add(own)).collect()
    }

    pub(super) fn io_threads(&self) -> Vec<u16> {
        let mut of_guests: HashMap<&str, u16> = HashMap::new();
        for export in &self.exports {
            *of_guests.entry(&export.volume).or_default() += export.guest_threads();
        }
        let of_guests = |volume: &VolumeConfig| of_guests.get(volume.name.as_str()).copied();
        let nbd = self.nbd_threads();
        self.volumes.iter().map(|volume| nbd + of_guests(volume).unwrap_or(0)).collect()
    }
}

fn check_directory(export: &ExportConfig, directory: &ExportDirectory) -> Result<(), String> {
    if export.guests.is_some() || !export.volume.is_empty() {
        return Err("the files of a directory are served over NBD; it has no volume and no \
                    vhost-user socket"
            .to_owned());
    }
    if let Some(cache) = &directory.cache {
        cache.validate().map_err(|text| format!("cache: {text}"))?;
    }
    let spec =
        directory.spec(Path::new("/"), export.file_access()).map_err(|why| why.to_string())?;
    millrace_drives::check(&spec).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(exports: &[(&str, &[&str])]) -> ServeConfig {
        let drive = DriveConfig::new("d", "null:size=1m".parse().unwrap());
        let unix = |path: &&str| Listen::Unix(path.into());
        let export = |(name, nbd): &(&str, &[&str])| ExportConfig {
            name: (*name).to_owned(),
            volume: "v".to_owned(),
            nbd: nbd.iter().map(unix).collect(),
            ..ExportConfig::default()
        };
        ServeConfig {
            volumes: vec![VolumeConfig::new("v", vec![drive])],
            exports: exports.iter().map(export).collect(),
            ..ServeConfig::default()
        }
    }

    #[test]
    fn exports_of_one_address_share_a_listener_in_their_order() {
        let config = config(&[("a", &["x"]), ("b", &["y", "x"])]);
        let listeners = config.listeners();
        let exports: Vec<_> = listeners.iter().map(|one| one.exports.as_slice()).collect();
        assert_eq!(exports, [&[0, 1][..], &[1]]);
        assert_eq!(listeners[1].listen, Listen::Unix("y".into()));
    }

    #[test]
    fn drives_have_queues_for_the_threads_that_serve_their_volume() {
        let mut config = config(&[("a", &["x"]), ("b", &[])]);
        config.server.threads = 3;
        let guests = GuestConfig::new(VhostSocket::Connect("g".into()));
        config.exports[1].guests = Some(GuestConfig { threads: Threads::Count(2), ..guests });
        assert_eq!(config.to_open().io_threads, [5]);
        config.exports[0].nbd.clear();
        assert_eq!(config.to_open().io_threads, [2]);
    }

    #[test]
    fn an_export_of_nothing_or_nowhere_is_refused() {
        let said = |config: &ServeConfig| {
            let error = config.validate().unwrap_err();
            (error.part, error.to_string())
        };
        let nowhere = "export a: the export has no address; give it an NBD address or a \
                       vhost-user-blk socket";
        assert_eq!(said(&config(&[("a", &[])])), (ConfigPart::Export(0), nowhere.to_owned()));
        let mut other = config(&[("a", &["x"])]);
        other.exports[0].volume = "w".to_owned();
        assert_eq!(said(&other).1, "export a: there is no volume w");
        assert_eq!(
            said(&ServeConfig::default()),
            (ConfigPart::Whole, "nothing is exported".to_owned())
        );
    }
}
