//! What caches have in memory only: how much, where, why, what to do.
//!
//! Called by watch.rs when a write below a cache has failed, while a daemon stops, and at its end.

use std::sync::Arc;

use millrace::{AtRisk, Cache, CacheMode, Native};
use millrace_block::Disk;

use crate::config::words::bytes_for_people;

/// A line for a daemon that serves, if something waits for drives that fail.
pub fn while_served(cache: &Cache<Native>) -> Option<String> {
    let risk = cache.at_risk().filter(|risk| !risk.failing.is_empty())?;
    let drives = drives(cache, &risk);
    Some(format!(
        "volume {}: {} at risk: in the cache's memory only, since writes to {drives} fail ({}); it is \
         tried again all the time: repair the drive or make room while the daemon runs; if it ends \
         before, that is lost",
        cache.below().name(),
        amount(&risk),
        risk.status.text(),
    ))
}

/// Why a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was asked to stop, and has.
    Stopped,
    /// It was asked once more, and ends at once.
    SecondSignal,
}

/// A line for a daemon that ends, if something is lost with it.
pub fn at_the_end(cache: &Cache<Native>, end: End) -> Option<String> {
    let risk = cache.at_risk()?;
    let silent = silent_drives(cache);
    let why = match end {
        End::SecondSignal => "a second signal ended the daemon".to_owned(),
        End::Stopped if !risk.failing.is_empty() => {
            format!("writes to {} failed ({})", drives(cache, &risk), risk.status.text())
        }
        End::Stopped if !silent.is_empty() => format!("{silent} answered nothing for 10 s"),
        End::Stopped => "its drives did not answer in time".to_owned(),
    };
    Some(format!(
        "volume {}: {} lost: acknowledged to clients and not known to be written, since {why}; check \
         what is on the volume (fsck, the database's own check) or restore it before it is used again",
        cache.below().name(),
        amount(&risk),
    ))
}

/// A line for a daemon that stops, if a cache owes something: how much, and how fast it becomes
/// less than the pages that it owed so many seconds ago.
pub fn while_stopping(cache: &Cache<Native>, before: u64, seconds: u64) -> Option<String> {
    const PAGE_BYTES: u64 = 4096;
    let owed = cache.stats().dirty;
    let text = |pages: u64| bytes_for_people(pages * PAGE_BYTES);
    let written = before.saturating_sub(owed);
    let pace = match written / seconds {
        _ if owed == 0 || cache.config().mode == CacheMode::WriteThrough => return None,
        0 if written > 0 => format!("{} in the last {seconds} s", text(written)),
        0 => match silent_drives(cache) {
            silent if silent.is_empty() => format!("nothing in the last {seconds} s"),
            silent => format!("nothing in the last {seconds} s: {silent} has not answered"),
        },
        rate => format!("{} a second, {} s more", text(rate), owed.div_ceil(rate)),
    };
    Some(format!(
        "volume {}: {} of its cache still to be written; {pace}",
        cache.below().name(),
        text(owed)
    ))
}

/// The drives below a cache that have requests which they have not answered.
fn silent_drives(cache: &Cache<Native>) -> String {
    let is_silent = |disk: &&Arc<Disk<Native>>| disk.stats().in_flight() > 0;
    let disks = cache.below().disks().iter().filter(is_silent);
    let names: Vec<String> = disks.map(|disk| format!("drive {}", disk.name())).collect();
    names.join(", ")
}

fn drives(cache: &Cache<Native>, risk: &AtRisk) -> String {
    let disks = cache.below().disks();
    let names: Vec<String> =
        risk.failing.iter().map(|at| format!("drive {}", disks[*at].name())).collect();
    names.join(", ")
}

/// `8192 bytes (the first: 4096 at byte 65536)`.
fn amount(risk: &AtRisk) -> String {
    let (start, len) = risk.first;
    format!("{} bytes (first {len} bytes from byte {start} on)", risk.bytes)
}
