//! `Servers`: NBD for hosts and vhost-user-blk for virtual machines, in one process.
//!
//! `Servers` owns both servers, and starts, stops and queries them together.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use millrace_block::{Error, Volume};
use millrace_exports::nbd::{self, ExportRequests, Listen, Observer, StopReport};
use millrace_exports::vhost::{Say, VhostConfig, VhostExport, VhostObserver, VhostServer};
use millrace_exports::{ClientReport, virtio};
use millrace_machine::{Native, debug_fields, lock_unpoisoned};

use super::config::{ExportConfig, ServeConfig};
use super::groups::ServedGroups;
use crate::config::{ConfigPart, StartError};
use crate::opening::Opened;

/// First client number of virtual machines. NBD clients are numbered from 1.
const VHOST_TENANTS: u16 = 50_000;

/// Running servers of NBD and vhost-user-blk.
pub struct Servers {
    pub(super) nbd: Option<nbd::Server>,
    pub(super) vhost: VhostServer,
    guests: Vec<RunningGuests>,
    /// Indexes of exports in the configuration. The first list is for NBD exports, the second list
    /// for vhost-user-blk exports.
    places: [Vec<usize>; 2],
    exports: usize,
    pub(super) groups: ServedGroups,
    pub(super) requests: ExportRequests,
    /// Number of vhost-user-blk exports started so far, which determines the next client number.
    tenants: u16,
}

struct RunningGuests {
    export: ExportConfig,
    /// Range of hardware queue numbers, on each drive, that the export's I/O threads own.
    threads: Range<u16>,
    tenant: u16,
}

/// Number of an export's requests that failed because of a drive, with the last reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportFailures {
    /// Name of the export; empty if the export is not served.
    pub export: String,
    /// Number of failed requests.
    pub count: u64,
    /// Reason of the last failure; empty if no request has failed.
    pub last: &'static str,
}

/// Read access to the statistics of the NBD and vhost-user-blk servers, from any thread.
#[derive(Clone)]
pub struct Observers {
    /// Statistics of the NBD server and its clients. `None` if no NBD server runs.
    pub nbd: Option<Observer>,
    /// Statistics of the vhost-user-blk server and its clients, which are virtual machines.
    pub vhost: VhostObserver,
    /// Groups of clients.
    pub groups: ServedGroups,
    exports: usize,
    places: [Vec<usize>; 2],
}

impl Observers {
    /// Returns the NBD clients and then the virtual machines, in the order of client numbers.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientReport> {
        let nbd = self.nbd.as_ref().map(Observer::clients).unwrap_or_default();
        nbd.into_iter().chain(self.vhost.clients()).collect()
    }

    /// Disconnects a client, as [`Observer::disconnect`] and [`VhostObserver::disconnect`] do.
    /// Returns the client's report, or `None` for an unknown number.
    #[must_use]
    pub fn disconnect(&self, number: u16) -> Option<ClientReport> {
        let of_nbd = self.nbd.as_ref().and_then(|nbd| nbd.disconnect(number));
        of_nbd.or_else(|| self.vhost.disconnect(number))
    }

    /// Returns the failed requests of each export, over NBD and vhost-user-blk together, in the
    /// order of the exports in the configuration.
    #[must_use]
    pub fn failures(&self) -> Vec<ExportFailures> {
        let mut all = vec![ExportFailures::default(); self.exports];
        let nbd = self.nbd.as_ref().map(Observer::errors).unwrap_or_default();
        let [nbd_places, vhost_places] = &self.places;
        let vhost = vhost_places.iter().zip(self.vhost.errors());
        for (place, errors) in nbd_places.iter().zip(nbd).chain(vhost) {
            let one = &mut all[*place];
            one.export = errors.export;
            one.count += errors.count;
            if !errors.last.is_empty() {
                one.last = errors.last;
            }
        }
        all
    }
}

debug_fields!(Servers, exports);
debug_fields!(Observers, exports);

