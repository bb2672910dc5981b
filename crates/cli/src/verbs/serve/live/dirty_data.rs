//! Messages about data that exists only in a cache's memory: how much, on which drives, why, and
//! the remedy.
//!
//! watch.rs calls this module when a write-back has failed, while the daemon stops, and before it
//! exits.

use millrace::{AtRisk, Cache, DriveAtRisk, Native};

use super::daemon::LiveDaemon;
use crate::config::words::bytes_for_people;

pub fn while_served(cache: &Cache<Native>) -> Option<String> {
    let mut risk = cache.at_risk()?;
    risk.drives.retain(|of| of.failed.is_some());
    let bytes: u64 = risk.drives.iter().map(|of| of.bytes).sum();
    let why = (bytes > 0).then(|| failing(cache, &risk).join(" and "))?;
    Some(format!(
        "volume {}: {bytes} bytes at risk: in the cache's memory only, since {why}; the daemon \
         keeps retrying: repair the drive or make room while the daemon runs; if it ends before, \
         this data is lost",
        cache.below().name(),
    ))
}

pub fn while_stuck(cache: &Cache<Native>, drive: usize) -> String {
    let is_its = |of: &&DriveAtRisk| of.drive == drive;
    let bytes = cache.at_risk().and_then(|risk| risk.drives.iter().find(is_its).map(|of| of.bytes));
    format!(
        "volume {}: drive {} has completed no write for a second: {} bytes in the cache's memory \
         wait for it; writes to other drives continue",
        cache.below().name(),
        cache.below().disks()[drive].name(),
        bytes.unwrap_or(0),
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonEnd {
    Stopped,
    SecondSignal,
}

pub fn at_the_end(cache: &Cache<Native>, end: DaemonEnd) -> Option<String> {
    let risk = cache.at_risk()?;
    let mut why = failing(cache, &risk);
    let others = risk.drives.iter().filter(|of| of.failed.is_none());
    why.extend(others.map(|of| {
        let bytes = of.bytes;
        match end {
            DaemonEnd::Stopped => {
                format!("{} did not answer in time ({bytes} bytes not written)", name(cache, of))
            }
            DaemonEnd::SecondSignal => {
                format!(
                    "a second signal ended the daemon before {bytes} bytes were written to {}",
                    name(cache, of)
                )
            }
        }
    }));
    Some(format!(
        "volume {}: {} lost: written by clients and not known to be on the drives, since {}; check \
         the volume's contents (fsck, the database's own check) or restore it before it is used \
         again",
        cache.below().name(),
        amount(&risk),
        why.join(" and "),
    ))
}

/// Returns true if a stopped daemon may have lost data of a volume: its cache could not be written,
/// or one of `failures` may concern the volume.
pub fn is_lost(daemon: &LiveDaemon, volume: &str, failures: &[String]) -> bool {
    let caches = &daemon.lists().caches;
    let owes = |cache: &Cache<Native>| cache.below().name() == volume && cache.at_risk().is_some();
    let others = || caches.iter().map(|cache| cache.below().name()).filter(|name| *name != volume);
    let is_others = |text: &str| {
        others().any(|name| text.strip_prefix(name).is_some_and(|rest| rest.starts_with(": ")))
    };
    caches.iter().any(|cache| owes(cache)) || !failures.iter().all(|text| is_others(text))
}

#[derive(Debug, Default)]
pub struct DirtySnapshot {
    risk: Option<AtRisk>,
    answered: Vec<u64>,
    written: u64,
}

impl DirtySnapshot {
    pub fn now(cache: &Cache<Native>) -> DirtySnapshot {
        let answered = cache.below().disks().iter().map(|disk| disk.stats().ios()).collect();
        let written = cache.written_back() * cache.stats().page_bytes;
        DirtySnapshot { risk: cache.at_risk(), answered, written }
    }
}

/// Returns a line about a cache with dirty data while the daemon stops: the amount, the rate of
/// write-back since `before`, and the drives that delay the write-back.
pub fn while_stopping(
    cache: &Cache<Native>,
    (before, now): (&DirtySnapshot, &DirtySnapshot),
    seconds: u64,
) -> Option<String> {
    let risk = now.risk.as_ref()?;
    // Bytes written back since `before`. The decrease of the dirty data would show too little
    // progress, because new writes add dirty data at the same time.
    let written = now.written.saturating_sub(before.written);
    let mut held_up = failing(cache, risk);
    held_up.extend(risk.drives.iter().filter(|of| of.failed.is_none()).filter_map(|of| {
        let is_silent = before.answered.get(of.drive) == now.answered.get(of.drive);
        is_silent.then(|| {
            let drive = name(cache, of);
            format!("{drive} completes no I/O ({} bytes not written)", of.bytes)
        })
    }));
    let rate = written / seconds;
    let pace = match written {
        0 => format!("nothing was written in the last {seconds} s"),
        _ if held_up.is_empty() && rate > 0 => {
            format!("{} per second, about {} s more", bytes_for_people(rate), risk.bytes / rate + 1)
        }
        _ => format!("{} in the last {seconds} s", bytes_for_people(written)),
    };
    let mut text = format!(
        "volume {}: {} of its cache remains to be written; {pace}",
        cache.below().name(),
        bytes_for_people(risk.bytes)
    );
    held_up.iter().for_each(|what| text.extend(["; ", what]));
    Some(text)
}

fn failing(cache: &Cache<Native>, risk: &AtRisk) -> Vec<String> {
    let text = |of: &DriveAtRisk| {
        let (status, bytes) = (of.failed?, of.bytes);
        let (name, status) = (name(cache, of), status.text());
        Some(format!("writes to {name} fail ({status}; {bytes} bytes not written)"))
    };
    risk.drives.iter().filter_map(text).collect()
}

fn name(cache: &Cache<Native>, of: &DriveAtRisk) -> String {
    format!("drive {}", cache.below().disks()[of.drive].name())
}

fn amount(risk: &AtRisk) -> String {
    let (start, len) = risk.first;
    format!("{} bytes (first range: {len} bytes at offset {start})", risk.bytes)
}
