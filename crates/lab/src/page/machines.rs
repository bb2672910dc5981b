//! `MachineTable`: the constants of a modelled machine, each with where it comes from.
//!
//! Filled by `paper` out of models and by papers' own files of costs; shown at the end of a page.

use serde::Serialize;

/// One constant of a modelled machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// `assumption:`, or anything else.
    Assumption,
}

impl Constant {
    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> Source {
        match self.origin.split(':').next().map(str::trim) {
            Some("counted") => Source::Published,
            Some("published") if self.origin.contains("looked up") => Source::Published,
            Some("published") => Source::Cited,
            Some("input") => Source::Input,
            Some("not used") => Source::Unused,
            _ => Source::Assumption,
        }
    }
}

/// How many constants of some machines come from where, in a sentence.
pub fn sources(machines: &[MachineTable]) -> String {
    let all = || machines.iter().flat_map(|machine| &machine.constants);
    let count = |source| all().filter(|constant| constant.source() == source).count();
    let (published, cited) = (count(Source::Published), count(Source::Cited));
    let (input, assumed) = (count(Source::Input), count(Source::Assumption));
    let of = published + cited + input + assumed;
    format!(
        "of {of}, {published} were looked up in a publication or counted in a kernel's code, {cited} \
         are published and cited from memory, {input} are inputs by the paper, {assumed} are \
         assumptions"
    )
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
