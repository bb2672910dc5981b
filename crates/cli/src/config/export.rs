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
use super::problem::Problems;
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

pub const EXPORT: [Key<ExportDraft>; 9] = [
    key("volume", |export, value| value.text(&mut export.config.volume)),
    key("nbd", |export, value| {
        let base = value.base;
        value.list(&mut export.config.nbd, |text| words::address(text, base));
    }),
    key("name", |export, value| value.name(&mut export.config.name)),
    key("read-only", |export, value| value.flag(&mut export.config.read_only)),
    key("description", |export, value| value.text(&mut export.config.description)),
    key("group", |export, value| value.text(&mut export.config.group)),
    key("group-each", |export, value| {
        value.word(&mut export.config.group_each, words::yes_or_no);
    }),
    list("tls-allow", |export, value| {
        value.list(&mut export.config.tls_allow, |text| Ok(text.to_owned()));
    }),
    key("vhost-user-blk", |export, value| value.path(&mut export.path, socket)),
];

/// Keys that go with `vhost-user-blk`.
pub const GUESTS: [Key<ExportDraft>; 14] = [
    key("role", |export, value| {
        let roles = [("server", false), ("client", true)];
        value.word(&mut export.is_client, |text| words::choice(text, &roles));
    }),
    key("socket-mode", |export, value| value.digits(&mut export.access.mode, listener::mode)),
    key("socket-owner", |export, value| value.word(&mut export.access.owner, listener::user)),
    key("socket-group", |export, value| value.word(&mut export.access.group, listener::group)),
    list("allow-users", |export, value| {
        value.list(&mut allow(&mut export.access).users, listener::user);
    }),
    list("allow-groups", |export, value| {
        value.list(&mut allow(&mut export.access).groups, listener::group);
    }),
    key("queues", |export, value| {
        value.word(&mut export.guests().queues, words::whole::<u16>(1..=QUEUES_MAX.into()));
    }),
    key("threads", |export, value| value.word(&mut export.guests().threads, threads)),
    list("cpus", |export, value| value.list(&mut export.guests().cpus, words::cpu)),
    key("serial", |export, value| value.text(&mut export.guests().serial)),
    key("poll-max", |export, value| {
        value.word(&mut export.guests().poll_max_ns, words::up_to_a_second);
    }),
    key("batch-wait", |export, value| {
        value.word(&mut export.guests().batch_wait_ns, words::up_to_a_second);
    }),
    // Without effect, which plan.rs warns of.
    key("pin-memory", |_, value| value.word(&mut false, words::yes_or_no)),
    key("event-idx", |export, value| {
        value.word(&mut export.guests().event_idx, words::yes_or_no);
    }),
];

/// Reads a section.
pub fn read(mut section: Section<'_>, problems: &mut Problems) -> Option<(ExportConfig, KeyLines)> {
    let mut draft = ExportDraft::default();
    section.read(&EXPORT, &mut draft, problems);
    section.read(&GUESTS, &mut draft, problems);
    let has = |key| section.lines.has(key);
    if section.lines.has_valid("nbd") && draft.config.nbd.is_empty() {
        let text = "nbd: the list is empty; add \"unix:PATH\"";
        problems.add(section.lines.at("nbd"), text);
    }
    if !has("volume") {
        section.missing("it names no volume; add volume = \"...\"", problems);
    }
    if !has("nbd") && !has("vhost-user-blk") {
        let text = "it has no listener; add nbd = \"unix:PATH\", or vhost-user-blk for machines";
        section.missing(text, problems);
    }
    let mut lines = section.finish(problems);
    lines.line = lines.at("volume");
    check_guests(&mut draft, &lines, problems);
    let mut config = draft.config;
    if !lines.has("name") {
        config.name.clone_from(&config.volume);
    }
    for (key, text) in [("name", &config.name), ("description", &config.description)] {
        if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
            let text = format!("{key}: at most {TEXT_BYTES_MAX} bytes, and no NUL among them");
            problems.add(lines.at(key), text);
        }
    }
    // A name that is wrong is not replaced by the volume's: that may be another export's.
    let is_named = !lines.has("name") || lines.has_valid("name");
    (is_named && lines.has_valid("volume")).then_some((config, lines))
}

/// Puts the socket for virtual machines together, and checks that its keys go together.
fn check_guests(draft: &mut ExportDraft, lines: &KeyLines, problems: &mut Problems) {
    if !lines.has("vhost-user-blk") {
        for key in GUESTS.iter().filter(|key| lines.has_valid(key.name)) {
            let text = format!("{}: only with vhost-user-blk = \"unix:PATH\"; add that", key.name);
            problems.add(lines.at(key.name), text);
        }
        draft.config.guests = None;
        return;
    }
    let of_socket = ["socket-mode", "socket-owner", "socket-group", "allow-users", "allow-groups"];
    if let Some(line) = lines.first(&of_socket).filter(|_| draft.is_client) {
        let keys = of_socket.join(", ");
        let text =
            format!("{keys}: with role = \"client\" the socket is the frontend's; remove them");
        problems.add(line, text);
    }
    let path = draft.path.clone();
    let socket = match draft.is_client {
        true => VhostSocket::Connect(path),
        false => VhostSocket::Listen(path, draft.access.clone()),
    };
    let guests = draft.guests();
    guests.socket = socket;
    if guests.serial.as_ref().is_some_and(|serial| serial.len() > SERIAL_BYTES_MAX) {
        problems.add(lines.at("serial"), format!("serial: at most {SERIAL_BYTES_MAX} bytes"));
    }
    if !lines.has_valid("vhost-user-blk") {
        draft.config.guests = None;
    }
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
