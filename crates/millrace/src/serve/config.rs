//! What is to be served, as plain structs: exports, where they are reached, and I/O threads.
//!
//! A program fills them in; the `millrace` program makes them of a configuration file. Pure data
//! and the rules over all of it: who listens where, and how many I/O threads a volume's drives have
//! queues for. Called by serve.rs and servers.rs.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_block::ControllerConfig;
use millrace_cache::CacheConfig;
use millrace_drives::FileAccess;
use millrace_exports::nbd::{self, Listen, ListenConfig};
use millrace_exports::vhost::{POLL_MAX_NS, QUEUES_MAX, Threads, VhostSocket, WAIT_MAX_NS};
use millrace_machine::{CpuId, Machine, Native};
use millrace_reactor::Backend;

use crate::assemble::DriveOptions;
use crate::config::{DriveConfig, OpenConfig, Part, StartError, VolumeConfig};
use crate::groups::{DEFAULT_GROUP, GroupConfig};

use super::listeners::{ListenerConfig, TlsConfig};

/// I/O threads where nobody says how many: one per CPU, but not more than these.
const THREADS_DEFAULT_MAX: usize = 4;
/// Queues of a guest where nobody says how many and the machine has fewer CPUs.
const QUEUES_DEFAULT_MIN: usize = 16;

/// How long a file of a directory stays open without clients where nobody says how long.
const CLOSE_AFTER: Duration = Duration::from_secs(10);

/// All that is opened and served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeConfig {
    /// Controllers that drives may name.
    pub controllers: Vec<ControllerConfig>,
    /// Groups of those who share the drives.
    pub groups: Vec<GroupConfig>,
    /// Volumes with their drives.
    pub volumes: Vec<VolumeConfig>,
    /// Exports of the volumes.
    pub exports: Vec<ExportConfig>,
    /// Settings of addresses that exports name.
    pub listener_settings: Vec<ListenerConfig>,
    /// Threads and limits.
    pub server: ServerConfig,
}

/// A volume under a name that clients ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportConfig {
    /// The name that clients ask for.
    pub name: String,
    /// Text for people, possibly empty.
    pub description: String,
    /// Name of its volume.
    pub volume: String,
    /// Clients may not write.
    pub read_only: bool,
    /// Name of its clients' group; none: the default one.
    pub group: Option<String>,
    /// Each client has a group of its own under that one, with its limits and its latency target.
    pub group_each: bool,
    /// Where it is served over NBD. The first export of an address is that address's default.
    pub nbd: Vec<Listen>,
    /// Names in certificates of the clients of NBD that may see and use it; none: all may.
    pub tls_allow: Option<Vec<String>>,
    /// How virtual machines get it, if they do.
    pub guests: Option<GuestConfig>,
    /// Exports that are opened when a client of NBD asks for them.
    pub on_demand: Option<OnDemand>,
}

/// An export that has to do with exports on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnDemand {
    /// It stands for the files of a directory, and has no volume itself.
    Directory(ExportDirectory),
    /// It is a file that a client has asked for, of the export of this name. Servers make these
    /// themselves.
    File(String),
}

/// A directory whose files are exports: each is opened when a client asks for it by its name, and
/// closed a while after its last client has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportDirectory {
    /// Where it is.
    pub path: PathBuf,
    /// Settings of the files' drives.
    pub options: DriveOptions,
    /// Keys of the driver `file`, such as `direct`, but for `path`, `size` and `read-only`.
    pub file_keys: Vec<(String, String)>,
    /// The cache over each file, if there is to be one.
    pub cache: Option<CacheConfig>,
    /// How long a file stays open after its last client has left.
    pub close_after: Duration,
}

impl ExportDirectory {
    /// A directory, with the default settings for its files.
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
    /// What the files of a directory are opened for.
    pub(super) fn file_access(&self) -> FileAccess {
        if self.read_only { FileAccess::ReadOnly } else { FileAccess::ReadWrite }
    }

    /// The name that clients ask for, of a file of a directory: its own without the directory's.
    pub(super) fn name_on_demand(&self) -> Option<String> {
        match &self.on_demand {
            Some(OnDemand::File(parent)) => {
                let name = self.name.strip_prefix(parent.as_str())?.strip_prefix('/')?;
                Some(name.to_owned())
            }
            _ => None,
        }
    }
}

/// How an export is served to virtual machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestConfig {
    /// Where it meets the virtual machine's frontend.
    pub socket: VhostSocket,
    /// Most queues of a guest, 1 to 256.
    pub queues: u16,
    /// How many I/O threads serve the queues.
    pub threads: Threads,
    /// CPUs that the threads are pinned to, dealt out in turn; none: they are not pinned.
    pub cpus: Vec<u32>,
    /// Serial number, at most 20 bytes; the export's name if it is not given.
    pub serial: Option<String>,
    /// Longest poll before a sleep, in nanoseconds.
    pub poll_max_ns: u64,
    /// Longest wait for more requests, in nanoseconds.
    pub batch_wait_ns: u64,
    /// Notifications are suppressed by index.
    pub event_idx: bool,
}

