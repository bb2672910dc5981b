//! Removes volumes in a reload: stops serving and flushes them, and on a failure serves them again.
//!
//! reload.rs calls this module once all new parts are ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Disk, Volume, is_unused};
use millrace_exports::flush_volume;
use millrace_machine::Native;
use millrace_reactor::Config;

use super::ReloadPlan;
use crate::serve::Server;
use crate::serve::config::{ExportConfig, ServeConfig};
use crate::serve::servers::NbdParts;

/// Time limit for each step in the removal of a volume. The steps are the completion of the
/// requests in flight, and the flush. If a step takes longer, the removal fails. Exception: a flush
/// may take longer while a cache writes dirty pages.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two checks whether a volume is still used.
const LOOK: Duration = Duration::from_millis(1);

impl Server {
    /// Stops serving the removed volumes and flushes them. Returns warnings about data that is lost
    /// by `force`. On a failure without `force`, serves the volumes again and returns the reasons.
    pub(super) fn let_go(&mut self, plan: ReloadPlan<'_>) -> Result<Vec<String>, Vec<String>> {
        let ReloadPlan { new, difference, options } = plan;
        let is_removed =
            |name: &str| difference.removed_volumes.iter().any(|volume| volume.name == name);
        let is_gone = |export: &&ExportConfig| {
            let is_it = |one: &ExportConfig| one.name == export.name && one.guests == export.guests;
            export.guests.is_some() && !new.exports.iter().any(is_it)
        };
        let guests = self.config.exports.iter().filter(is_gone);
        let guests: Vec<String> = guests.map(|export| export.name.clone()).collect();
        let names: Vec<&str> = guests.iter().map(String::as_str).collect();
        let mut failures = self.servers.remove_guests(&names, REMOVAL_TIMEOUT);
        if !difference.removed_volumes.is_empty() {
            let mut without = self.config.clone();
            without.exports.retain(|export| !is_removed(&export.volume));
            let removed = self.opened.volumes.iter().filter(|volume| is_removed(volume.name()));
            let removed: Vec<_> = removed.cloned().collect();
            failures.extend(self.serve_nbd(&without, &removed));
            if failures.is_empty() {
                failures.extend(flush_all(&removed, self.reactor()));
            }
        }
        if failures.is_empty() {
            return Ok(failures);
        }
        if options.force {
            failures.extend(self.lost(new));
            self.cut_off(new);
            return Ok(failures);
        }
        if options.disconnect {
            failures.push(
                "the clients of the exports to remove were disconnected before the removal failed"
                    .to_owned(),
            );
        }
        let config = self.config.clone();
        failures.extend(self.serve_nbd(&config, &[]));
        for export in config.exports.iter().filter(|export| guests.contains(&export.name)) {
            let volume = self.opened.volumes.iter().find(|one| one.name() == export.volume);
            let queues = self.queues.get(&export.volume).copied().unwrap_or_default();
            let Some(volume) = volume.cloned() else { continue };
            let again = self.servers.add_guests(&config, export, (&volume, queues.of_guests()));
            failures.extend(again.err().map(|error| error.to_string()));
        }
        Err(failures)
    }

    /// Returns texts about cached data that is lost with the removed volumes.
    fn lost(&self, new: &ServeConfig) -> Vec<String> {
        let caches = self.opened.caches.iter().map(|(cache, _)| cache);
        let gone = caches.filter(|cache| new.volume_number(cache.below().name()).is_none());
        let lost = gone.filter_map(|cache| {
            let (volume, risk) = (cache.below().name(), cache.at_risk()?);
            Some(format!(
                "volume {volume}: {} bytes lost, the first {} from byte {} on: written by \
                 clients and not known to be on the drives; check its contents before it is used again",
                risk.bytes, risk.first.1, risk.first.0
            ))
        });
        lost.collect()
    }

    /// Disconnects the NBD clients of removed exports at once. Called only for a removal with
    /// `force`, because the clients' requests in flight would never be answered.
    fn cut_off(&self, new: &ServeConfig) {
        let Some(nbd) = &self.servers.nbd else { return };
        let observer = nbd.observer();
        let is_gone = |name: &str| !new.exports.iter().any(|export| export.name == name);
        for client in observer.clients().iter().filter(|client| is_gone(&client.export)) {
            // The first call makes the server disconnect the client after the client's requests in
            // flight are answered. The second call makes the server disconnect the client at once.
            let _ = observer.disconnect(client.number);
            let _ = observer.disconnect(client.number);
        }
    }

    /// Makes NBD serve those exports of a configuration whose volumes are open, and waits until the
    /// removed volumes are unused. Returns the errors.
    fn serve_nbd(&mut self, config: &ServeConfig, removed: &[Arc<Volume<Native>>]) -> Vec<String> {
        let Some(nbd) = &mut self.servers.nbd else { return Vec::new() };
        let parts = NbdParts::new(config, &self.opened.volumes, &self.servers.groups);
        let change = parts
            .and_then(|parts| Ok(nbd.prepare(parts.exports, &parts.listeners)?))
            .map_err(|error| error.to_string());
        let gone = match change {
            Ok(change) => nbd.apply(change),
            Err(text) => return vec![text],
        };
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while !removed.is_empty() && !gone.are_unused() {
            if Instant::now() > deadline {
                let names: Vec<&str> = removed.iter().map(|volume| volume.name()).collect();
                return vec![in_flight(&names.join(", "))];
            }
            std::thread::sleep(LOOK);
        }
        Vec::new()
    }
}

fn wait_idle(volume: &Volume<Native>) -> Result<(), String> {
    let is_idle = |disk: &Arc<Disk<Native>>| {
        is_unused(disk) || (disk.tags_in_use() == 0 && disk.waiting() == 0)
    };
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    while !volume.drives().iter().chain(volume.disks()).all(is_idle) {
        if Instant::now() > deadline {
            return Err(in_flight(volume.name()));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn in_flight(volumes: &str) -> String {
    let seconds = REMOVAL_TIMEOUT.as_secs();
    format!("{volumes}: requests are in flight that the drives have not answered for {seconds} s")
}

pub(in crate::serve) fn flush_and_wait(
    volume: &Arc<Volume<Native>>,
    reactor: Config,
) -> Result<(), String> {
    flush_volume(volume, reactor, REMOVAL_TIMEOUT).and_then(|()| wait_idle(volume))
}

/// Flushes volumes in parallel, so that a slow one does not delay the others. Returns the errors.
fn flush_all(volumes: &[Arc<Volume<Native>>], reactor: Config) -> Vec<String> {
    std::thread::scope(|scope| {
        let flush = |volume: &Arc<Volume<Native>>| flush_and_wait(volume, reactor).err();
        let flushes = volumes.iter().map(|volume| {
            let started = std::thread::Builder::new().spawn_scoped(scope, move || flush(volume));
            (volume, started)
        });
        let flushes: Vec<_> = flushes.collect();
        let ends = flushes.into_iter().map(|(volume, started)| match started {
            Ok(thread) => thread.join().unwrap_or_else(|_| Some("a flush panicked".to_owned())),
            // If no thread can be started, the volumes are flushed one after another.
            Err(_) => flush(volume),
        });
        ends.flatten().collect()
    })
}
