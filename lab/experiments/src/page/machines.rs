//! `MachineTable`: the constants of a modelled machine, each with its origin.
//!
//! The verb `paper` fills the table from the models of machines, and from files with the costs of a
//! kernel or hypervisor. The table is at the end of a paper's result page.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use serde::{Deserialize, Serialize};

use super::Page;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    pub name: String,
    pub value: String,
    /// Origin of the constant, as text that begins with one of [`ORIGINS`].
    pub origin: String,
}

/// Origin of a constant in a machine model. The first word of [`Constant::origin`] names the
/// origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The constant was counted in a kernel's code (`counted:`), or looked up in a publication
    /// (`published:`).
    Published,
    /// The constant is from a publication, but was cited from memory and not looked up
    /// (`published:`).
    Cited,
    /// The constant is an input of the experiments, as stated in the paper that the experiments
    /// reproduce (`input:`).
    Input,
    /// The constant is in the machine model, but no result depends on it (`not used:`).
    Unused,
    /// The constant was assumed (`assumption:`), or its origin is unknown.
    Assumption,
}

/// Words with which the text about a constant's origin may begin, each followed by a colon.
pub const ORIGINS: [&str; 5] = ["published", "counted", "input", "assumption", "not used"];

impl Source {
    /// Parses the text of [`Constant::origin`], such as `published: TEXT`. Returns `None` if the
    /// first word is unknown, or if TEXT is empty.
    pub fn of(origin: &str) -> Option<Source> {
        // The words `looked up` say that the value was found in the publication. With the words
        // `from memory`, at least a part of the value was not looked up, and may be wrong. Such a
        // constant is not `Published`, but `Cited`.
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
    /// Returns the origin that the constant's text names. If the text has an unknown first word,
    /// the origin is [`Source::Assumption`].
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
    /// Adds tables of machines' constants to the page. Also adds or updates the line that counts
    /// the constants by their origin ([`Source`]), without the constants that are not used.
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
