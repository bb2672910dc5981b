//! `[[export]]`: a volume that clients use over NBD, or that a virtual machine uses as a disk. An
//! export may also be a directory, whose files clients use over NBD.
//!
//! I/O threads are pinned to CPUs only if `cpus` is set. A pinned thread cannot leave a CPU on
//! which the guest's own threads run, and only the kernel knows these CPUs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace::{
    ExportConfig, ExportDirectory, GuestConfig, Listen, OnDemand, SocketAccess, Threads,
    VhostSocket,
};
use millrace_exports::vhost::QUEUES_MAX;

use super::document::{KeyReader, KeyValue, Section, key, list};
use super::drive::{cost, read_queues};
use super::key_lines::KeyLines;
use super::listener::{self, allow};
use super::volume::cache;
use super::words;

/// Maximum length of an export's name or description in bytes; a limit of the NBD protocol.
const TEXT_BYTES_MAX: usize = 4096;
/// Maximum length of a serial number in bytes; a limit of virtio-blk.
const SERIAL_BYTES_MAX: usize = 20;

#[derive(Default)]
pub struct ExportDraft {
    config: ExportConfig,
    directory: Option<ExportDirectory>,
    path: PathBuf,
    access: SocketAccess,
    /// True if the frontend creates the socket and the daemon connects to it.
    is_client: bool,
}

impl ExportDraft {
    fn directory(&mut self) -> &mut ExportDirectory {
        self.directory.get_or_insert_with(|| ExportDirectory::new(PathBuf::new()))
    }

    fn guests(&mut self) -> &mut GuestConfig {
        let at = || GuestConfig::new(VhostSocket::Connect(PathBuf::new()));
        self.config.guests.get_or_insert_with(at)
    }
}

pub const EXPORT: &[KeyReader<ExportDraft>] = &[
    key("volume", |to, at| at.text(&mut to.config.volume)),
    key("directory", |to, at| {
        to.config.read_only = true;
        at.path(&mut to.directory().path, words::folder);
    }),
    key("nbd", |to, at| {
        let base = at.base();
        at.list(&mut to.config.nbd, |text| words::address(text, base));
    }),
    key("name", |to, at| at.name(&mut to.config.name)),
    key("read-only", |to, at| at.flag(&mut to.config.read_only)),
    key("description", |to, at| at.text(&mut to.config.description)),
    key("files", |to, at| files(to.directory(), at)),
    key("group", |to, at| at.text(&mut to.config.group)),
    key("group-each", |to, at| at.word(&mut to.config.group_each, words::yes_or_no)),
    list("tls-allow", |to, at| at.list(&mut to.config.tls_allow, |text| Ok(text.to_owned()))),
    key("vhost-user-blk", |to, at| at.path(&mut to.path, socket)),
];

const FILES: &[KeyReader<ExportDirectory>] = &[
    key("cost", |to, at| to.options.cost = cost(at).unwrap_or_default()),
    key("cache", |to, at| to.cache = cache(at)),
    key("close-after", |to, at| at.word(&mut to.close_after, close_after)),
    key("direct", |to, at| at.set(|text| add_file_key(to, "direct", text))),
    key("aio", |to, at| at.set(|text| add_file_key(to, "aio", text))),
    key("lock", |to, at| at.set(|text| add_file_key(to, "lock", text))),
];

/// Keys that require `vhost-user-blk`.
pub const GUESTS: &[KeyReader<ExportDraft>] = &[
    key("role", |to, at| at.word(&mut to.is_client, role)),
    key("socket-mode", |to, at| at.digits(&mut to.access.mode, listener::mode)),
    key("socket-owner", |to, at| at.some(&mut to.access.owner, listener::user)),
    key("socket-group", |to, at| at.some(&mut to.access.group, listener::group)),
    list("allow-users", |to, at| at.list(&mut allow(&mut to.access).users, listener::user)),
    list("allow-groups", |to, at| at.list(&mut allow(&mut to.access).groups, listener::group)),
    key("queues", |to, at| at.word(&mut to.guests().queues, words::whole(1..=QUEUES_MAX.into()))),
    key("threads", |to, at| at.word(&mut to.guests().threads, threads)),
    list("cpus", |to, at| at.list(&mut to.guests().cpus, words::cpu)),
    key("serial", |to, at| at.text(&mut to.guests().serial)),
    key("poll-max", |to, at| at.word(&mut to.guests().poll_max, words::up_to_a_second)),
    key("batch-wait", |to, at| at.word(&mut to.guests().batch_wait, words::up_to_a_second)),
    // The former key `pin-memory` is accepted without effect; warnings.rs reports it.
    key("pin-memory", |_, at| at.word(&mut false, words::yes_or_no)),
    key("event-idx", |to, at| at.word(&mut to.guests().event_idx, words::yes_or_no)),
];

