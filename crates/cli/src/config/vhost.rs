//! The keys of an `[[export]]` that serve it to virtual machines, and what they come to.
//!
//! Called by sections.rs for the keys and by plan.rs for how they go together. Which threads serve
//! the queues of a guest, and on which CPUs, is decided here. Without `cpus` no thread is pinned:
//! where the guest's own threads run is known to the kernel only, and a pinned thread that shares
//! its CPU with the guest that it serves cannot get out of the guest's way.

use std::path::{Path, PathBuf};

use millrace::{GuestConfig, Listen, SocketAccess, Threads, VhostSocket};
use millrace_exports::vhost::QUEUES_MAX;
use millrace_machine::{Machine, Native};

use super::document::{Located, Section};
use super::listener;
use super::problem::Problems;
use super::words;

/// Bytes of a serial number.
const SERIAL_BYTES_MAX: usize = 20;

/// The keys as they stand.
#[derive(Debug, Default)]
pub struct RawVhost {
    socket: Option<Located<PathBuf>>,
    role: Option<Located<Role>>,
    access: Option<Located<SocketAccess>>,
    queues: Option<Located<u32>>,
    threads: Option<Located<Threads>>,
    cpus: Option<Located<Vec<Located<u32>>>>,
    serial: Option<Located<String>>,
    poll_max_ns: Option<Located<u64>>,
    batch_wait_ns: Option<Located<u64>>,
    pin_memory: Option<Located<bool>>,
    event_idx: Option<Located<bool>>,
}

/// Whether the daemon or the frontend makes the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The daemon, to which the frontend connects.
    Server,
    /// The frontend, to which the daemon connects.
    Client,
}

impl RawVhost {
    /// Reads the keys of a section.
    pub fn read(section: &mut Section<'_>, base: &Path, problems: &mut Problems) -> RawVhost {
        let queues = |text: &str| words::number(text, 1, QUEUES_MAX.into());
        let cpu = |text: &str| words::number(text, 0, 65_535);
        let keys =
            listener::Keys { mode: "socket-mode", owner: "socket-owner", group: "socket-group" };
        RawVhost {
            socket: section.word("vhost-user-blk", problems, |text| socket(text, base)),
            role: section.word("role", problems, role),
            access: listener::access_at(section, &keys, problems),
            queues: section.word("queues", problems, queues),
            threads: section.word("threads", problems, threads),
            cpus: section.list("cpus", problems, cpu),
            serial: section.string("serial", problems),
            poll_max_ns: section.word("poll-max", problems, words::up_to_a_second),
            batch_wait_ns: section.word("batch-wait", problems, words::up_to_a_second),
            pin_memory: section.word("pin-memory", problems, words::yes_or_no),
            event_idx: section.word("event-idx", problems, words::yes_or_no),
        }
    }

    /// What the keys come to.
    pub fn check(&self, problems: &mut Problems) -> Option<Located<GuestConfig>> {
        let Some(socket) = &self.socket else {
            for (key, line) in self.lines() {
                let text = format!("{key}: only with vhost-user-blk = \"unix:PATH\"; add that");
                problems.add(line, text);
            }
            return None;
        };
        let listens = self.role.as_ref().is_none_or(|role| role.value == Role::Server);
        if let Some(access) = self.access.as_ref().filter(|_| !listens) {
            let text = "socket-mode, socket-owner, socket-group, allow-users, allow-groups: with \
                        role = \"client\" the socket is the frontend's; remove them";
            problems.add(access.line, text);
        }
        if let Some(serial) = self.serial.as_ref().filter(|s| s.value.len() > SERIAL_BYTES_MAX) {
            let text = format!("serial: at most {SERIAL_BYTES_MAX} bytes");
            problems.add(serial.line, text);
        }
        let path = socket.value.clone();
        let machine: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
        let cpus = match &self.cpus {
            Some(cpus) => {
                for cpu in cpus.value.iter().filter(|cpu| !machine.contains(&cpu.value)) {
                    let text = format!("cpus: this process may not use CPU {}", cpu.value);
                    problems.add(cpu.line, text);
                }
                cpus.value.iter().map(|cpu| cpu.value).collect()
            }
            None => Vec::new(),
        };
        let default = GuestConfig::new(match listens {
            true => VhostSocket::Listen(
                path,
                self.access.as_ref().map(|access| access.value.clone()).unwrap_or_default(),
            ),
            false => VhostSocket::Connect(path),
        });
        let or = |time: &Option<Located<u64>>, default| time.as_ref().map_or(default, |t| t.value);
        let guests = GuestConfig {
            queues: self.queues.as_ref().map_or(default.queues, |queues| queues.value as u16),
            threads: self.threads.as_ref().map_or(default.threads, |threads| threads.value),
            cpus,
            serial: self.serial.as_ref().map(|serial| serial.value.clone()),
            poll_max_ns: or(&self.poll_max_ns, default.poll_max_ns),
            batch_wait_ns: or(&self.batch_wait_ns, default.batch_wait_ns),
            event_idx: self.event_idx.as_ref().map_or(default.event_idx, |index| index.value),
            ..default
        };
        Some(Located { value: guests, line: socket.line })
    }

    /// Adds a warning of each key that has no effect.
    pub fn warn(&self, file: &str, warnings: &mut Vec<String>) {
        if let Some(pin) = &self.pin_memory {
            let line = pin.line;
            warnings.push(format!(
                "{file}:{line}: pin-memory has no effect any more, since a balloon or virtio-mem in \
                 the guest takes memory away that is pinned, and its data were corrupted; remove it"
            ));
        }
    }

    /// The keys that are there, and where.
    fn lines(&self) -> Vec<(&'static str, usize)> {
        let lines = [
            ("role", self.role.as_ref().map(|at| at.line)),
            ("socket-mode and who may connect", self.access.as_ref().map(|at| at.line)),
            ("queues", self.queues.as_ref().map(|at| at.line)),
            ("threads", self.threads.as_ref().map(|at| at.line)),
            ("cpus", self.cpus.as_ref().map(|at| at.line)),
            ("serial", self.serial.as_ref().map(|at| at.line)),
            ("poll-max", self.poll_max_ns.as_ref().map(|at| at.line)),
            ("batch-wait", self.batch_wait_ns.as_ref().map(|at| at.line)),
            ("pin-memory", self.pin_memory.as_ref().map(|at| at.line)),
            ("event-idx", self.event_idx.as_ref().map(|at| at.line)),
        ];
        lines.into_iter().filter_map(|(key, line)| Some((key, line?))).collect()
    }
}

fn socket(text: &str, base: &Path) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:").map(|_| words::address(text, base)) {
        Some(Ok(Listen::Unix(path))) => Ok(path),
        Some(Err(error)) => Err(error),
        _ => Err("write \"unix:PATH\"".to_owned()),
    }
}

fn role(text: &str) -> Result<Role, String> {
    words::choice(text, &[("server", Role::Server), ("client", Role::Client)])
}

fn threads(text: &str) -> Result<Threads, String> {
    match text {
        "shared" => Ok(Threads::Shared),
        "queue" => Ok(Threads::PerQueue),
        _ => words::number(text, 1, QUEUES_MAX.into())
            .map(|count| Threads::Count(count as u16))
            .map_err(|_| {
                format!("write \"shared\", \"queue\", or a number from 1 to {QUEUES_MAX}")
            }),
    }
}
