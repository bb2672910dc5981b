//! `[[controller]]` sections: what drives hang on, and how the drives' names for it are resolved.
//!
//! Both steps of it, since it is little: `read` makes a section of values, called by sections.rs;
//! `controllers` finds each drive's by name, called by plan.rs. A controller is what the block
//! layer is told about tags; the `controller` in a `model:` spec is modelled hardware, and no
//! business of this file. Touches no file but what tells the machine's NUMA nodes.

use millrace_block::{ControllerConfig, Sharing};
use millrace_console::words::nearest;
use millrace_machine::{Machine, Native, NodeId};

use super::document::{Located, Section};
use super::problem::Problems;
use super::sections::RawConfig;
use super::words;

/// A `[[controller]]`.
pub struct RawController {
    /// Its name.
    pub name: Located<String>,
    /// Its settings.
    pub config: ControllerConfig,
    /// Where its node stands, or its name if it has none.
    pub node_line: usize,
}

/// Reads a section.
pub fn read(mut section: Section<'_>, problems: &mut Problems) -> Option<RawController> {
    let name = section.located_name(problems);
    let number = |text: &str| words::number(text, 1, ControllerConfig::TAGS_MAX);
    if !section.has("tags") {
        section.missing("it has no tags; add tags = 250, or as many as it has", problems);
    }
    let tags = section.word("tags", problems, number);
    let sharing = section.word("sharing", problems, words::setting);
    let node = section.word("node", problems, |text| words::number(text, 0, 65_535));
    section.finish(problems);
    let (name, tags) = (name?, tags?.value);
    let config = ControllerConfig {
        name: name.value.clone(),
        tags,
        sharing: sharing.map_or(Sharing::Controller, |sharing| sharing.value),
        node: node.as_ref().map(|node| NodeId(node.value)),
    };
    let node_line = node.map_or(name.line, |node| node.line);
    Some(RawController { name, config, node_line })
}

/// Checks the controllers against this machine, and the drives' names for them.
pub fn controllers(raw: &RawConfig, problems: &mut Problems) -> Vec<ControllerConfig> {
    let topology = Native::topology();
    for controller in &raw.controllers {
        if let Err(error) = controller.config.validate(&topology) {
            let text = format!("node: {error}; leave it out if it is not known");
            problems.add(controller.node_line, text);
        }
    }
    for (drive, lines) in &raw.drives {
        let Some(wanted) = &drive.spec.controller else { continue };
        let names = || raw.controllers.iter().map(|controller| controller.name.value.as_str());
        if !raw.lost.contains(wanted) && !names().any(|name| name == wanted) {
            let like = nearest(wanted, names());
            let like = if like.is_empty() { "; add [[controller]] with this name" } else { &like };
            let text = format!("controller: there is no controller \"{wanted}\"{like}");
            problems.add(lines.at("controller"), text);
        }
    }
    raw.controllers.iter().map(|controller| controller.config.clone()).collect()
}

/// Warns of controllers that no drive names.
pub fn warn_of_idle(file: &str, raw: &RawConfig, warnings: &mut Vec<String>) {
    for controller in &raw.controllers {
        let name = &controller.name;
        let is_it = |wanted: &String| *wanted == name.value;
        if !raw.drives.iter().any(|(drive, _)| drive.spec.controller.as_ref().is_some_and(is_it)) {
            let (name, line) = (&name.value, name.line);
            warnings.push(format!("{file}:{line}: controller \"{name}\" is named by no drive"));
        }
    }
}