pub(super) struct NbdParts {
    pub(super) exports: Vec<nbd::ExportConfig>,
    pub(super) listeners: Vec<nbd::ListenConfig>,
    pub(super) places: Vec<usize>,
}

impl NbdParts {
    /// Converts the exports and listeners of a configuration. Reads certificates. Fails if a volume
    /// is not open.
    pub(super) fn new(
        config: &ServeConfig,
        volumes: &[Arc<Volume<Native>>],
        groups: &ServedGroups,
    ) -> Result<NbdParts, StartError> {
        config.check_directories()?;
        let volumes: HashMap<&str, _> = volumes.iter().map(|one| (one.name(), one)).collect();
        let (mut exports, mut places) = (Vec::new(), Vec::new());
        for (at, export) in config.exports.iter().enumerate() {
            if !export.is_of_nbd() {
                continue;
            }
            let volume = volumes.get(export.volume.as_str()).ok_or_else(|| {
                let text = format!("no volume {} was opened", export.volume);
                StartError::invalid(ConfigPart::Export(at), text)
            })?;
            places.push(at);
            exports.push(nbd_export(export, volume, groups));
        }
        let mut listeners = config.load_listeners()?;
        for listener in &mut listeners {
            for export in &mut listener.exports {
                // Converts an index in the configuration to an index in `exports`. The search
                // always succeeds, because `exports` has every export that a listener serves.
                *export = places.binary_search(export).unwrap_or(0);
            }
        }
        Ok(NbdParts { exports, listeners, places })
    }

    pub(super) fn start(
        self,
        config: &ServeConfig,
        requests: &ExportRequests,
    ) -> Result<nbd::Server, StartError> {
        let server = &config.server;
        let config_of_nbd = nbd::ServerConfig {
            exports: self.exports,
            listeners: self.listeners,
            threads: server.threads,
            cpus: server.cpus.clone(),
            backend: server.backend,
            connections_max: server.connections_max,
            handshake_timeout: server.handshake_timeout,
            memory_max_bytes: server.memory_max_bytes,
            spin: server.spin,
        };
        let started = nbd::Server::start_on_demand(config_of_nbd, requests);
        started.map_err(|error| failed(config, error))
    }
}

impl Servers {
    /// Starts the servers of a configuration. `opened` holds its open volumes; `say` receives
    /// messages for the operator about virtual machines.
    ///
    /// # Errors
    /// Fails if a socket cannot be bound or a thread cannot be started. If a socket caused the
    /// error, [`StartError::part`] names that socket.
    pub fn start(config: &ServeConfig, opened: &Opened, say: Say) -> Result<Servers, StartError> {
        config.validate()?;
        let groups = ServedGroups::new(config, &opened.groups)?;
        let parts = NbdParts::new(config, &opened.volumes, &groups)?;
        let nbd_places = parts.places.clone();
        let has_nbd = !parts.listeners.is_empty();
        let requests = ExportRequests::default();
        let nbd = has_nbd.then(|| parts.start(config, &requests)).transpose()?;
        let (mut guests, mut exports) = (Vec::<RunningGuests>::new(), Vec::new());
        for export in config.exports.iter().filter(|export| export.guests.is_some()) {
            let volume = opened.volume(&export.volume)?;
            let same = guests.iter().filter(|one| one.export.volume == export.volume);
            // Each thread needs its own hardware queue on each drive of the volume. The first
            // queues belong to the NBD threads, the next ones to the threads of earlier exports of
            // the volume.
            let before: u16 = same.map(|one| one.threads.len() as u16).sum();
            let first = config.nbd_threads() + before;
            let running = RunningGuests::new(export, first, guests.len() as u16);
            exports.extend(running.for_server(volume, &groups));
            guests.push(running);
        }
        let tenants = guests.len() as u16;
        let vhost = VhostConfig { exports, backend: config.server.backend, say };
        let vhost = VhostServer::start(vhost).map_err(|error| failed(config, error))?;
        let with_guests = config.exports.iter().enumerate().filter(|(_, it)| it.guests.is_some());
        let places = [nbd_places, with_guests.map(|(at, _)| at).collect()];
        let exports = config.exports.len();
        Ok(Servers { nbd, vhost, guests, places, exports, groups, tenants, requests })
    }

