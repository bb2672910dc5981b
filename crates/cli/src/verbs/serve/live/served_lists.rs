//! `ServedLists`: volumes, caches and exports that the views read.
//!
//! A reload makes new lists and never changes old ones: a view takes the current lists and reads
//! counters through them. Lists keep their drives open, so nobody may keep them for long. Used by
//! daemon.rs and reload.rs.

use std::collections::HashMap;
use std::sync::Arc;

use millrace::{Cache, Observers, Server, Words};
use millrace_block::{Disk, Volume};
use millrace_machine::Native;

use super::failed_requests::FailedRequests;
use super::group_settings;
use super::latency_targets::LatencyTargets;
use crate::views::report;

/// Handles to everything that the views read or change.
pub struct ServedLists {
    pub volumes: Vec<Arc<Volume<Native>>>,
    pub caches: Vec<Arc<Cache<Native>>>,
    /// Exports without their error counts.
    pub exports: Vec<report::Export>,
    pub servers: Observers,
    /// Schedulers of the drives as configured.
    pub schedulers: Vec<&'static str>,
    pub targets: LatencyTargets,
    /// Groups of exports whose volume has a cache, with the volume.
    pub cached: Vec<(String, String)>,
    pub failed: FailedRequests,
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
            cached: group_settings::cached(config),
            failed: FailedRequests::default(),
        }
    }

    /// Returns all drives, in the order of the volumes.
    pub fn disks(&self) -> impl Iterator<Item = &Arc<Disk<Native>>> + Clone {
        self.volumes.iter().flat_map(|volume| volume.drives())
    }
}

/// Returns for each name in `now` its index in `before`.
pub fn places_before(before: &[String], now: &[String]) -> Vec<Option<usize>> {
    let places: HashMap<&str, usize> = before.iter().map(String::as_str).zip(0..).collect();
    now.iter().map(|name| places.get(name.as_str()).copied()).collect()
}
