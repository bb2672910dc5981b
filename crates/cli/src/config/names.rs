//! `SectionNames`: looks up the sections of a kind by name.
//!
//! This module reports duplicate names, and references to names that no section has. check.rs
//! creates the tables and passes them to controller.rs and group/members.rs.

use std::collections::{HashMap, HashSet};

use millrace::DEFAULT_GROUP;
use millrace_console::words::nearest;

use super::key_lines::KeyLines;
use super::problem::ConfigProblems;

pub struct SectionNames<'a> {
    kind: &'static str,
    list: Vec<&'a str>,
    /// Index and line of the first section of each name.
    first: HashMap<&'a str, (usize, usize)>,
    lost: &'a HashSet<String>,
}

impl<'a> SectionNames<'a> {
    pub fn new(
        kind: &'static str,
        sections: impl Iterator<Item = (&'a String, &'a KeyLines)>,
        lost: &'a HashSet<String>,
        problems: &mut ConfigProblems,
    ) -> SectionNames<'a> {
        let (mut list, mut first) = (Vec::new(), HashMap::new());
        for (number, (name, lines)) in sections.enumerate() {
            let line = lines.at("name");
            list.push(name.as_str());
            let (other, first) = *first.entry(name.as_str()).or_insert((number, line));
            if other != number {
                let text = format!(
                    "name = \"{name}\": the {kind} at line {first} has this name already; choose another"
                );
                problems.add(line, text);
            }
        }
        SectionNames { kind, list, first, lost }
    }

    /// Returns the index of the section with the name `wanted`, or `None` if that section could not
    /// be read. The error for an unknown name suggests the most similar name.
    pub fn find(&self, wanted: &str) -> Result<Option<usize>, String> {
        if let Some((number, _)) = self.first.get(wanted) {
            return Ok(Some(*number));
        }
        if self.lost.contains(wanted) {
            return Ok(None);
        }
        let kind = self.kind;
        let built_in = (kind == "group").then_some(DEFAULT_GROUP);
        let like = nearest(wanted, self.list.iter().copied().chain(built_in));
        let add = format!("; add [[{kind}]] with this name");
        let remedy = if like.is_empty() { &add } else { &like };
        Err(format!("there is no {kind} \"{wanted}\"{remedy}"))
    }
}
