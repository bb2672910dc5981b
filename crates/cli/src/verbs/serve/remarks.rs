//! What `serve` and `--check` remark on: warnings and notes, through the log, never among results.
//!
//! Standard output has tables, lines to paste and `ready`, which programs read; what a person
//! should know besides goes to standard error, as text or JSON, as the flags say. Called by `serve`
//! and measured.rs.

use millrace::{DriveWorkers, Listen, Opened};
use millrace_block::Serving;

use crate::config::{Checked, ListenerPlan};

/// Remarks on a plan itself: what is allowed but hardly meant.
pub fn on_plan(plan: &Checked) {
    plan.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let memory = std::fs::read_to_string("/proc/meminfo").ok();
    let memory = memory.as_deref().and_then(total_bytes);
    memory.and_then(|memory| caches_beyond(plan, memory)).iter().for_each(|text| {
        tracing::warn!("{text}");
    });
    plan.listeners.iter().filter_map(|listener| open_to_all(plan, listener)).for_each(|text| {
        tracing::warn!("{text}");
    });
}

/// Remarks on what was opened, and on how it is served.
pub fn on_start(plan: &Checked, opened: &Opened, workers: &DriveWorkers) {
    let per_drive = |serving| serving == Serving::PerDrive;
    if workers.threads() == 0
        && plan.config.volumes.iter().any(|one| per_drive(one.serving.serving))
    {
        tracing::info!("one CPU: drives have no workers, I/O threads serve them");
    }
    opened.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    opened.notes.iter().for_each(|note| tracing::info!("{note}"));
}

/// The machine's memory, as `/proc/meminfo` says.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Warns of caches that are larger than the machine's memory: the kernel would end the daemon.
fn caches_beyond(plan: &Checked, memory_bytes: u64) -> Option<String> {
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

/// Warns of a listener that other hosts reach: NBD asks nobody who they are.
fn open_to_all(plan: &Checked, listener: &ListenerPlan) -> Option<String> {
    let Listen::Tcp(tcp) = &listener.address else { return None };
    let by_certificate =
        listener.tls.as_ref().is_some_and(|tls| tls.required && tls.files.client_ca.is_some());
    if tcp.ip().is_loopback() || by_certificate {
        return None;
    }
    let names = |read_only: bool| {
        let exports = listener.exports.iter().map(|export| &plan.config.exports[*export]);
        let exports = exports.filter(|export| export.read_only == read_only);
        let names: Vec<String> = exports.map(|export| format!("\"{}\"", export.name)).collect();
        names.join(", ")
    };
    let what = match (names(false), names(true)) {
        (written, read) if read.is_empty() => format!("read and write {written}"),
        (written, read) if written.is_empty() => format!("read {read}"),
        (written, read) => format!("read and write {written}, and read {read}"),
    };
    if listener.tls.is_some() {
        return Some(format!(
            "tcp:{tcp}: everybody on the network who reaches this port may {what}; its tls asks \
             nobody for a certificate: add client-ca, and leave required on"
        ));
    }
    let loopback = if tcp.is_ipv6() { "[::1]" } else { "127.0.0.1" };
    Some(format!(
        "tcp:{tcp}: everybody on the network who reaches this port may {what}, without a password; \
         use tcp:{loopback}:{}, or let a firewall choose who gets in",
        tcp.port()
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config;

    fn warned(addresses: &str, more: &str) -> Vec<String> {
        let text = format!(
            "[[drive]]\nname = \"d\"\nspec = \"null:\"\n\
             [[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
             [[export]]\nvolume = \"v\"\nnbd = {addresses}\n{more}"
        );
        let plan = config::load("m.toml", &text, Path::new("")).unwrap();
        plan.listeners.iter().filter_map(|listener| open_to_all(&plan, listener)).collect()
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

    #[test]
    fn a_port_that_other_hosts_reach_is_a_warning_of_what_they_may_do() {
        let local = "[\"unix:s\", \"tcp:7\", \"tcp:[::1]:7\", \"tcp:127.0.0.2:7\"]";
        assert_eq!(warned(local, ""), [""; 0]);
        let said = "tcp:0.0.0.0:7: everybody on the network who reaches this port may read and \
                    write \"v\", without a password; use tcp:127.0.0.1:7, or let a firewall \
                    choose who gets in";
        assert_eq!(warned("\"tcp:0.0.0.0:7\"", ""), [said]);
        let said = "tcp:[::]:7: everybody on the network who reaches this port may read \"v\", \
                    without a password; use tcp:[::1]:7, or let a firewall choose who gets in";
        assert_eq!(warned("\"tcp:[::]:7\"", "read-only = true\n"), [said]);
        let both = "[[export]]\nvolume = \"v\"\nname = \"ro\"\nnbd = \"tcp:10.0.0.1:7\"\n\
                    read-only = true\n";
        let said = warned("\"tcp:10.0.0.1:7\"", both);
        assert!(said[0].contains("may read and write \"v\", and read \"ro\", without"), "{said:?}");
    }
}
