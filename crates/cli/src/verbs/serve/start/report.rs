//! Reports that `serve` prints: volumes and drives, commands to paste, and the outcome of the stop.
//!
//! Commands to paste work in the directory in which the daemon was started: paths are as in the
//! configuration, quoted for a shell, and names and sockets are percent-encoded for NBD URIs.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use millrace::{
    CacheMode, DriveConfig, DriveWorkers, ExportConfig, Listen, Opened, StopReport, VhostSocket,
    Volume,
};
use millrace_block::{Disk, Layout, QueueKind, SECTOR_SHIFT, ServingConfig, Sharing};
use millrace_console::cache::mode_word;
use millrace_console::{Side, TextGrid, counted, quoted, visible};
use millrace_drives::size_text;
use millrace_machine::Native;

use super::tls_host;
use crate::config::group;
use crate::config::words::{bytes_for_people, design};
use crate::config::{ListenerPlan, ServePlan};
use crate::verbs::serve::check::findings::CheckFindings;

/// Maximum number of bytes of an export that the suggested fio command accesses.
const TRY_BYTES: u64 = 256 << 20;
const TRY_BLOCK: u32 = 4096;

pub fn checked(plan: &ServePlan, found: &CheckFindings) -> String {
    let mut text = controllers(plan);
    let machines = plan.guests().count();
    let groups = plan.config.groups.len();
    let mut counts = vec![
        counted(plan.config.drives().count(), "drive"),
        counted(plan.config.volumes.len(), "volume"),
        counted(plan.config.exports.len(), "export"),
        counted(plan.listeners.len() + machines, "listener"),
    ];
    if groups > 0 {
        counts.insert(2, counted(groups, "group"));
    }
    let name = if plan.file.is_empty() { "command line" } else { &plan.file };
    let verdict = if found.starts { "valid" } else { "valid, but cannot start on this host" };
    text.push_str(&found.volumes);
    text.push_str(&caches(plan));
    let volumes = plan.config.volumes.iter();
    for volume in volumes.filter(|volume| volume.serving != ServingConfig::default()) {
        let (name, serving) = (&volume.name, &volume.serving);
        let _ = writeln!(
            text,
            "volume \"{name}\": served {}; requests per drive: plug-high = {}, plug-low = {}, \
             pressure-high = {}, pressure-low = {}; drives: {}",
            serving.serving.name(),
            serving.plug_high,
            serving.plug_low,
            serving.pressure_high,
            serving.pressure_low,
            volume.drives.len()
        );
    }
    let _ = writeln!(text, "{name}: {verdict}: {}", counts.join(", "));
    text
}

/// Returns the report of a start, with commands to try. If the built-in trial volume is served
/// (from `data_dir`), these commands may overwrite its data.
pub fn serving(
    plan: &ServePlan,
    opened: &Opened,
    workers: &DriveWorkers,
    data_dir: Option<&Path>,
) -> String {
    let mut text = match opened.volumes.is_empty() {
        true => String::new(),
        false => format!("{}\n\n{}\n\n", volumes(plan, opened), drives(plan, opened)),
    };
    text.push_str(&groups(plan));
    text.push_str(&caches(plan));
    text.push_str(&controllers(plan));
    let named = opened.volumes.iter().map(|volume| (volume.name(), &**volume)).collect();
    for (listener, export) in pairs(plan) {
        let (name, group) = (&export.name, membership(export));
        if let Some(directory) = export.directory() {
            let access = if export.read_only { ", read-only" } else { "" };
            let (path, uri) = (directory.path.display(), uri(listener, "FILE", None));
            let _ =
                writeln!(text, "export \"{name}\": each FILE in {path} at {uri}{access}{group}");
            continue;
        }
        let (uri, access) = (uri(listener, name, None), access(export, &named));
        let _ = writeln!(text, "export \"{name}\" at {uri}{access}{group}");
    }
    text.push_str(&machines(plan, &named));
    if workers.threads() > 0 {
        let _ = writeln!(text, "drives' workers, {}", workers.describe());
    }
    let mut with_uri = pairs(plan).filter(|(listener, _)| has_uri(listener));
    if let Some((listener, export)) = with_uri.find(|(_, export)| export.on_demand.is_none()) {
        let host = tls_host::of(listener);
        if !host.remark.is_empty() {
            let _ = writeln!(text, "\n{}", host.remark);
        }
        let uri = uri(listener, &export.name, host.host.as_deref());
        let volume = volume_of(export, &named);
        text.push_str(&lines_to_paste(&uri, export, volume, data_dir));
    }
    text
}

