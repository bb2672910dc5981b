//! `MachineTable`: the constants of a modelled machine, each with where it comes from.
//!
//! Filled by `paper` out of models and by papers' own files of costs; shown at the end of a page.

use serde::{Deserialize, Serialize};

use super::Page;

/// One constant of a modelled machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// What it is.
    pub name: String,
    /// Its value with the unit.
    pub value: String,
    /// Where it comes from.
    pub origin: String,
}

/// Where a constant comes from, by the word that its origin begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `counted:` in a kernel's code, or `published:` and looked up.
    Published,
    /// `published:`, but cited from memory.
    Cited,
    /// `input:`: given by the paper that is repeated.
    Input,
    /// `not used:`: nothing depends on it.
    Unused,
    /// `assumption:`, or nothing said.
    Assumption,
}

/// The words that an origin may begin with, before a colon.
pub const ORIGINS: [&str; 5] = ["published", "counted", "input", "assumption", "not used"];

impl Source {
    /// By an origin's first words; none if they are not of [`ORIGINS`], or nothing is behind them.
    #[must_use]
    pub fn of(origin: &str) -> Option<Source> {
        // Part of it from memory is all of it from memory.
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
    /// Where it comes from; an assumption if it does not say.
    #[must_use]
    pub fn source(&self) -> Source {
        Source::of(&self.origin).unwrap_or(Source::Assumption)
    }
}

/// How many constants of some machines come from where, in a sentence.
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

/// The fact of a page that says it.
const SOURCES: &str = "constants of the machines";

impl Page {
    /// Takes in tables of constants, and counts where those of all come from.
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
    /// Its name.
    pub name: String,
    /// What it is.
    pub about: String,
    /// Every constant that was given to the model.
    pub constants: Vec<Constant>,
}
