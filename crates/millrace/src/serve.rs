//! Volumes served to hosts (NBD) and virtual machines (vhost-user-blk) by threads of this process.
//!
//! [`Server::start`] opens drives, starts their workers and the servers, and returns when clients
//! can connect; [`Server::stop`] ends it all in the opposite order. It prints nothing, handles no
//! signal and never exits: the program does. A program that does something of its own in between,
//! as `millrace serve` does, calls the three steps itself: [`Opened`](crate::Opened) or
//! [`Opening`](crate::Opening), [`Opened::start_workers`](crate::Opened::start_workers),
//! [`Servers::start`].

mod config;
mod difference;
mod directories;
mod groups;
mod listeners;
mod on_demand;
mod reload;
mod servers;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

pub use millrace_exports::nbd::{
    ExportRequest, ExportRequests, Listen, RequestedExport, StopReport,
};
pub use millrace_exports::vhost::{Say, Threads, VhostSocket};
pub use millrace_exports::{Allow, SocketAccess};
use millrace_runtime::DriveWorkers;
pub use millrace_tls::{Identity, PeerNames, ServerFiles};

pub use self::config::{
    ExportConfig, ExportDirectory, GuestConfig, OnDemand, ServeConfig, ServerConfig,
};
pub use self::difference::{ConfigDifference, SchedulerChange};
pub use self::groups::ServedGroups;
pub use self::listeners::{ListenerConfig, ListenerTls, TlsConfig};
use self::on_demand::OpenFiles;
pub use self::on_demand::{BeforeServing, ClosingFile, FileChanges, FileTask};
use self::reload::VolumeQueues;
pub use self::reload::{ReloadError, ReloadOptions, Reloaded};
pub use self::servers::{ExportFailures, Observers, Servers};
use crate::config::{Part, StartError};
use crate::opening::Opened;

/// Volumes that are served. Dropped without [`Server::stop`], it stops at once.
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
    // In this order: whoever submits ends before the workers, and these before the volumes.
    servers: Servers,
    workers: DriveWorkers,
    opened: Opened,
    /// What is served.
    config: ServeConfig,
    /// Queues of the drives of each volume.
    queues: HashMap<String, VolumeQueues>,
    /// Files of directories that are open.
    files: OpenFiles,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens what the configuration says and serves it. `say` takes what there is to say to a
    /// person about guests that break the protocol.
    ///
    /// # Errors
    /// The first thing that cannot be opened or served; nothing is left running, and files that
    /// were made are removed.
    pub fn start(config: &ServeConfig, say: Say) -> Result<Server, StartError> {
        config.validate()?;
        let mut opened = Opened::open(&config.to_open())?;
        let started = opened
            .start_workers(config.server.backend)
            .map_err(|error| StartError::new(Part::Whole, error))
            .and_then(|workers| Ok((workers, Servers::start(config, &opened, say)?)));
        match started {
            Ok((workers, servers)) => Ok(Server::of_parts(config, opened, workers, servers)),
            Err(error) => {
                opened.created.remove();
                Err(error)
            }
        }
    }

    /// A server of parts that were opened and started one after the other, for this configuration.
    #[must_use]
    pub fn of_parts(
        config: &ServeConfig,
        opened: Opened,
        workers: DriveWorkers,
        servers: Servers,
    ) -> Server {
        let (queues, config) = (VolumeQueues::of(config), config.clone());
        Server { servers, workers, opened, config, queues, files: OpenFiles::default() }
    }

    /// The configuration as it was last given, without what was set since, and with the files of
    /// directories that are open.
    #[must_use]
    pub fn configured(&self) -> &ServeConfig {
        &self.config
    }

    /// The threads that serve drives for others.
    #[must_use]
    pub fn workers(&self) -> &DriveWorkers {
        &self.workers
    }

    /// The volumes, and remarks on their drives.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Answers what is in flight for at most `timeout`, flushes every volume, and ends. What a
    /// cache holds is written out as long as its drives take some of it.
    #[must_use]
    pub fn stop(mut self, timeout: Duration) -> StopReport {
        let mut report = self.halt(timeout);
        report.failures.extend(self.join());
        report
    }

    /// The first part of [`Server::stop`]: all but the end of threads, which hang if a drive does.
    #[must_use]
    pub fn halt(&mut self, timeout: Duration) -> StopReport {
        self.servers.halt(timeout)
    }

    /// The second part of [`Server::stop`]: ends the threads of servers, then those that could be
    /// handed something over by them; what went wrong.
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
    use crate::{DriveConfig, VolumeConfig};

    #[test]
    fn a_server_that_cannot_listen_removes_the_files_that_it_has_made() {
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
        assert_eq!(error.part, Part::Listener(0));
        assert!(!path.exists());
    }
}