    /// Returns the NBD addresses with their actual ports, in the order of
    /// [`ServeConfig::listeners`].
    #[must_use]
    pub fn addresses(&self) -> &[Listen] {
        self.nbd.as_ref().map_or(&[], nbd::Server::addresses)
    }

    /// Returns remarks for the operator about the running servers.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let nbd = self.nbd.iter().flat_map(|server| server.notes());
        let mut notes: Vec<String> = nbd.chain(self.vhost.notes()).cloned().collect();
        notes.dedup();
        notes
    }

    /// Returns true if an I/O thread has died.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.nbd.as_ref().is_some_and(nbd::Server::has_failed) || self.vhost.has_failed()
    }

    /// Returns the queue of client requests for exports that are opened on demand. A program that
    /// serves directories takes requests from the queue on a thread of its own, and passes them to
    /// [`Server::answer`](super::Server::answer); until then the clients wait.
    #[must_use]
    pub fn requests(&self) -> ExportRequests {
        self.requests.clone()
    }

    /// Returns read access to the statistics of the NBD and vhost-user-blk servers.
    #[must_use]
    pub fn observers(&self) -> Observers {
        Observers {
            nbd: self.nbd.as_ref().map(nbd::Server::observer),
            vhost: self.vhost.observer(),
            groups: self.groups.clone(),
            exports: self.exports,
            places: self.places.clone(),
        }
    }

    /// Starts an export to virtual machines while others are served. The export may use the
    /// hardware queues `queues` of the volume's drives.
    pub(super) fn add_guests(
        &mut self,
        config: &ServeConfig,
        export: &ExportConfig,
        (volume, queues): (&Arc<Volume<Native>>, Range<u16>),
    ) -> Result<(), StartError> {
        let Some(first) = self.free_queues(export, queues) else {
            let name = &export.name;
            let text = format!(
                "export {name}: the drives of its volume have no queues left; remove the volume, \
                 and add both again"
            );
            return Err(StartError::invalid(ConfigPart::Whole, text));
        };
        let running = RunningGuests::new(export, first, self.tenants);
        let Some(new) = running.for_server(volume, &self.groups) else { return Ok(()) };
        self.vhost.add(&new).map_err(|error| failed(config, error))?;
        self.guests.push(running);
        self.tenants = self.tenants.wrapping_add(1);
        Ok(())
    }

    /// Finds consecutive hardware queues in `queues` that no other export uses, one for each I/O
    /// thread of `export`. Returns the number of the first queue, or `None` if there are not enough
    /// queues.
    pub(super) fn free_queues(&self, export: &ExportConfig, queues: Range<u16>) -> Option<u16> {
        let count = export.guest_threads();
        let is_free = |first: u16| {
            let its = first..first + count;
            let others = self.guests.iter().filter(|one| one.export.volume == export.volume);
            let mut others = others.filter(|one| one.export.name != export.name);
            !others.any(|one| one.threads.start < its.end && its.start < one.threads.end)
        };
        let mut firsts = queues.start..=queues.end.checked_sub(count)?;
        firsts.find(|first| is_free(*first))
    }

    pub(super) fn remove_guests(&mut self, names: &[&str], timeout: Duration) -> Vec<String> {
        self.guests.retain(|one| !names.contains(&one.export.name.as_str()));
        self.vhost.remove(names, timeout)
    }

    pub(super) fn follow(&mut self, config: &ServeConfig, nbd_places: Vec<usize>) {
        // The running exports to virtual machines are listed in the order in which they were
        // started.
        let place = |one: &RunningGuests| {
            let is_its =
                |export: &ExportConfig| export.name == one.export.name && export.guests.is_some();
            config.exports.iter().position(is_its)
        };
        let vhost_places = self.guests.iter().filter_map(place).collect();
        self.places = [nbd_places, vhost_places];
        self.exports = config.exports.len();
    }

    pub(super) fn halt(&mut self, timeout: Duration) -> StopReport {
        let Servers { nbd, vhost, .. } = self;
        let vhost = Mutex::new(vhost);
        let stop_vhost = || lock_unpoisoned(&vhost).halt(timeout);
        std::thread::scope(|scope| {
            // If no thread can be started, the servers are stopped one after the other.
            let stopping = Builder::new().spawn_scoped(scope, stop_vhost).ok();
            let mut report = nbd.as_mut().map(|server| server.halt(timeout)).unwrap_or_default();
            let failures = stopping.map_or_else(|| Ok(stop_vhost()), ScopedJoinHandle::join);
            report.failures.extend(failures.unwrap_or_else(|_| vec!["a stop panicked".to_owned()]));
            report
        })
    }

    /// Waits some seconds for the threads of halted servers to end. The error says which thread
    /// panicked, or hangs and is abandoned.
    pub(super) fn join(&mut self) -> Result<(), String> {
        self.nbd.take().map_or(Ok(()), |mut server| server.join())
    }
}

