//! First step of loading a configuration: parses a TOML text into the library's settings.
//!
//! This step checks each value alone; check.rs checks the rules between them. Reading continues
//! after a problem, so that all problems are reported at once.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use millrace::{DriveConfig, ServeConfig};

use super::document::{KeyReader, Section, TomlDocument, parse};
use super::key_lines::KeyLines;
use super::line_index::LineIndex;
use super::plan::PlanLines;
use super::problem::ConfigProblems;
use super::server::{DAEMON, DaemonConfig, SERVER};
use super::volume::VolumeDraft;
use super::{controller, drive, export, group, listener, server, volume};

/// Sections of a configuration. `config.volumes` stays empty until names are resolved, because a
/// volume needs its drives.
#[derive(Default)]
pub struct ConfigSections {
    pub config: ServeConfig,
    pub daemon: DaemonConfig,
    pub lines: PlanLines,
    pub drives: Vec<(DriveConfig, KeyLines)>,
    pub volumes: Vec<(VolumeDraft, KeyLines)>,
    pub lost: HashSet<String>,
    /// True if the configuration has `[[export]]` sections. Also true after an error, such as a
    /// syntax error, that may have prevented the reader from finding these sections.
    pub has_exports: bool,
}

pub fn read(
    text: &str,
    base: &Path,
    mut problems: ConfigProblems,
) -> (ConfigSections, ConfigProblems) {
    let mut all = ConfigSections { has_exports: true, ..ConfigSections::default() };
    let Some(table) = parse(text, &mut problems) else { return (all, problems) };
    let (lines, problems, lost) = (LineIndex::new(text), problems.into(), RefCell::default());
    let document = TomlDocument { lines, base, sections_of, problems, lost };
    let mut root = Section::root(&document, table.get_ref());
    let controllers = root.sections("controller").into_iter();
    let groups = root.sections("group").into_iter();
    let drives = root.sections("drive").into_iter();
    let volumes = root.sections("volume").into_iter();
    let exports = root.sections("export").into_iter();
    let listeners = root.sections("listener").into_iter();
    let server = root.section("server");
    root.finish_root();
    all.has_exports = exports.len() > 0 || !document.problems.borrow().is_empty();
    let (config, lines) = (&mut all.config, &mut all.lines);
    (config.controllers, lines.controllers) = controllers.filter_map(controller::read).unzip();
    (config.groups, lines.groups) = groups.filter_map(group::read).unzip();
    (config.exports, lines.exports) = exports.filter_map(export::read).unzip();
    (config.listener_settings, lines.listeners) = listeners.filter_map(listener::read).unzip();
    if let Some(mut section) = server {
        section.read(SERVER, &mut config.server);
        section.read(DAEMON, &mut all.daemon);
        lines.server = section.finish();
    }
    all.volumes = volumes.filter_map(volume::read).collect();
    let mut queues = HashMap::new();
    for (volume, _) in all.volumes.iter().rev() {
        queues.extend(volume.drives.iter().map(|drive| (drive.as_str(), volume.queues)));
    }
    let queues_of = |drive: &str| queues.get(drive).copied().unwrap_or_default();
    all.drives = drives.filter_map(|section| drive::read(section, queues_of)).collect();
    all.lost = document.lost.into_inner();
    (all, document.problems.into_inner())
}

type KeyList = fn() -> Vec<(&'static str, bool)>;

/// Titles and keys of all sections. `name`, which most sections have, is left out.
const SECTIONS: [(&str, KeyList); 7] = [
    ("[server]", || names(server::SERVER).chain(names(server::DAEMON)).collect()),
    ("[[listener]]", || names(listener::KEYS).collect()),
    ("[[drive]]", || names(drive::QUEUES).chain(names(drive::KEYS)).collect()),
    ("[[controller]]", || names(controller::KEYS).collect()),
    ("[[volume]]", || {
        names(volume::LAYOUT).chain(names(drive::QUEUES)).chain(names(volume::KEYS)).collect()
    }),
    ("[[export]]", || names(export::EXPORT).chain(names(export::GUESTS)).collect()),
    ("[[group]]", || group::keys().map(|key| (key, false)).collect()),
];

fn names<T>(keys: &[KeyReader<T>]) -> impl Iterator<Item = (&'static str, bool)> {
    keys.iter().map(|key| (key.name, key.is_list))
}

pub fn is_list(title: &str, key: &str) -> bool {
    SECTIONS.iter().any(|(known, keys)| *known == title && keys().contains(&(key, true)))
}

fn sections_of(key: &str) -> Vec<&'static str> {
    let has = |(_, keys): &&(_, KeyList)| keys().iter().any(|(known, _)| *known == key);
    SECTIONS.iter().filter(has).map(|(title, _)| *title).collect()
}