impl GuestConfig {
    /// An export at this socket with the default settings: as many queues as CPUs and 16 at least,
    /// a thread for each as far as there are CPUs.
    #[must_use]
    pub fn new(socket: VhostSocket) -> GuestConfig {
        let cpus = Native::topology().cpus().len();
        GuestConfig {
            socket,
            queues: cpus.clamp(QUEUES_DEFAULT_MIN, QUEUES_MAX.into()) as u16,
            threads: Threads::PerQueue,
            cpus: Vec::new(),
            serial: None,
            poll_max_ns: POLL_MAX_NS,
            batch_wait_ns: WAIT_MAX_NS,
            event_idx: true,
        }
    }

    /// I/O threads that it has on this machine.
    #[must_use]
    pub fn thread_count(&self) -> u16 {
        self.threads.count(self.queues, &self.cpus)
    }

    /// The CPUs that its threads are pinned to.
    pub fn pinned_cpus(&self) -> impl Iterator<Item = u32> {
        self.cpus.iter().copied().take(usize::from(self.thread_count()))
    }

    /// The path of its socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.socket {
            VhostSocket::Listen(path, _) | VhostSocket::Connect(path) => path,
        }
    }
}

/// Threads and limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// I/O threads for NBD, 1 at least.
    pub threads: u16,
    /// Thread `i` is pinned to `cpus[i % len]`; empty: threads are not pinned.
    pub cpus: Vec<u32>,
    /// Threads of the program itself that may use the served volumes at the same time, through
    /// channels or devices of their own.
    pub own_threads: u16,
    /// What carries the I/O of all threads.
    pub backend: Backend,
    /// Most NBD connections at a time; above it new ones are closed at once.
    pub connections_max: u32,
    /// Longest negotiation in nanoseconds.
    pub handshake_timeout_ns: u64,
    /// Most memory for NBD's payload, of all connections, in bytes; at least 1 MiB.
    pub memory_max_bytes: u64,
    /// Longest busy poll before a thread sleeps, in nanoseconds; 0: never; none: for 100 us, as
    /// long as more is done that way.
    pub spin_ns: Option<u64>,
    /// TLS of all addresses of NBD that say nothing else.
    pub tls: Option<TlsConfig>,
}

impl Default for ServerConfig {
    /// One I/O thread per CPU, but 4 at most; limits as the NBD server has them.
    fn default() -> ServerConfig {
        let default = nbd::ServerConfig::default();
        ServerConfig {
            threads: Native::topology().cpus().len().clamp(1, THREADS_DEFAULT_MAX) as u16,
            cpus: default.cpus,
            own_threads: 0,
            backend: default.backend,
            connections_max: default.connections_max,
            handshake_timeout_ns: default.handshake_timeout_ns,
            memory_max_bytes: default.memory_max_bytes,
            spin_ns: default.spin_ns,
            tls: None,
        }
    }
}

impl ServeConfig {
    /// All drives in the order in which they are opened: volume after volume.
    pub fn drives(&self) -> impl Iterator<Item = &DriveConfig> {
        self.volumes.iter().flat_map(|volume| &volume.drives)
    }

    /// The number of a volume.
    #[must_use]
    pub fn volume_number(&self, name: &str) -> Option<usize> {
        self.volumes.iter().position(|volume| volume.name == name)
    }