fn controllers(plan: &ServePlan) -> String {
    let mut text = String::new();
    for controller in &plan.config.controllers {
        let owner = match controller.sharing {
            Sharing::Queue => "for each hardware queue of each drive",
            Sharing::Drive => "for each drive",
            Sharing::Controller => "for all its drives together",
        };
        let node = controller.node.map_or(String::new(), |node| format!(", NUMA node {}", node.0));
        let name = Some(&controller.name);
        let hung = plan.config.drives().filter(|drive| drive.spec.controller.as_ref() == name);
        let hung: Vec<&str> = hung.map(|drive| drive.name.as_str()).collect();
        let (name, tags, drives) = (&controller.name, controller.tags, hung.join(" "));
        let drives = if drives.is_empty() { "none" } else { &drives };
        let _ =
            writeln!(text, "controller \"{name}\": {tags} tags {owner}{node}; drives: {drives}");
    }
    text
}

fn membership(export: &ExportConfig) -> String {
    match (&export.group, export.group_each) {
        (Some(group), true) => format!(", each client in a group under {}", visible(group)),
        (Some(group), false) => format!(", group {}", visible(group)),
        (None, _) => String::new(),
    }
}

fn groups(plan: &ServePlan) -> String {
    if plan.config.groups.is_empty() {
        return String::new();
    }
    let mut table = table(&["group", "parent", "settings"]);
    for group in &plan.config.groups {
        let settings = group::settings(group).into_iter().filter(|(key, _)| *key != "parent");
        let settings: Vec<String> = settings.map(|(key, word)| format!("{key}={word}")).collect();
        let parent = group.parent.as_deref().unwrap_or("-");
        table.row([&*visible(&group.name), &*visible(parent), &*settings.join(" ")]);
    }
    format!("{}\n\n", table.text())
}

type VolumesByName<'a> = HashMap<&'a str, &'a Volume>;

fn volume_of<'a>(export: &ExportConfig, volumes: &VolumesByName<'a>) -> &'a Volume {
    volumes.get(export.volume.as_str()).expect("each export's volume is in the plan")
}

