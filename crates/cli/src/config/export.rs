//! `[[export]]`: a volume for clients, over NBD and for virtual machines.
//!
//! Owns the tables of keys, and decides what the keys for virtual machines come to. Without `cpus`
//! no thread is pinned: where the guest's own threads run is known to the kernel only, and a pinned
//! thread that shares its CPU with the guest that it serves cannot get out of the guest's way.
//! Called by sections.rs.

use std::path::{Path, PathBuf};

use millrace::{ExportConfig, GuestConfig, Listen, SocketAccess, Threads, VhostSocket};
use millrace_exports::vhost::QUEUES_MAX;

use super::document::{Key, Section, key, list};
use super::key_lines::KeyLines;
use super::listener::{self, allow};
use super::words;

/// Longest name of an export or description in bytes, by the NBD protocol.
const TEXT_BYTES_MAX: usize = 4096;
/// Bytes of a serial number.
const SERIAL_BYTES_MAX: usize = 20;

/// An export before its socket for virtual machines is put together.
#[derive(Default)]
pub struct ExportDraft {
    config: ExportConfig,
    path: PathBuf,
    access: SocketAccess,
    /// The frontend makes the socket, and the daemon connects to it.
    is_client: bool,
}

impl ExportDraft {
    fn guests(&mut self) -> &mut GuestConfig {
        let at = || GuestConfig::new(VhostSocket::Connect(PathBuf::new()));
        self.config.guests.get_or_insert_with(at)
    }
}

pub const EXPORT: &[Key<ExportDraft>] = &[
    key("volume", |to, at| at.text(&mut to.config.volume)),
    key("nbd", |to, at| {
        let base = at.base();
        at.list(&mut to.config.nbd, |text| words::address(text, base));
    }),
    key("name", |to, at| at.name(&mut to.config.name)),
    key("read-only", |to, at| at.flag(&mut to.config.read_only)),
    key("description", |to, at| at.text(&mut to.config.description)),
    key("group", |to, at| at.text(&mut to.config.group)),
    key("group-each", |to, at| at.word(&mut to.config.group_each, words::yes_or_no)),
    list("tls-allow", |to, at| at.list(&mut to.config.tls_allow, |text| Ok(text.to_owned()))),
    key("vhost-user-blk", |to, at| at.path(&mut to.path, socket)),
];

/// Keys that go with `vhost-user-blk`.
pub const GUESTS: &[Key<ExportDraft>] = &[
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
    key("poll-max", |to, at| at.word(&mut to.guests().poll_max_ns, words::up_to_a_second)),
    key("batch-wait", |to, at| at.word(&mut to.guests().batch_wait_ns, words::up_to_a_second)),
    // Without effect, which warnings.rs says.
    key("pin-memory", |_, at| at.word(&mut false, words::yes_or_no)),
    key("event-idx", |to, at| at.word(&mut to.guests().event_idx, words::yes_or_no)),
];

/// Reads a section.
pub fn read(mut section: Section<'_>) -> Option<(ExportConfig, KeyLines)> {
    let mut draft = ExportDraft::default();
    section.read(EXPORT, &mut draft);
    section.read(GUESTS, &mut draft);
    let has = |key| section.lines.has(key);
    if section.lines.has_valid("nbd") && draft.config.nbd.is_empty() {
        section.problem("nbd", "nbd: the list is empty; add \"unix:PATH\"");
    }
    if !has("volume") {
        section.missing("it names no volume; add volume = \"...\"");
    }
    if !has("nbd") && !has("vhost-user-blk") {
        let text = "it has no listener; add nbd = \"unix:PATH\", or vhost-user-blk for machines";
        section.missing(text);
    }
    if !section.lines.has_valid("name") && draft.config.name.is_empty() {
        draft.config.name.clone_from(&draft.config.volume);
    }
    section.lines.line = section.lines.at("volume");
    check_guests(&mut draft, &section);
    let config = draft.config;
    for (key, text) in [("name", &config.name), ("description", &config.description)] {
        if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
            let most = TEXT_BYTES_MAX;
            section.problem(key, format!("{key}: at most {most} bytes, and no NUL among them"));
        }
    }
    let lines = section.finish();
    lines.has_valid("volume").then_some((config, lines))
}

/// Puts the socket for virtual machines together, and checks that its keys go together.
fn check_guests(draft: &mut ExportDraft, section: &Section<'_>) {
    let lines = &section.lines;
    if !lines.has("vhost-user-blk") {
        for key in GUESTS.iter().filter(|key| lines.has_valid(key.name)) {
            let text = format!("{}: only with vhost-user-blk = \"unix:PATH\"; add that", key.name);
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
        let text =
            format!("{keys}: with role = \"client\" the socket is the frontend's; remove them");
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

/// Reads `role`: true if the frontend makes the socket.
fn role(text: &str) -> Result<bool, String> {
    words::choice(text, &[("server", false), ("client", true)])
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
            format!("write \"shared\", \"queue\", or a number from 1 to {QUEUES_MAX}")
        }),
    }
}