    /// The addresses of NBD in the order in which exports name them, each with its exports.
    #[must_use]
    pub fn listeners(&self) -> Vec<ListenConfig> {
        let (mut listeners, mut places) = (Vec::<ListenConfig>::new(), HashMap::new());
        let settings = self.settings();
        for (number, export) in self.exports.iter().enumerate() {
            if matches!(export.on_demand, Some(OnDemand::File(_))) {
                continue;
            }
            for listen in &export.nbd {
                let place = *places.entry(listen).or_insert(listeners.len());
                if place == listeners.len() {
                    let access = settings.get(listen).map(|one| one.access.clone());
                    listeners.push(ListenConfig {
                        access: access.unwrap_or_default(),
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

    /// What is to be opened for it.
    #[must_use]
    pub fn to_open(&self) -> OpenConfig {
        let guests = self.exports.iter().filter_map(|export| export.guests.as_ref());
        let pinned = guests.flat_map(GuestConfig::pinned_cpus);
        OpenConfig {
            controllers: self.controllers.clone(),
            groups: self.groups.clone(),
            volumes: self.volumes.clone(),
            io_threads: self.queues_of_drives(self.io_threads()),
            pinned_cpus: self.server.cpus.iter().copied().chain(pinned).map(CpuId).collect(),
        }
    }

    /// Looks for contradictions among exports that starting servers would not find, or would find
    /// late. Touches neither file nor socket.
    ///
    /// # Errors
    /// The first one, with its part.
    pub fn validate(&self) -> Result<(), StartError> {
        let volumes: HashSet<&str> = self.volumes.iter().map(|one| one.name.as_str()).collect();
        let groups: HashSet<&str> = self.groups.iter().map(|one| one.name.as_str()).collect();
        // The first export of each group, with a group for each client and without.
        let mut first_of = HashMap::new();
        for export in &self.exports {
            first_of.entry((export.group_name(), export.group_each)).or_insert(export);
        }
        for (number, export) in self.exports.iter().enumerate() {
            let wrong = |what: &str| {
                StartError::invalid(Part::Export(number), format!("export {}: {what}", export.name))
            };
            if let Some(OnDemand::Directory(_)) = &export.on_demand {
            } else if !volumes.contains(export.volume.as_str()) {
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
                return Err(wrong("nothing serves it; give it an address of NBD or a socket"));
            }
            if export.guests.as_ref().is_some_and(|one| !(1..=QUEUES_MAX).contains(&one.queues)) {
                return Err(wrong(&format!("a guest has 1 to {QUEUES_MAX} queues")));
            }
        }
        if self.exports.is_empty() {
            return Err(StartError::invalid(Part::Whole, "nothing is exported"));
        }
        if let Some((number, text)) = self.directory_problems().into_iter().next() {
            return Err(StartError::invalid(Part::Export(number), text));
        }
        self.check_listeners()
    }

    /// What is wrong with exports of directories, with the numbers of the exports. Files of a
    /// directory are volumes and drives called `DIRECTORY/FILE`, so other names do not begin so.
    #[must_use]
    pub fn directory_problems(&self) -> Vec<(usize, String)> {
        let (mut problems, mut names) = (Vec::new(), HashSet::new());
        let of_files = |name: &str| {
            let mut exports = self.exports.iter();
            exports.any(|one| one.name == name && matches!(one.on_demand, Some(OnDemand::File(_))))
        };
        for (number, export) in self.exports.iter().enumerate() {
            let Some(OnDemand::Directory(directory)) = &export.on_demand else { continue };
            let mut add = |text: String| {
                problems.push((number, format!("export {}: {text}", export.name)));
            };
            if let Err(text) = check_directory(export, directory) {
                add(text);
            }
            if export.name.contains('/') {
                add("the name of a directory has no slash; give it another name".to_owned());
            }
            if !names.insert(&export.name) {
                add("another directory has this name; give one of them a name of its own"
                    .to_owned());
            }
            let begin = format!("{}/", export.name);
            let drives = self.drives().map(|drive| &drive.name);
            let volumes = self.volumes.iter().map(|volume| &volume.name);
            let exports = self.exports.iter().filter(|one| one.on_demand.is_none());
            let mut all = drives.chain(volumes).chain(exports.map(|export| &export.name));
            if let Some(taken) = all.find(|name| name.starts_with(&begin) && !of_files(name)) {
                add(format!(
                    "{taken} could be a file of the directory; choose another name for one of them"
                ));
            }
        }
        problems
    }

    /// Looks whether the directories of exports are there.
    ///
    /// # Errors
    /// The first one that is not, with its part.
    pub fn check_directories(&self) -> Result<(), StartError> {
        for (number, export) in self.exports.iter().enumerate() {
            if let Some(OnDemand::Directory(directory)) = &export.on_demand {
                let wrong = |text: String| StartError::invalid(Part::Export(number), text);
                directory.check().map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// I/O threads of NBD, if there is anything for them to do.
    pub(super) fn nbd_threads(&self) -> u16 {
        match self.exports.iter().all(|export| export.nbd.is_empty()) {
            true => 0,
            false => self.server.threads,
        }
    }

    /// Queues that the drives of volumes with these I/O threads are opened with: the program's own
    /// threads have some as well.
    pub(super) fn queues_of_drives(&self, io_threads: Vec<u16>) -> Vec<u16> {
        let own = self.server.own_threads;
        io_threads.into_iter().map(|threads| threads.saturating_add(own)).collect()
    }

    /// For each volume, the I/O threads that have queues of its drives.
    pub(super) fn io_threads(&self) -> Vec<u16> {
        let mut of_guests: HashMap<&str, u16> = HashMap::new();
        for export in &self.exports {
            let threads = export.guests.as_ref().map_or(0, GuestConfig::thread_count);
            *of_guests.entry(&export.volume).or_default() += threads;
        }
        let of_guests = |name: &str| of_guests.get(name).copied().unwrap_or(0);
        let nbd = self.nbd_threads();
        self.volumes.iter().map(|volume| nbd + of_guests(&volume.name)).collect()
    }
}

/// What cannot be said of an export that is a directory.
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
        let nowhere = "export a: nothing serves it; give it an address of NBD or a socket";
        assert_eq!(said(&config(&[("a", &[])])), (Part::Export(0), nowhere.to_owned()));
        let mut other = config(&[("a", &["x"])]);
        other.exports[0].volume = "w".to_owned();
        assert_eq!(said(&other).1, "export a: there is no volume w");
        assert_eq!(said(&ServeConfig::default()), (Part::Whole, "nothing is exported".to_owned()));
    }
}
