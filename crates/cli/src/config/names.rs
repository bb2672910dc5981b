//! `Names`: the sections of a kind by their names, for those that name them.
//!
//! Reports names that stand twice, and says what is wrong with a name that no section has. Made by
//! check.rs, which passes them to controller.rs and group/members.rs.

use std::collections::{HashMap, HashSet};

use millrace::DEFAULT_GROUP;
use millrace_console::words::nearest;

use super::key_lines::KeyLines;
use super::problem::Problems;

/// Names of the sections of a kind.
pub struct Names<'a> {
    /// The kind, such as `drive`.
    kind: &'static str,
    list: Vec<&'a str>,
    /// The number of the first section of each name, and its line.
    first: HashMap<&'a str, (usize, usize)>,
    /// Names of sections that could not be read: naming one of them is not wrong.
    lost: &'a HashSet<String>,
}

impl<'a> Names<'a> {
    /// The names of sections with their lines.
    pub fn new(
        kind: &'static str,
        sections: impl Iterator<Item = (&'a String, &'a KeyLines)>,
        lost: &'a HashSet<String>,
        problems: &mut Problems,
    ) -> Names<'a> {
        let (mut list, mut first) = (Vec::new(), HashMap::new());
        for (number, (name, lines)) in sections.enumerate() {
            let line = lines.at("name");
            list.push(name.as_str());
            let (other, first) = *first.entry(name.as_str()).or_insert((number, line));
            if other != number {
                let text = format!(
                    "name = \"{name}\": the {kind} of line {first} has this name; choose another"
                );
                problems.add(line, text);
            }
        }
        Names { kind, list, first, lost }
    }

    /// The number of the first section of a name; none if that section could not be read.
    ///
    /// # Errors
    /// There is no such section. The text names the nearest.
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
