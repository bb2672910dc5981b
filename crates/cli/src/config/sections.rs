//! First step: a TOML text to sections with values of the right type.
//!
//! Owns the list of keys of every section. Called by `config::load`; calls document.rs and words.rs
//! and the parser of drive specs. What each value means alone is checked here, how values go
//! together in plan.rs. Goes on after a mistake, so that all are reported at once.

use std::collections::HashMap;
use std::path::Path;

use millrace::{DriveConfig, DriveOptions, Listen, ListenerConfig, ServerConfig};

use super::controller::{self, RawController};
use super::document::{Document, Located, Section, parse, printable};
use super::drive;
use super::group::{self, RawGroup, RawMembership};
use super::key_lines::KeyLines;
use super::listener;
use super::problem::Problems;
use super::server::{DAEMON, DaemonConfig, SERVER};
use super::vhost::RawVhost;
use super::volume::{self, VolumeDraft};
use super::words;

/// An `[[export]]`.
pub struct RawExport {
    /// The volume by name.
    pub volume: Located<String>,
    /// Where it is served.
    pub nbd: Option<Located<Vec<Located<Listen>>>>,
    /// How virtual machines get it.
    pub vhost: RawVhost,
    /// Its name, the volume's if not given.
    pub name: Option<Located<String>>,
    /// Nobody may write.
    pub read_only: bool,
    /// For people.
    pub description: Option<String>,
    /// Names in certificates of those that may use it.
    pub tls_allow: Option<Located<Vec<String>>>,
    /// The group of its clients.
    pub membership: RawMembership,
}

/// A whole file.
#[derive(Default)]
pub struct RawConfig {
    /// `[[controller]]` sections.
    pub controllers: Vec<RawController>,
    /// `[[group]]` sections.
    pub groups: Vec<RawGroup>,
    /// `[[drive]]` sections.
    pub drives: Vec<(DriveConfig, KeyLines)>,
    /// `[[volume]]` sections.
    pub volumes: Vec<(VolumeDraft, KeyLines)>,
    /// `[[export]]` sections.
    pub exports: Vec<RawExport>,
    /// `[[listener]]` sections.
    pub listeners: Vec<(ListenerConfig, KeyLines)>,
    /// The settings of `[server]` that are the library's.
    pub server: ServerConfig,
    /// Those that are the daemon's.
    pub daemon: DaemonConfig,
    /// Lines of `[server]`.
    pub server_lines: KeyLines,
    /// Names of sections that are none that there may be, or could not be read: what names one of
    /// them is not wrong itself.
    pub lost: Vec<String>,
    /// There is a section that may be meant for an export.
    pub has_exports: bool,
}

/// Reads the sections of a text; relative paths are in `base`.
pub fn read(text: &str, base: &Path, problems: &mut Problems) -> RawConfig {
    let Some(table) = parse(text, problems) else {
        return RawConfig { has_exports: true, ..RawConfig::default() };
    };
    let document = Document::new(text, base);
    let mut root = Section::root(&document, &table);
    let controllers = root.sections("controller", problems);
    let groups = root.sections("group", problems);
    let drives = root.sections("drive", problems);
    let volumes = root.sections("volume", problems);
    let exports = root.sections("export", problems);
    let listeners = root.sections("listener", problems);
    let server = root.section("server", problems);
    let mut lost = root.names_of_unknown();
    root.finish(problems);
    let has_exports = !exports.is_empty() || !problems.is_empty();
    let (mut config, mut daemon) = (ServerConfig::default(), DaemonConfig::default());
    let server_lines = server.map(|mut section| {
        section.read(&SERVER, &mut config, problems);
        section.read(&DAEMON, &mut daemon, problems);
        section.finish(problems)
    });
    let volumes = whole(volumes, &mut lost, |s| volume::read(s, problems));
    let queues: HashMap<&str, DriveOptions> = volumes
        .iter()
        .rev()
        .flat_map(|(one, _)| one.drives.iter().map(|d| (d.as_str(), one.queues)))
        .collect();
    let queues_of = |drive: &str| queues.get(drive).copied().unwrap_or_default();
    let drives = whole(drives, &mut lost, |s| drive::read(s, queues_of, problems));
    RawConfig {
        controllers: whole(controllers, &mut lost, |s| controller::read(s, problems)),
        groups: whole(groups, &mut lost, |s| group::read(s, problems)),
        drives,
        volumes,
        exports: exports.into_iter().filter_map(|s| export(s, base, problems)).collect(),
        listeners: listeners.into_iter().filter_map(|s| listener::read(s, problems)).collect(),
        server: config,
        daemon,
        server_lines: server_lines.unwrap_or_default(),
        lost,
        has_exports,
    }
}

/// The sections that can be read; names of the others are lost.
fn whole<'a, T>(
    sections: Vec<Section<'a>>,
    lost: &mut Vec<String>,
    mut read: impl FnMut(Section<'a>) -> Option<T>,
) -> Vec<T> {
    let mut list = Vec::new();
    for section in sections {
        let name = section.name();
        match read(section) {
            Some(one) => list.push(one),
            // Whoever names it may have written the name without what is wrong in it.
            None => lost.extend(name.into_iter().flat_map(|name| {
                let plain = name.replace(char::is_control, "");
                [name, plain]
            })),
        }
    }
    list
}

fn export(mut section: Section<'_>, base: &Path, problems: &mut Problems) -> Option<RawExport> {
    let volume = section.string("volume", problems);
    let before = problems.count();
    let nbd = section.list("nbd", problems, |text| words::address(text, base));
    if let Some(nbd) = nbd.as_ref().filter(|nbd| nbd.value.is_empty()) {
        // Not where what it holds is wrong, and was said to be.
        if problems.count() == before {
            problems.add(nbd.line, "nbd: the list is empty; add \"unix:PATH\"");
        }
    }
    let name = section.string("name", problems).map(|name| printable(name, problems));
    let read_only = section.flag("read-only", problems).unwrap_or(false);
    let description = section.string("description", problems).map(|text| text.value);
    if volume.is_none() {
        section.missing("it names no volume; add volume = \"...\"", problems);
    }
    let membership = RawMembership::read(&mut section, problems);
    let tls_allow = section.list("tls-allow", problems, |text| Ok(text.to_owned()));
    let tls_allow = tls_allow.map(|list| Located {
        value: list.value.into_iter().map(|one| one.value).collect(),
        line: list.line,
    });
    let for_machines = section.has("vhost-user-blk");
    let vhost = RawVhost::read(&mut section, base, problems);
    if nbd.is_none() && !for_machines {
        let text = "it has no listener; add nbd = \"unix:PATH\", or vhost-user-blk for machines";
        section.missing(text, problems);
    }
    section.finish(problems);
    if name == Some(None) {
        // Not the volume's name instead: that may be another export's.
        return None;
    }
    let name = name.flatten();
    Some(RawExport {
        volume: volume?,
        nbd,
        vhost,
        name,
        read_only,
        description,
        tls_allow,
        membership,
    })
}
