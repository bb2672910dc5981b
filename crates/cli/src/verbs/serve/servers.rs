//! The servers of a daemon: NBD for hosts, vhost-user-blk for virtual machines, as its plan says.
//!
//! Starts and stops them together, and asks them together what there is to know. Made by `serve`
//! when drives are open; watched by watch.rs and seen by observed.rs.

use std::sync::Arc;
use std::time::Duration;

use millrace_exports::server::{
    ExportConfig, Listen, ListenConfig, Observer, Server, ServerConfig, StopReport,
};
use millrace_exports::vhost::{VhostConfig, VhostExport, VhostObserver, VhostServer};
use millrace_reactor::Backend;

use super::opening::Opened;
use crate::config::words::Address;
use crate::config::{Checked, ExportPlan, ListenerPlan, Place, Problems};

/// Tenants of exports to virtual machines have numbers from here on; clients of NBD count from 1.
const VHOST_TENANTS: u16 = 50_000;

/// What serves.
pub struct Servers {
    nbd: Option<Server>,
    vhost: Option<VhostServer>,
    /// Exports there are.
    exports: usize,
    /// Which of them those to virtual machines are.
    places: Vec<usize>,
}

/// What can be asked of it from elsewhere.
pub struct Observers {
    /// Of NBD.
    pub nbd: Option<Observer>,
    /// Of virtual machines.
    pub vhost: Option<VhostObserver>,
    /// Exports there are.
    exports: usize,
    /// Which of them those to virtual machines are.
    places: Vec<usize>,
}

impl Observers {
    /// The requests that failed because of drives, of each export in the order of the plan, over
    /// both servers: its name, how many, and the last in words.
    pub fn errors(&self) -> Vec<(String, u64, &'static str)> {
        let nbd = self.nbd.iter().flat_map(Observer::errors).enumerate();
        let vhost = self.vhost.iter().flat_map(VhostObserver::errors);
        let mut all = vec![(String::new(), 0, ""); self.exports];
        for (place, errors) in nbd.chain(self.places.iter().copied().zip(vhost)) {
            let (name, count, last) = &mut all[place];
            *name = errors.export;
            *count += errors.count;
            if !errors.last.is_empty() {
                *last = errors.last;
            }
        }
        all
    }
}

impl Servers {
    /// Starts what the plan asks for; `threads` is for NBD.
    ///
    /// # Errors
    /// If a socket cannot be bound or a thread cannot serve, at the line of the socket if that is
    /// it.
    pub fn start(plan: &Checked, opened: &Opened, threads: u16) -> Result<Servers, Problems> {
        let vhost = vhost_config(plan, opened, threads);
        let nbd = (!plan.listeners.is_empty())
            .then(|| Server::start(server_config(plan, opened, threads)))
            .transpose()
            .map_err(|error| problem(plan, &error))?;
        let vhost = (!vhost.exports.is_empty())
            .then(|| VhostServer::start(vhost))
            .transpose()
            .map_err(|error| problem(plan, &error))?;
        let exports = plan.exports.iter().enumerate();
        let places = exports.filter(|(_, export)| export.vhost.is_some()).map(|(at, _)| at);
        Ok(Servers { nbd, vhost, exports: plan.exports.len(), places: places.collect() })
    }

    /// Where NBD is served, with real ports.
    pub fn addresses(&self) -> &[Listen] {
        self.nbd.as_ref().map_or(&[], Server::addresses)
    }

    /// What a person should know of how they run.
    pub fn notes(&self) -> Vec<String> {
        let nbd = self.nbd.iter().flat_map(|server| server.notes());
        let vhost = self.vhost.iter().flat_map(|server| server.notes());
        let mut notes: Vec<String> = nbd.chain(vhost).cloned().collect();
        notes.dedup();
        notes
    }

    /// Whether an I/O thread died.
    pub fn failed(&self) -> bool {
        self.nbd.as_ref().is_some_and(Server::failed)
            || self.vhost.as_ref().is_some_and(VhostServer::failed)
    }

    /// What reads their counters.
    pub fn observers(&self) -> Observers {
        Observers {
            nbd: self.nbd.as_ref().map(Server::observer),
            vhost: self.vhost.as_ref().map(VhostServer::observer),
            exports: self.exports,
            places: self.places.clone(),
        }
    }

    /// Answers what is in flight for at most `timeout`, flushes, and ends.
    pub fn stop(self, timeout: Duration) -> StopReport {
        let vhost = self.vhost.map(|server| std::thread::spawn(move || server.stop(timeout)));
        let mut report = self.nbd.map(|server| server.stop(timeout)).unwrap_or_default();
        if let Some(stopping) = vhost {
            let failures = stopping.join();
            report.failures.extend(failures.unwrap_or_else(|_| vec!["a stop panicked".to_owned()]));
        }
        report
    }
}

