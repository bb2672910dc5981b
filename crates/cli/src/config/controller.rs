//! `[[controller]]`: a storage controller with one set of tags that several drives share.
//!
//! A different key, `controller` in a `model:` drive spec, describes simulated hardware and is not
//! handled here.

use millrace::DriveConfig;
use millrace_block::{ControllerConfig, Sharing};
use millrace_machine::{Machine, Native, NodeId};

use super::document::{KeyReader, Section, key};
use super::key_lines::KeyLines;
use super::names::SectionNames;
use super::problem::ConfigProblems;
use super::words;

pub const KEYS: &[KeyReader<ControllerConfig>] = &[
    key("tags", |to, at| {
        at.word(&mut to.tags, words::whole(1..=ControllerConfig::TAGS_MAX.into()))
    }),
    key("sharing", |to, at| at.word(&mut to.sharing, words::setting)),
    key("node", |to, at| at.some(&mut to.node, |text| words::whole(0..=65_535)(text).map(NodeId))),
];

pub fn read(mut section: Section<'_>) -> Option<(ControllerConfig, KeyLines)> {
    let name = section.name();
    let sharing = Sharing::Controller;
    let mut config = ControllerConfig { name: String::new(), tags: 1, sharing, node: None };
    section.read(KEYS, &mut config);
    if !section.lines.has("tags") {
        section.missing("tags is missing; add the controller's number of tags, as in tags = 250");
    }
    let lines = section.finish();
    config.name = name?;
    Some((config, lines))
}

pub fn check<'a>(
    controllers: impl Iterator<Item = (&'a ControllerConfig, &'a KeyLines)>,
    names: &SectionNames<'_>,
    drives: &[(DriveConfig, KeyLines)],
    problems: &mut ConfigProblems,
) {
    let topology = Native::topology();
    for (controller, lines) in controllers {
        if let Err(error) = controller.validate(&topology) {
            let text = format!("node: {error}; remove this key if the node is unknown");
            problems.add(lines.at("node"), text);
        }
    }
    for (drive, lines) in drives {
        let wanted = drive.spec.controller.as_deref();
        if let Some(Err(text)) = wanted.map(|wanted| names.find(wanted)) {
            problems.add(lines.at("controller"), format!("controller: {text}"));
        }
    }
}