pub fn read(mut section: Section<'_>) -> Option<(ExportConfig, KeyLines)> {
    let mut draft = ExportDraft::default();
    section.read(EXPORT, &mut draft);
    section.read(GUESTS, &mut draft);
    let has = |key| section.lines.has(key);
    if section.lines.has_valid("nbd") && draft.config.nbd.is_empty() {
        section.problem("nbd", "nbd: the list is empty; add \"unix:PATH\"");
    }
    match (has("volume"), has("directory")) {
        (true, true) => section.problem(
            "directory",
            "directory: an export has either a volume or a directory; remove one of them",
        ),
        (_, false) if has("files") => {
            section.problem("files", "files: valid only with directory = \"...\"; add that key");
        }
        _ => {}
    }
    if !has("volume") && !has("directory") {
        section.missing("no volume is named; add volume = \"...\", or directory = \"...\"");
    }
    if !has("nbd") && !has("vhost-user-blk") {
        let text =
            "no listener is given; add nbd = \"unix:PATH\", or vhost-user-blk for virtual machines";
        section.missing(text);
    }
    let source = if has("volume") { "volume" } else { "directory" };
    let directory = draft.directory.take().filter(|_| source == "directory");
    if !section.lines.has_valid("name") && draft.config.name.is_empty() {
        let of_directory = directory.as_ref().and_then(|directory| directory.path.file_name());
        let of_directory = of_directory.map(|name| name.to_string_lossy().into_owned());
        draft.config.name = of_directory.unwrap_or_else(|| draft.config.volume.clone());
    }
    draft.config.on_demand = directory.map(OnDemand::Directory);
    section.lines.line = section.lines.at(source);
    check_guests(&mut draft, &section);
    let config = draft.config;
    for (key, text) in [("name", &config.name), ("description", &config.description)] {
        if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
            let most = TEXT_BYTES_MAX;
            section.problem(key, format!("{key}: must be at most {most} bytes and contain no NUL"));
        }
    }
    let lines = section.finish();
    lines.has_valid(source).then_some((config, lines))
}

fn files(directory: &mut ExportDirectory, value: KeyValue<'_, '_>) {
    let Some(mut section) = value.table() else { return };
    read_queues(&mut section, &mut directory.options);
    section.read(FILES, directory);
    section.finish();
}

fn add_file_key(directory: &mut ExportDirectory, key: &str, text: &str) -> Result<(), String> {
    directory.file_keys.push((key.to_owned(), text.to_owned()));
    Ok(())
}

fn close_after(text: &str) -> Result<Duration, String> {
    words::duration(text, &(Duration::ZERO..=words::DAY))
}

fn check_guests(draft: &mut ExportDraft, section: &Section<'_>) {
    let lines = &section.lines;
    if !lines.has("vhost-user-blk") {
        for key in GUESTS.iter().filter(|key| lines.has_valid(key.name)) {
            let text = format!(
                "{}: valid only with vhost-user-blk = \"unix:PATH\"; add that key",
                key.name
            );
            section.problem(key.name, text);
        }
    }
    if !lines.has_valid("vhost-user-blk") {
        draft.config.guests = None;
        return;
    }
    let of_socket = ["socket-mode", "socket-owner", "socket-group", "allow-users", "allow-groups"];
    if let Some(key) = of_socket.iter().find(|key| draft.is_client && lines.has(key)) {
        let keys = of_socket.join(", ");
        let text = format!(
            "{keys}: with role = \"client\" the frontend owns the socket; remove these keys"
        );
        section.problem(key, text);
    }
    let path = draft.path.clone();
    let socket = match draft.is_client {
        true => VhostSocket::Connect(path),
        false => VhostSocket::Listen(path, draft.access.clone()),
    };
    let guests = draft.guests();
    guests.socket = socket;
    if guests.serial.as_ref().is_some_and(|serial| serial.len() > SERIAL_BYTES_MAX) {
        section.problem("serial", format!("serial: at most {SERIAL_BYTES_MAX} bytes"));
    }
}

fn role(text: &str) -> Result<bool, String> {
    words::choice("role", text, &[("server", false), ("client", true)])
}

fn socket(text: &str, base: &Path) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:").map(|_| words::address(text, base)) {
        Some(Ok(Listen::Unix(path))) => Ok(path),
        Some(Err(error)) => Err(error),
        _ => Err("write \"unix:PATH\"".to_owned()),
    }
}

fn threads(text: &str) -> Result<Threads, String> {
    match text {
        "shared" => Ok(Threads::Shared),
        "queue" => Ok(Threads::PerQueue),
        _ => words::whole(1..=QUEUES_MAX.into())(text).map(Threads::Count).map_err(|_| {
            format!(
                "write \"shared\" (one thread), \"queue\" (up to one thread for each queue), or \
                 the number of threads, from 1 to {QUEUES_MAX}"
            )
        }),
    }
}