/// Returns `, read-only` for a read-only export or an export of read-only drives, else nothing.
fn access(export: &ExportConfig, volumes: &VolumesByName<'_>) -> &'static str {
    let features = &volume_of(export, volumes).limits().features;
    if export.read_only || features.read_only { ", read-only" } else { "" }
}

fn machines(plan: &ServePlan, volumes: &VolumesByName<'_>) -> String {
    let mut text = String::new();
    for (export, guests, _) in plan.guests() {
        let (access, group) = (access(export, volumes), membership(export));
        let path = guests.path().to_string_lossy();
        let threads = usize::from(guests.thread_count());
        let cpus: Vec<String> = guests.pinned_cpus().map(|cpu| cpu.0.to_string()).collect();
        let cpus = match cpus.is_empty() {
            true => String::new(),
            false => format!(" on CPU {}", cpus.join(" ")),
        };
        let _ = writeln!(
            text,
            "export \"{}\" at vhost-user-blk unix:{}{access}{group}: up to {}, {}{cpus}",
            export.name,
            visible(&path),
            counted(guests.queues.into(), "queue"),
            counted(threads, "I/O thread"),
        );
        if let VhostSocket::Listen(..) = guests.socket {
            let _ = writeln!(
                text,
                "  for QEMU, with shared memory (docs/vm.md): -chardev \
                 socket,id=disk,path={},reconnect=1 -device \
                 vhost-user-blk-pci,chardev=disk,num-queues={}",
                visible(&path),
                guests.queues.min(2)
            );
        }
    }
    text
}

fn pairs(plan: &ServePlan) -> impl Iterator<Item = (&ListenerPlan, &ExportConfig)> {
    plan.listeners.iter().flat_map(move |listener| {
        listener.exports.iter().map(move |export| (listener, &plan.config.exports[*export]))
    })
}

fn table(heads: &[&str]) -> TextGrid {
    TextGrid::new(heads.iter().map(|head| (*head, Side::Left)))
}

fn volumes(plan: &ServePlan, opened: &Opened) -> String {
    let mut table = table(&["volume", "size", "layout", "chunk", "serving", "drives"]);
    for (volume, named) in opened.volumes.iter().zip(&plan.config.volumes) {
        let (layout, chunk) = match named.layout {
            Layout::Stripe { chunk_sectors } => {
                ("stripe", bytes_for_people(u64::from(chunk_sectors) << 9))
            }
            Layout::Linear => ("linear", "-".to_owned()),
        };
        let names: Vec<&str> = named.drives.iter().map(|drive| drive.name.as_str()).collect();
        let size = bytes_for_people(volume.capacity() << 9);
        let serving = volume.serving().name();
        table.row([volume.name(), &size, layout, &chunk, serving, &names.join(" ")]);
    }
    table.text()
}

fn caches(plan: &ServePlan) -> String {
    let mut text = String::new();
    for volume in &plan.config.volumes {
        let Some(cache) = &volume.cache else { continue };
        let (name, mode) = (&volume.name, mode_word(cache.mode));
        let size = bytes_for_people(cache.size_bytes);
        let _ = write!(text, "volume \"{name}\": {mode} cache of {size}");
        let _ = match cache.mode {
            CacheMode::WriteThrough => writeln!(text),
            CacheMode::WriteBack => writeln!(
                text,
                ", at most {} of it dirty; a crash loses what no flush has covered",
                bytes_for_people(cache.dirty_max())
            ),
        };
    }
    text
}

fn drives(plan: &ServePlan, opened: &Opened) -> String {
    let mut table = table(&["drive", "size", "queues", "what"]);
    let configs: HashMap<&str, &DriveConfig> =
        plan.config.drives().map(|drive| (drive.name.as_str(), drive)).collect();
    for disk in opened.volumes.iter().flat_map(|volume| volume.drives()) {
        let Some(drive) = configs.get(disk.name()) else { continue };
        let size = bytes_for_people(disk.capacity() << 9);
        let queues = queues(disk, &design(drive.options.stack, drive.options.scheduler));
        let spec = drive.spec.to_string();
        table.row([disk.name(), &size, &queues, &*visible(&spec)]);
    }
    table.text()
}

/// Describes a drive's queues, as in `mq 2 -> 2, I/O threads`: design and scheduler, number of
/// software queues, number of hardware queues, and the threads that may run the queues.
fn queues(disk: &Disk<Native>, design: &str) -> String {
    let (software, hardware) = disk.queue_count();
    let runner = match disk.kind() {
        QueueKind::AnyThread => "any thread",
        QueueKind::OwnerOnly => "I/O threads",
    };
    format!("{design} {software} -> {hardware}, {runner}")
}

/// Returns the commands that `serve` suggests for trying an export. Pasted as they are, they change
/// no disk and no existing file: nbdcopy copies to a file of a new name.
fn lines_to_paste(
    uri: &str,
    export: &ExportConfig,
    volume: &Volume,
    data_dir: Option<&Path>,
) -> String {
    let (uri, copy) = (quoted(uri), quoted(&format!("{}-copy.img", file_name(&export.name))));
    let rw = if data_dir.is_some() && !export.read_only { "randrw" } else { "randread" };
    let block_bytes = u64::from(volume.limits().logical_block_size.max(TRY_BLOCK));
    let size_bytes = (volume.capacity() << SECTOR_SHIFT).min(TRY_BYTES);
    let (bs, size) = (size_text(block_bytes), size_text(size_bytes / block_bytes * block_bytes));
    if uri.starts_with("'nbds") {
        // QEMU and fio take no certificates from a URI, so their commands are left out here.
        let with = if uri.contains('?') { '&' } else { '?' };
        let uri = format!("{}{with}tls-certificates=FOLDER'", uri.trim_end_matches('\''));
        return format!(
            "\nTry it, with ca-cert.pem, client-cert.pem and client-key.pem in FOLDER:\n\
             \x20 nbdinfo {uri}\n\
             \x20 nbdcopy {uri} {copy}\n\n"
        );
    }
    format!(
        "\nTry it, in this directory:\n\
         \x20 qemu-img info {uri}\n\
         \x20 nbdcopy {uri} {copy}\n\
         \x20 fio --name=try --ioengine=nbd --uri={uri} --rw={rw} --bs={bs} --iodepth=32 \
         --size={size} --time_based --runtime=5\n\n"
    )
}

fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let text: String = name.chars().map(plain).collect();
    if text.is_empty() { "export".to_owned() } else { text }
}

