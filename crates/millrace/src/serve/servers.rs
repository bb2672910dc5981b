//! The servers of a process: NBD for hosts, vhost-user-blk for virtual machines.
//!
//! Starts and stops them together, and asks them together what there is to know. Made of a
//! configuration and of the volumes that were opened for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use millrace_block::{Error, Volume};
use millrace_exports::nbd::{self, Listen, Observer, StopReport};
use millrace_exports::vhost::{Say, VhostConfig, VhostExport, VhostObserver, VhostServer};
use millrace_exports::virtio;
use millrace_machine::Native;

use super::config::{ExportConfig, ServeConfig};
use super::groups::ServedGroups;
use crate::config::{Part, StartError};
use crate::opening::Opened;

/// Tenants of exports to virtual machines have numbers from here on; clients of NBD count from 1.
const VHOST_TENANTS: u16 = 50_000;

/// What serves.
pub struct Servers {
    nbd: Option<nbd::Server>,
    vhost: Option<VhostServer>,
    /// Exports there are.
    exports: usize,
    /// Which of them those to virtual machines are.
    places: Vec<usize>,
    groups: ServedGroups,
}

/// Requests of an export that failed because of drives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportFailures {
    /// The export's name; empty if nothing serves it.
    pub export: String,
    /// How many requests.
    pub count: u64,
    /// Why the last one failed; empty if none has.
    pub last: &'static str,
}

/// What can be asked of the servers from elsewhere.
pub struct Observers {
    /// Counters of NBD.
    pub nbd: Option<Observer>,
    /// Counters of virtual machines.
    pub vhost: Option<VhostObserver>,
    /// Groups of clients.
    pub groups: ServedGroups,
    exports: usize,
    places: Vec<usize>,
}

impl Observers {
    /// The requests that failed because of drives, of each export in the order of the
    /// configuration, over both servers.
    #[must_use]
    pub fn failures(&self) -> Vec<ExportFailures> {
        let nbd = self.nbd.iter().flat_map(Observer::errors).enumerate();
        let vhost = self.vhost.iter().flat_map(VhostObserver::errors);
        let mut all = vec![ExportFailures::default(); self.exports];
        for (place, errors) in nbd.chain(self.places.iter().copied().zip(vhost)) {
            let one = &mut all[place];
            one.export = errors.export;
            one.count += errors.count;
            if !errors.last.is_empty() {
                one.last = errors.last;
            }
        }
        all
    }
}

impl Servers {
    /// Starts what the configuration asks for. `opened` is what was opened for the same
    /// configuration; `say` takes what there is to say to a person about guests.
    ///
    /// # Errors
    /// If a socket cannot be bound or a thread cannot serve; the part is the socket's if it is one.
    pub fn start(config: &ServeConfig, opened: &Opened, say: Say) -> Result<Servers, StartError> {
        config.validate()?;
        let failed = |error| failed(config, error);
        let groups = ServedGroups::new(config, &opened.groups)?;
        let vhost = vhost_config(config, (opened, &groups), say).map_err(failed)?;
        let nbd = (config.nbd_threads() > 0)
            .then(|| {
                let listeners = config.load_listeners()?;
                let config = nbd_config(config, listeners, (opened, &groups));
                config.and_then(nbd::Server::start).map_err(failed)
            })
            .transpose()?;
        let vhost = (!vhost.exports.is_empty())
            .then(|| VhostServer::start(vhost))
            .transpose()
            .map_err(failed)?;
        let exports = config.exports.iter().enumerate();
        let places = exports.filter(|(_, export)| export.guests.is_some()).map(|(at, _)| at);
        let (exports, places) = (config.exports.len(), places.collect());
        Ok(Servers { nbd, vhost, exports, places, groups })
    }

    /// Where NBD is served, with real ports, in the order of [`ServeConfig::listeners`].
    #[must_use]
    pub fn addresses(&self) -> &[Listen] {
        self.nbd.as_ref().map_or(&[], nbd::Server::addresses)
    }

