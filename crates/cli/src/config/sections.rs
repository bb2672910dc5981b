//! First step: a TOML text to the library's settings, section by section.
//!
//! Each section has a file of its own with the table of its keys. A value is checked alone here, how
//! values go together in plan.rs. Goes on after a mistake, so that all are reported at once. Called
//! by `config::load`.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use millrace::{DriveConfig, DriveOptions, ServeConfig};

use super::document::{Document, Key, Section, parse};
use super::key_lines::KeyLines;
use super::plan::Lines;
use super::problem::Problems;
use super::server::{DAEMON, DaemonConfig, SERVER};
use super::volume::VolumeDraft;
use super::{controller, drive, export, group, listener, server, volume};

/// A whole file. Settings and lines have volumes and drives only when names are resolved.
#[derive(Default)]
pub struct Sections {
    /// Settings of the library.
    pub config: ServeConfig,
    /// Settings of the daemon itself.
    pub daemon: DaemonConfig,
    /// Lines of both.
    pub lines: Lines,
    /// `[[drive]]` sections.
    pub drives: Vec<(DriveConfig, KeyLines)>,
    /// `[[volume]]` sections.
    pub volumes: Vec<(VolumeDraft, KeyLines)>,
    /// Names of sections that are none that there may be, or could not be read: what names one of
    /// them is not wrong itself.
    pub lost: HashSet<String>,
    /// There is a section that may be meant for an export.
    pub has_exports: bool,
}

/// Reads the sections of a text; relative paths are in `base`.
pub fn read(text: &str, base: &Path, problems: &mut Problems) -> Sections {
    let mut all = Sections { has_exports: true, ..Sections::default() };
    let Some(table) = parse(text, problems) else { return all };
    let document = Document::new(text, base, sections_of);
    let mut root = Section::root(&document, &table);
    let controllers = root.sections("controller", problems);
    let groups = root.sections("group", problems);
    let drives = root.sections("drive", problems);
    let volumes = root.sections("volume", problems);
    let exports = root.sections("export", problems);
    let listeners = root.sections("listener", problems);
    let server = root.section("server", problems);
    all.lost.extend(root.names_of_unknown());
    root.finish(problems);
    all.has_exports = !exports.is_empty() || !problems.is_empty();
    let lost = &mut all.lost;
    (all.config.controllers, all.lines.controllers) =
        whole(controllers, lost, |one| controller::read(one, problems)).into_iter().unzip();
    (all.config.groups, all.lines.groups) =
        whole(groups, lost, |one| group::read(one, problems)).into_iter().unzip();
    all.volumes = whole(volumes, lost, |one| volume::read(one, problems));
    let named = |(volume, _): &'_ (VolumeDraft, _)| {
        let drives = volume.drives.iter();
        drives.map(|drive| (drive.clone(), volume.queues)).collect::<Vec<_>>()
    };
    let queues: HashMap<String, DriveOptions> = all.volumes.iter().rev().flat_map(named).collect();
    let queues_of = |drive: &str| queues.get(drive).copied().unwrap_or_default();
    all.drives = whole(drives, lost, |one| drive::read(one, queues_of, problems));
    (all.config.exports, all.lines.exports) =
        exports.into_iter().filter_map(|one| export::read(one, problems)).unzip();
    (all.config.listener_settings, all.lines.listeners) =
        listeners.into_iter().filter_map(|one| listener::read(one, problems)).unzip();
    if let Some(mut section) = server {
        section.read(&SERVER, &mut all.config.server, problems);
        section.read(&DAEMON, &mut all.daemon, problems);
        all.lines.server = section.finish(problems);
    }
    all
}

/// The sections that can be read; names of the others are lost.
fn whole<'a, T>(
    sections: Vec<Section<'a>>,
    lost: &mut HashSet<String>,
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

/// All sections, as errors call them.
const TITLES: [&str; 7] = [
    "[server]",
    "[[listener]]",
    "[[drive]]",
    "[[controller]]",
    "[[volume]]",
    "[[export]]",
    "[[group]]",
];

/// The keys of a section, and whether each has a list; without `name`, which most sections have.
pub fn keys(title: &str) -> Vec<(&'static str, bool)> {
    fn of<T>(keys: &[Key<T>]) -> impl Iterator<Item = (&'static str, bool)> {
        keys.iter().map(|key| (key.name, key.is_list))
    }
    match title {
        "[server]" => of(&server::SERVER).chain(of(&server::DAEMON)).collect(),
        "[[listener]]" => of(&listener::KEYS).collect(),
        "[[drive]]" => of(&drive::QUEUES).chain(of(&drive::KEYS)).collect(),
        "[[controller]]" => of(&controller::KEYS).collect(),
        "[[volume]]" => {
            of(&volume::LAYOUT).chain(of(&drive::QUEUES)).chain(of(&volume::KEYS)).collect()
        }
        "[[export]]" => of(&export::EXPORT).chain(of(&export::GUESTS)).collect(),
        "[[group]]" => group::keys().map(|key| (key, false)).collect(),
        _ => Vec::new(),
    }
}

/// Titles of the sections that have a key.
fn sections_of(wanted: &str) -> Vec<&'static str> {
    let has = |title: &&str| keys(title).iter().any(|(key, _)| *key == wanted);
    TITLES.into_iter().filter(has).collect()
}
