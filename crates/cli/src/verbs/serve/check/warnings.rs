//! Warnings and notes of `serve` and `--check`, which are written to the log, not to standard
//! output.
//!
//! Standard output has tables, lines to paste and `ready`, which programs read. Warnings go to
//! standard error as text or JSON, depending on the flags.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace::{DriveWorkers, Opened, Volume};
use millrace_block::Serving;

use super::exposure;
use crate::config::ServePlan;

const GUEST_PAGE: u32 = 4096;

pub fn on_plan(plan: &ServePlan, metrics_flag: Option<SocketAddr>) {
    plan.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    let memory = memory.as_deref().and_then(total_bytes);
    memory.and_then(|memory| caches_beyond(plan, memory)).iter().for_each(|text| {
        tracing::warn!("{text}");
    });
    let exposed = exposure::warnings(plan, metrics_flag);
    exposed.iter().for_each(|text| tracing::warn!("{text}"));
}

pub fn on_start(plan: &ServePlan, opened: &Opened, workers: &DriveWorkers) {
    let per_drive = |serving| serving == Serving::PerDrive;
    if workers.threads() == 0
        && plan.config.volumes.iter().any(|one| per_drive(one.serving.serving))
    {
        tracing::info!(
            "this machine has one CPU, so drives have no workers; the I/O threads serve them"
        );
    }
    on_volumes(plan, &opened.volumes, (&opened.warnings, &opened.notes));
}

pub fn on_volumes(
    plan: &ServePlan,
    volumes: &[Arc<Volume>],
    (warnings, notes): (&[String], &[String]),
) {
    for volume in volumes {
        let large = large_blocks(plan, volume.name(), volume.limits().logical_block_size);
        large.for_each(|text| tracing::warn!("{text}"));
    }
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    notes.iter().for_each(|note| tracing::info!("{note}"));
}

/// Warns of blocks larger than a page: Linux guests refuse such a disk, with a message in the guest
/// only.
fn large_blocks(plan: &ServePlan, volume: &str, block_bytes: u32) -> impl Iterator<Item = String> {
    let is_its = move |name: &str| block_bytes > GUEST_PAGE && name == volume;
    plan.guests().filter(move |(export, ..)| is_its(&export.volume)).map(move |(_, guests, line)| {
        let socket = guests.path().display();
        let text = format!(
            "vhost-user-blk: unix:{socket}: the blocks of volume {volume} have {block_bytes} bytes, \
             and Linux guests refuse a disk whose block is larger than their page, mostly \
             {GUEST_PAGE} bytes (`virtio_blk: invalid block size`); a cache does not change that: \
             take a drive with smaller blocks, or let the guest mount it over NBD"
        );
        plan.problem(line, text).to_string()
    })
}

fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Warns of caches larger than the machine's memory, because the kernel would kill the daemon.
fn caches_beyond(plan: &ServePlan, memory_bytes: u64) -> Option<String> {
    let cached = |volume: &millrace::VolumeConfig| volume.cache.map(|cache| cache.size_bytes);
    let sizes = plan.config.volumes.iter().filter_map(cached);
    let all = sizes.fold(0, u64::saturating_add);
    let mib = |bytes: u64| bytes >> 20;
    (all > memory_bytes).then(|| {
        format!(
            "caches of {} MiB in all are more than this machine's memory of {} MiB: once they are \
             filled, the kernel kills the daemon, with what is dirty lost; make `size` of \
             [volume.cache] smaller",
            mib(all),
            mib(memory_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    #[test]
    fn block_that_guests_refuse_warns_for_each_socket() {
        let text = "[[drive]]\nname = \"d\"\nspec = \"null:\"\n[[volume]]\nname = \"v\"\n\
                    drives = [\"d\"]\n[[export]]\nvolume = \"v\"\nvhost-user-blk = \"unix:s\"\n";
        let plan = config::load("m.toml", text, Path::new("/f")).unwrap();
        let said = |volume, block| large_blocks(&plan, volume, block).collect::<Vec<_>>();
        assert!(said("v", 4096).is_empty() && said("other", 8192).is_empty());
        let said = said("v", 65_536);
        let begin = "m.toml:9: vhost-user-blk: unix:/f/s: the blocks of volume v have 65536 bytes, \
                     and Linux guests refuse";
        assert!(said.len() == 1 && said[0].starts_with(begin), "{said:?}");
    }

    #[test]
    fn caches_beyond_the_memory_are_a_warning_with_both_sizes() {
        let text = "[[drive]]\nname = \"d\"\nspec = \"null:\"\n[[volume]]\nname = \"v\"\n\
                    drives = [\"d\"]\n[volume.cache]\nsize = \"8g\"\n\
                    [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
        let plan = config::load("m.toml", text, Path::new("")).unwrap();
        assert_eq!(caches_beyond(&plan, 8 << 30), None);
        let said = caches_beyond(&plan, 4 << 30).unwrap();
        assert!(said.starts_with("caches of 8192 MiB in all are more than"), "{said}");
        assert!(said.contains("memory of 4096 MiB"), "{said}");
        assert_eq!(total_bytes("MemTotal:   16 kB\nMemFree: 1 kB\n"), Some(16_384));
    }
}
