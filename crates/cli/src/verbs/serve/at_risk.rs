//! What caches have in memory only where it can not be written: how much, where, what to do.
//!
//! Called by watch.rs when a write below a cache has failed, and at the end of the daemon.

use millrace::{AtRisk, Cache, Native};

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

/// A line for a daemon that ends, if something is lost with it.
pub fn at_the_end(cache: &Cache<Native>) -> Option<String> {
    let risk = cache.at_risk()?;
    let why = match risk.failing.is_empty() {
        true => "its drives did not answer in time".to_owned(),
        false => format!("writes to {} failed ({})", drives(cache, &risk), risk.status.text()),
    };
    Some(format!(
        "volume {}: {} lost: acknowledged to clients and never written, since {why}; check what is on \
         the volume (fsck, the database's own check) or restore it before it is used again",
        cache.below().name(),
        amount(&risk),
    ))
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
