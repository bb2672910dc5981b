//! Serves volumes to hosts (NBD) and virtual machines (vhost-user-blk) with threads of this
//! process.
//!
//! A program that does work of its own between the steps of [`Server::start`], as `millrace serve`
//! does, calls the steps itself: [`Opened`](crate::Opened) or [`Opening`](crate::Opening),
//! [`Opened::start_workers`](crate::Opened::start_workers), [`Servers::start`].

mod config;
mod difference;
mod directories;
mod groups;
mod listeners;
mod on_demand;
mod reload;
mod servers;

use std::collections::HashMap;
use std::time::Duration;

pub use millrace_exports::nbd::{
    ExportRequest, ExportRequests, Listen, ListenConfig, ListenTls, Observer as NbdObserver,
    RequestedExport, ServerStats, StopReport,
};
pub use millrace_exports::vhost::{Say, Threads, VhostObserver, VhostSocket, VhostStats};
pub use millrace_exports::{AllowedPeers, ClientReport, ExportErrors, SocketAccess};
use millrace_machine::debug_fields;
use millrace_runtime::DriveWorkers;
pub use millrace_tls::{Identity, PeerNames, ServerFiles};

pub use self::config::{
    ExportConfig, ExportDirectory, GuestConfig, OnDemand, ServeConfig, ServerConfig,
};
pub use self::difference::{ConfigDifference, ReloadRefusal, SchedulerChange};
pub use self::groups::ServedGroups;
pub use self::listeners::{ListenerConfig, ListenerTls, TlsConfig};
use self::on_demand::OpenFiles;
pub use self::on_demand::{BeforeServing, ClosingFile, FileChanges, FileTask};
use self::reload::VolumeQueues;
pub use self::reload::{ReloadError, ReloadOptions, Reloaded};
pub use self::servers::{ExportFailures, Observers, Servers};
use crate::config::StartError;
use crate::opening::Opened;

/// Running servers with their volumes. Dropping this value without [`Server::stop`] stops the
/// servers at once.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use millrace::{
///     DriveConfig, ExportConfig, Listen, ServeConfig, Server, ServerConfig, VolumeConfig,
/// };
///
/// # let dir = tempfile::tempdir()?;
/// # let socket = dir.path().join("vol0.sock");
/// let drives = vec![
///     DriveConfig::new("d0", "ram:size=1m".parse()?),
///     DriveConfig::new("d1", "ram:size=1m".parse()?),
/// ];
/// let export = ExportConfig {
///     name: "vol0".into(),
///     volume: "vol0".into(),
///     nbd: vec![Listen::Unix(socket)],
///     ..ExportConfig::default()
/// };
/// let config = ServeConfig {
///     volumes: vec![VolumeConfig::new("vol0", drives)],
///     exports: vec![export],
///     server: ServerConfig { threads: 1, ..ServerConfig::default() },
///     ..ServeConfig::default()
/// };
/// let server = Server::start(&config, Arc::new(|text| eprintln!("{text}")))?;
/// assert_eq!(server.opened().volumes[0].name(), "vol0");
/// assert!(server.stop(Duration::from_secs(1)).is_clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    // Fields are dropped in the order of their declaration: threads that submit I/O before workers,
    // and workers before volumes.
    servers: Servers,
    workers: DriveWorkers,
    opened: Opened,
    config: ServeConfig,
    queues: HashMap<String, VolumeQueues>,
    files: OpenFiles,
}

debug_fields!(Server, config);

impl Server {
    /// Opens the drives and volumes of a configuration, and starts to serve them. `say` receives
    /// messages for the operator about virtual machines, such as violations of the protocol.
    ///
    /// # Errors
    /// Returns the first failure. Nothing is left running, and created files are removed.
    pub fn start(config: &ServeConfig, say: Say) -> Result<Server, StartError> {
        config.validate()?;
        let mut opened = Opened::open(&config.to_open())?;
        let start = || -> Result<_, StartError> {
            let workers = opened.start_workers(config.server.backend)?;
            Ok((workers, Servers::start(config, &opened, say)?))
        };
        let (workers, servers) = start().inspect_err(|_| opened.created.remove())?;
        Ok(Server::from_parts(config, opened, workers, servers))
    }

    /// Creates a server from its parts: the volumes, the drives' workers and the protocol servers.
    /// All parts must have been opened or started with `config`. [`Server::start`] does all this in
    /// one call.
    #[must_use]
    pub fn from_parts(
        config: &ServeConfig,
        opened: Opened,
        workers: DriveWorkers,
        servers: Servers,
    ) -> Server {
        let (queues, config) = (VolumeQueues::of(config), config.clone());
        Server { servers, workers, opened, config, queues, files: OpenFiles::default() }
    }

    /// Returns the configuration that was loaded last, plus the volume and export of each file that
    /// is open on demand. Changes of settings since the load are not included.
    #[must_use]
    pub fn configured(&self) -> &ServeConfig {
        &self.config
    }

    /// Returns the worker threads of the drives.
    #[must_use]
    pub fn workers(&self) -> &DriveWorkers {
        &self.workers
    }

    /// Returns the volumes, and remarks about their drives.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Returns the servers of NBD and vhost-user-blk.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Stops the server: waits up to `timeout` for requests in flight, flushes every volume, and
    /// ends all threads. The flush of a cache may exceed `timeout`: it continues as long as the
    /// drives below the cache make progress.
    #[must_use]
    pub fn stop(mut self, timeout: Duration) -> StopReport {
        let mut report = self.halt(timeout);
        report.failures.extend(self.join());
        report
    }

    /// Does the first part of [`Server::stop`]: everything except joining threads, which never ends
    /// if a drive hangs.
    #[must_use]
    pub fn halt(&mut self, timeout: Duration) -> StopReport {
        self.servers.halt(timeout)
    }

    /// Does the second part of [`Server::stop`]: joins the threads of the servers, then the drives'
    /// workers. The workers are joined last, because the servers' threads hand requests to them.
    /// Returns the errors.
    #[must_use]
    pub fn join(&mut self) -> Vec<String> {
        let servers = self.servers.join().err();
        let workers = self.workers.stop().err().map(|error| error.to_string());
        servers.into_iter().chain(workers).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{ConfigPart, DriveConfig, VolumeConfig};

    #[test]
    fn server_that_cannot_listen_removes_files_that_it_has_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let spec = format!("file:path={},size=1m", path.display()).parse().unwrap();
        let export = ExportConfig {
            name: "v".into(),
            volume: "v".into(),
            nbd: vec![Listen::Unix(dir.path().join("no/s"))],
            ..ExportConfig::default()
        };
        let config = ServeConfig {
            volumes: vec![VolumeConfig::new("v", vec![DriveConfig::new("d", spec)])],
            exports: vec![export],
            ..ServeConfig::default()
        };
        let error = Server::start(&config, Arc::new(|_| ())).err().unwrap();
        assert_eq!(error.part, ConfigPart::Listener(0));
        assert!(!path.exists());
    }
}
