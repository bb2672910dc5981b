//! `MachineTable`: the constants of a modelled machine, each with its origin.
//!
//! The verb `paper` fills the table from machine models and from papers' files of costs. The table
//! is shown at the end of a page.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use serde::{Deserialize, Serialize};

use super::Page;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    pub name: String,
    pub value: String,
    /// Text about the value's origin, which begins with one of [`ORIGINS`].
    pub origin: String,
}

/// Kind of a constant's origin, by the first word of the text about its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Counted in a kernel's code (`counted:`), or looked up in a publication (`published:`).
    Published,
    /// Cited from memory (`published:`).
    Cited,
    /// Given by the paper whose experiments are repeated (`input:`).
    Input,
    /// Not needed, because nothing depends on the constant (`not used:`).
    Unused,
    /// Assumed (`assumption:`), or of unknown origin.
    Assumption,
}

/// Words with which the text about an origin may begin, each followed by a colon.
pub const ORIGINS: [&str; 5] = ["published", "counted", "input", "assumption", "not used"];

impl Source {
    /// Returns the kind for a text such as `published: TEXT`. `None` for an unknown word, or if
    /// TEXT is empty.
    pub fn of(origin: &str) -> Option<Source> {
        // If a part of the value is cited from memory, the whole value counts as cited.
        let is_looked_up = origin.contains("looked up") && !origin.contains("from memory");
        let (word, what) = origin.split_once(':')?;
        if what.trim().is_empty() {
            return None;
        }
        match word.trim() {
            "counted" => Some(Source::Published),
            "published" if is_looked_up => Some(Source::Published),
            "published" => Some(Source::Cited),
            "input" => Some(Source::Input),
            "not used" => Some(Source::Unused),
            "assumption" => Some(Source::Assumption),
            _ => None,
        }
    }
}

impl Constant {
    /// Returns the kind of the constant's origin, which is an assumption if the text names none.
    pub fn source(&self) -> Source {
        Source::of(&self.origin).unwrap_or(Source::Assumption)
    }
}

fn sources(machines: &[MachineTable]) -> String {
    let all = || machines.iter().flat_map(|machine| &machine.constants);
    let count = |source| all().filter(|constant| constant.source() == source).count();
    let (published, cited) = (count(Source::Published), count(Source::Cited));
    let (input, assumed) = (count(Source::Input), count(Source::Assumption));
    let of = published + cited + input + assumed;
    let share = (100 * published).checked_div(of - input).unwrap_or(0);
    format!(
        "of {of}, {input} are inputs by the paper; of the others {published} ({share} %) were looked \
         up in a publication or counted in a kernel's code, {cited} are published and cited from \
         memory, {assumed} are assumptions"
    )
}

const SOURCES: &str = "constants of the machines";

impl Page {
    /// Adds tables of constants to the page, and a fact with the number of constants by origin.
    pub(crate) fn add_machines(&mut self, tables: impl IntoIterator<Item = MachineTable>) {
        self.machines.extend(tables);
        let said = sources(&self.machines);
        match self.facts.iter_mut().find(|(name, _)| name == SOURCES) {
            Some((_, text)) => *text = said,
            None => self.facts.push((SOURCES.to_owned(), said)),
        }
    }
}

/// A modelled machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MachineTable {
    pub name: String,
    pub about: String,
    /// Every constant of the model, with its origin.
    pub constants: Vec<Constant>,
}