    /// What a person should know of how they run.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let nbd = self.nbd.iter().flat_map(|server| server.notes());
        let vhost = self.vhost.iter().flat_map(|server| server.notes());
        let mut notes: Vec<String> = nbd.chain(vhost).cloned().collect();
        notes.dedup();
        notes
    }

    /// Whether an I/O thread died.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.nbd.as_ref().is_some_and(nbd::Server::failed)
            || self.vhost.as_ref().is_some_and(VhostServer::failed)
    }

    /// What reads their counters.
    #[must_use]
    pub fn observers(&self) -> Observers {
        Observers {
            nbd: self.nbd.as_ref().map(nbd::Server::observer),
            vhost: self.vhost.as_ref().map(VhostServer::observer),
            groups: self.groups.clone(),
            exports: self.exports,
            places: self.places.clone(),
        }
    }

    /// Answers what is in flight for at most `timeout`, flushes as `Server::stop` does, and ends.
    #[must_use]
    pub fn stop(mut self, timeout: Duration) -> StopReport {
        let mut report = self.halt(timeout);
        report.failures.extend(self.join().err());
        report
    }

    /// The first part of [`Servers::stop`]: all but the end of threads, which hang if a drive does.
    #[must_use]
    pub fn halt(&mut self, timeout: Duration) -> StopReport {
        let vhost = Mutex::new(self.vhost.take());
        let stop_vhost = || {
            let server = vhost.lock().unwrap_or_else(PoisonError::into_inner).take();
            server.map_or_else(Vec::new, |server| server.stop(timeout))
        };
        let nbd = &mut self.nbd;
        std::thread::scope(|scope| {
            // Without a thread for it, one server is stopped after the other.
            let stopping = Builder::new().spawn_scoped(scope, stop_vhost).ok();
            let mut report = nbd.as_mut().map(|server| server.halt(timeout)).unwrap_or_default();
            let failures = stopping.map_or_else(|| Ok(stop_vhost()), ScopedJoinHandle::join);
            report.failures.extend(failures.unwrap_or_else(|_| vec!["a stop panicked".to_owned()]));
            report
        })
    }

    /// The second part of [`Servers::stop`]: waits some seconds for the end of threads.
    ///
    /// # Errors
    /// If one panicked, or hangs and is left behind; in words.
    pub fn join(&mut self) -> Result<(), String> {
        self.nbd.take().map_or(Ok(()), |mut server| server.join())
    }
}

/// The error of a server that did not start, with the part of the socket that it names.
fn failed(config: &ServeConfig, error: Error) -> StartError {
    let text = error.to_string();
    let named = |address: &str| text.strip_prefix(address).is_some_and(|at| at.starts_with(": "));
    let nbd = config.listeners().iter().position(|one| named(&one.listen.to_string()));
    let is_its = |export: &ExportConfig| {
        let guests = export.guests.as_ref();
        guests.is_some_and(|guests| named(&format!("unix:{}", guests.path().display())))
    };
    let vhost = config.exports.iter().position(is_its);
    let part = nbd.map(Part::Listener).or(vhost.map(Part::Guests)).unwrap_or(Part::Whole);
    StartError::new(part, error)
}

fn nbd_config(
    config: &ServeConfig,
    listeners: Vec<nbd::ListenConfig>,
    (opened, groups): (&Opened, &ServedGroups),
) -> Result<nbd::ServerConfig, Error> {
    let volumes: HashMap<&str, &Arc<Volume<Native>>> =
        opened.volumes.iter().map(|volume| (volume.name(), volume)).collect();
    let export = |export: &ExportConfig| {
        let volume = volumes.get(export.volume.as_str());
        Ok(nbd::ExportConfig {
            name: export.name.clone(),
            description: export.description.clone(),
            volume: Arc::clone(volume.map_or_else(|| opened.volume(&export.volume), |v| Ok(*v))?),
            read_only: export.read_only,
            group: groups.of_export(export),
            tls_allow: export.tls_allow.clone(),
        })
    };
    let server = &config.server;
    Ok(nbd::ServerConfig {
        exports: config.exports.iter().map(export).collect::<Result<_, Error>>()?,
        listeners,
        threads: server.threads,
        cpus: server.cpus.clone(),
        backend: server.backend,
        connections_max: server.connections_max,
        handshake_timeout_ns: server.handshake_timeout_ns,
        memory_max_bytes: server.memory_max_bytes,
        spin_ns: server.spin_ns,
    })
}

fn vhost_config(
    config: &ServeConfig,
    (opened, groups): (&Opened, &ServedGroups),
    say: Say,
) -> Result<VhostConfig, Error> {
    let mut exports: Vec<VhostExport> = Vec::new();
    for (index, export) in config.exports.iter().enumerate() {
        let Some(guests) = &export.guests else { continue };
        let volume = opened.volume(&export.volume)?;
        // Each thread has a hardware queue of its own of the volume's drives, behind those of NBD.
        let same = exports.iter().filter(|other| Arc::ptr_eq(&other.volume, volume));
        let before: u16 = same.map(VhostExport::thread_count).sum();
        let mut serial = guests.serial.clone().unwrap_or_else(|| export.name.clone());
        while serial.len() > virtio::ID_BYTES {
            serial.pop();
        }
        exports.push(VhostExport {
            name: export.name.clone(),
            volume: Arc::clone(volume),
            read_only: export.read_only,
            socket: guests.socket.clone(),
            queues: guests.queues,
            threads: guests.threads,
            cpus: guests.cpus.clone(),
            first_thread: config.nbd_threads() + before,
            serial,
            poll_max_ns: guests.poll_max_ns,
            wait_max_ns: guests.batch_wait_ns,
            event_idx: guests.event_idx,
            tenant: VHOST_TENANTS.wrapping_add(index as u16),
            group: groups.of_export(export),
        });
    }
    Ok(VhostConfig { exports, backend: config.server.backend, say })
}