/// The error of a server that did not start, at the line of the socket that it names.
fn problem(plan: &Checked, error: &millrace_block::Error) -> Problems {
    let text = error.to_string();
    let named = |address: &str| text.strip_prefix(address).is_some_and(|at| at.starts_with(": "));
    let nbd = plan.listeners.iter().find(|one| named(&listen(&one.address).to_string()));
    let vhost = plan.exports.iter().filter_map(|export| export.vhost.as_ref());
    let vhost = vhost.clone().find(|one| named(&format!("unix:{}", one.path().display())));
    let mut problems = Problems::new(&plan.file);
    match (nbd, vhost) {
        (Some(listener), _) => problems.add(listener.line, format!("nbd: {text}")),
        (_, Some(vhost)) => problems.add(vhost.line, format!("vhost-user-blk: {text}")),
        _ => problems.add_at(Place::File, text),
    }
    problems
}

fn listen(address: &Address) -> Listen {
    match address {
        Address::Unix(path) => Listen::Unix(path.clone()),
        Address::Tcp(address) => Listen::Tcp(*address),
    }
}

fn server_config(plan: &Checked, opened: &Opened, threads: u16) -> ServerConfig {
    let export = |export: &ExportPlan| ExportConfig {
        name: export.name.clone(),
        description: export.description.clone(),
        volume: opened.volumes[export.volume].clone(),
        read_only: export.read_only,
    };
    let listener = |listener: &ListenerPlan| ListenConfig {
        listen: listen(&listener.address),
        exports: listener.exports.clone(),
    };
    let (server, default) = (&plan.server, ServerConfig::default());
    ServerConfig {
        exports: plan.exports.iter().map(export).collect(),
        listeners: plan.listeners.iter().map(listener).collect(),
        threads,
        cpus: server.cpus.clone(),
        backend: server.backend.unwrap_or(default.backend),
        connections_max: server.connections_max.unwrap_or(default.connections_max),
        handshake_timeout_ns: server.handshake_timeout_ns.unwrap_or(default.handshake_timeout_ns),
        memory_max_bytes: server.memory_max_bytes.unwrap_or(default.memory_max_bytes),
        spin_ns: server.spin_ns.unwrap_or(default.spin_ns),
    }
}

fn vhost_config(plan: &Checked, opened: &Opened, threads: u16) -> VhostConfig {
    let mut exports: Vec<VhostExport> = Vec::new();
    for (index, export) in plan.exports.iter().enumerate() {
        let Some(vhost) = &export.vhost else { continue };
        let volume = &opened.volumes[export.volume];
        // Each thread has a hardware queue of its own of the volume's drives, behind those of NBD.
        let same = exports.iter().filter(|other| Arc::ptr_eq(&other.volume, volume));
        let before: u16 = same.map(|other| other.threads.count(other.queues)).sum();
        let mut serial = vhost.serial.clone().unwrap_or_else(|| export.name.clone());
        while serial.len() > millrace_exports::vhost::blk::ID_BYTES {
            serial.pop();
        }
        exports.push(VhostExport {
            name: export.name.clone(),
            volume: Arc::clone(volume),
            read_only: export.read_only,
            socket: vhost.socket.clone(),
            queues: vhost.queues,
            threads: vhost.threads,
            cpus: vhost.cpus.clone(),
            first_thread: nbd_threads(plan, threads) + before,
            serial,
            poll_max_ns: vhost.poll_max_ns,
            wait_max_ns: vhost.batch_wait_ns,
            pin_memory: vhost.pin_memory,
            event_idx: vhost.event_idx,
            tenant: VHOST_TENANTS.wrapping_add(index as u16),
        });
    }
    VhostConfig {
        exports,
        backend: plan.server.backend.unwrap_or(Backend::Auto),
        say: Arc::new(|text: &str| tracing::warn!("{text}")),
    }
}

/// I/O threads of NBD, if there is anything for them to do.
pub fn nbd_threads(plan: &Checked, threads: u16) -> u16 {
    if plan.listeners.is_empty() { 0 } else { threads }
}

/// I/O threads that have queues of the drives of a volume.
pub fn threads_of(plan: &Checked, volume: usize, threads: u16) -> u16 {
    let exports = plan.exports.iter().filter(|export| export.volume == volume);
    let vhost = exports.filter_map(|export| export.vhost.as_ref());
    nbd_threads(plan, threads) + vhost.map(|vhost| vhost.thread_count()).sum::<u16>()
}