/// Converts the error of an NBD or vhost-user server that did not start. If the error's text begins
/// with the address of a socket, the returned error refers to that socket in the configuration.
pub(super) fn failed(config: &ServeConfig, error: Error) -> StartError {
    let text = error.to_string();
    let named = |address: &str| text.strip_prefix(address).is_some_and(|at| at.starts_with(": "));
    let nbd = config.listeners().iter().position(|one| named(&one.listen.to_string()));
    let is_its = |export: &ExportConfig| {
        let guests = export.guests.as_ref();
        guests.is_some_and(|guests| named(&format!("unix:{}", guests.path().display())))
    };
    let vhost = config.exports.iter().position(is_its);
    let part = nbd
        .map(ConfigPart::Listener)
        .or(vhost.map(ConfigPart::Guests))
        .unwrap_or(ConfigPart::Whole);
    StartError::new(part, error)
}

pub(super) fn nbd_export(
    export: &ExportConfig,
    volume: &Arc<Volume<Native>>,
    groups: &ServedGroups,
) -> nbd::ExportConfig {
    nbd::ExportConfig {
        name: export.name.clone(),
        description: export.description.clone(),
        volume: Arc::clone(volume),
        read_only: export.read_only,
        group: groups.of_export(export),
        tls_allow: export.tls_allow.clone(),
        on_demand: export.name_on_demand(),
    }
}

impl RunningGuests {
    /// Creates the entry of an export. `first` is the first hardware queue that the export's I/O
    /// threads own. `started` is the number of exports to virtual machines that were started before
    /// this export.
    fn new(export: &ExportConfig, first: u16, started: u16) -> RunningGuests {
        let threads = first..first + export.guest_threads();
        let tenant = VHOST_TENANTS.wrapping_add(started);
        RunningGuests { export: export.clone(), threads, tenant }
    }

    /// Converts the export for the vhost-user-blk server. Returns `None` if the export does not
    /// serve virtual machines.
    fn for_server(
        &self,
        volume: &Arc<Volume<Native>>,
        groups: &ServedGroups,
    ) -> Option<VhostExport> {
        let export = &self.export;
        let guests = export.guests.as_ref()?;
        let mut serial = guests.serial.clone().unwrap_or_else(|| export.name.clone());
        while serial.len() > virtio::ID_BYTES {
            serial.pop();
        }
        Some(VhostExport {
            name: export.name.clone(),
            volume: Arc::clone(volume),
            read_only: export.read_only,
            socket: guests.socket.clone(),
            queues: guests.queues,
            threads: guests.threads,
            cpus: guests.cpus.clone(),
            first_thread: self.threads.start,
            serial,
            poll_max: guests.poll_max,
            wait_max: guests.batch_wait,
            event_idx: guests.event_idx,
            tenant: self.tenant,
            group: groups.of_export(export),
        })
    }
}
