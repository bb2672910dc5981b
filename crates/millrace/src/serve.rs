//! Volumes served to hosts (NBD) and virtual machines (vhost-user-blk) by threads of this process.
//!
//! [`Server::start`] opens drives, starts their workers and the servers, and returns when clients
//! can connect; [`Server::stop`] ends it all in the opposite order. It prints nothing, handles no
//! signal and never exits: the program does. A program that does something of its own in between,
//! as `millrace serve` does, calls the three steps itself: [`Opened`](crate::Opened) or
//! [`Opening`](crate::Opening), [`Opened::start_workers`](crate::Opened::start_workers),
//! [`Servers::start`].

mod config;
mod servers;

use std::time::Duration;

pub use millrace_exports::server::{Listen, StopReport};
pub use millrace_exports::vhost::{Say, Threads, VhostSocket};
use millrace_runtime::DriveWorkers;

pub use self::config::{ExportConfig, GuestConfig, ServeConfig, ServerConfig};
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
}

impl Server {
    /// Opens what the configuration says and serves it. `say` takes what there is to say to a
    /// person about guests that break the protocol.
    ///
    /// # Errors
    /// The first thing that cannot be opened or served; nothing is left running.
    pub fn start(config: &ServeConfig, say: Say) -> Result<Server, StartError> {
        config.validate()?;
        let opened = Opened::open(&config.to_open())?;
        let workers = opened.start_workers(config.server.backend);
        let workers = workers.map_err(|error| StartError::new(Part::Whole, error))?;
        let servers = Servers::start(config, &opened, say)?;
        Ok(Server { servers, workers, opened })
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

    /// Answers what is in flight for at most `timeout`, flushes every volume, and ends.
    #[must_use]
    pub fn stop(self, timeout: Duration) -> StopReport {
        let Server { servers, mut workers, opened } = self;
        let mut report = servers.stop(timeout);
        // After all that could hand something over to them.
        report.failures.extend(workers.stop().err().map(|error| error.to_string()));
        drop(opened);
        report
    }
}