fn has_uri(listener: &ListenerPlan) -> bool {
    matches!(listener.address, Listen::Unix(_) | Listen::Tcp(_))
}

/// Returns the NBD URI of an export. If `host` is given, it replaces the IP address of a TCP
/// listener.
fn uri(listener: &ListenerPlan, export: &str, host: Option<&str>) -> String {
    let name = encoded(export);
    let nbd = if listener.tls.is_some() { "nbds" } else { "nbd" };
    match &listener.address {
        Listen::Unix(path) => {
            format!("{nbd}+unix:///{name}?socket={}", encoded(&path.to_string_lossy()))
        }
        // An NBD URI cannot name an abstract socket.
        Listen::Abstract(abstract_name) => format!("unix:@{abstract_name}, export {name}"),
        Listen::Inherited(socket) => format!("systemd:{socket}, export {name}"),
        Listen::Tcp(tcp) => {
            let at = if tcp.ip().is_unspecified() { Some("localhost") } else { None };
            match host.or(at) {
                Some(host) => format!("{nbd}://{host}:{}/{name}", tcp.port()),
                None => format!("{nbd}://{tcp}/{name}"),
            }
        }
    }
}

fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

pub fn stopped(report: &StopReport) -> String {
    if report.is_clean() {
        return "stopped: all requests are answered and all data is flushed".to_owned();
    }
    let cut_off = (report.cut_off > 0).then(|| {
        let connections = counted(report.cut_off as usize, "connection");
        format!("{connections} closed with unanswered requests")
    });
    let mut all: Vec<&str> = Vec::new();
    // Duplicates are removed, because several I/O threads flush one volume and report the same
    // failure.
    for text in cut_off.iter().chain(&report.failures) {
        if !all.contains(&text.as_str()) {
            all.push(text);
        }
    }
    format!("stopped: {}", all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_encoded_and_quoted_for_a_shell() {
        let unix = |path: &str| ListenerPlan {
            address: Listen::Unix(path.into()),
            line: 1,
            exports: vec![0],
            tls: None,
            tls_line: 1,
            access_line: 1,
        };
        let plain = uri(&unix("millrace-data/vol0.sock"), "vol0", None);
        assert_eq!(plain, "nbd+unix:///vol0?socket=millrace-data/vol0.sock");
        let odd = uri(&unix("a b/s&x"), "v 1?", Some("not.for.it"));
        assert_eq!(odd, "nbd+unix:///v%201%3F?socket=a%20b/s%26x");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(file_name("a/b c"), "a_b_c");
    }

    #[test]
    fn a_tcp_uri_has_the_port_and_brackets_of_ipv6() {
        let tcp = |text: &str| ListenerPlan {
            address: Listen::Tcp(text.parse().unwrap()),
            line: 1,
            exports: vec![0],
            tls: None,
            tls_line: 1,
            access_line: 1,
        };
        let at = |text: &str, host| uri(&tcp(text), "v", host);
        assert_eq!(at("127.0.0.1:7", None), "nbd://127.0.0.1:7/v");
        assert_eq!(at("[::1]:7", None), "nbd://[::1]:7/v");
        assert_eq!(at("0.0.0.0:7", None), "nbd://localhost:7/v");
        assert_eq!(at("0.0.0.0:7", Some("a.test")), "nbd://a.test:7/v");
    }
}
