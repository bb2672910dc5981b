//! `ServedLists`: the current volumes, caches and exports, for the control socket and the metrics
//! page.
//!
//! A reload creates new lists and never changes old ones. Lists keep their drives open, so a
//! request must drop the lists soon.

use std::collections::HashMap;
use std::sync::Arc;

use millrace::{Cache, Observers, Server, Words};
use millrace_block::{Disk, Volume};
use millrace_machine::Native;

use super::latency_targets::LatencyTargets;
use crate::views::report;

pub struct ServedLists {
    pub volumes: Vec<Arc<Volume<Native>>>,
    pub caches: Vec<Arc<Cache<Native>>>,
    /// Exports in the form in which reports list them. Their error counts are filled in for each
    /// report.
    pub exports: Vec<report::Export>,
    pub servers: Observers,
    pub schedulers: Vec<&'static str>,
    pub targets: LatencyTargets,
}

impl ServedLists {
    pub fn new(server: &Server) -> ServedLists {
        let config = server.configured();
        let exports = config.exports.iter().map(|export| report::Export {
            name: export.name.clone(),
            volume: export.volume.clone(),
            read_only: export.read_only,
            ..report::Export::default()
        });
        let opened = server.opened();
        ServedLists {
            exports: exports.collect(),
            schedulers: config.drives().map(|drive| drive.options.scheduler.word()).collect(),
            volumes: opened.volumes.clone(),
            caches: opened.caches.iter().map(|(cache, _)| Arc::clone(cache)).collect(),
            servers: server.servers().observers(),
            targets: LatencyTargets::new(config),
        }
    }

    pub fn disks(&self) -> impl Iterator<Item = &Arc<Disk<Native>>> + Clone {
        self.volumes.iter().flat_map(|volume| volume.drives())
    }
}

#[derive(Debug)]
pub struct NamedStates<T> {
    names: Vec<String>,
    pub states: Vec<T>,
}

impl<T> Default for NamedStates<T> {
    fn default() -> Self {
        NamedStates { names: Vec::new(), states: Vec::new() }
    }
}

impl<T: Clone + Default> NamedStates<T> {
    /// Returns the states of `names`, in their order. A name keeps its state from the previous
    /// call; the state of a new name is `T::default()`.
    pub fn of<'a>(&mut self, names: impl Iterator<Item = &'a str> + Clone) -> &mut [T] {
        if !names.clone().eq(self.names.iter().map(String::as_str)) {
            let before = self.names.drain(..).zip(self.states.drain(..));
            let before: HashMap<String, T> = before.collect();
            let state = |name| before.get(name).cloned().unwrap_or_default();
            self.states.extend(names.clone().map(state));
            self.names.extend(names.map(str::to_owned));
        }
        &mut self.states
    }
}
