//! What the repetitions of all papers share: named parts, rules that become checks, machine tables.
//!
//! A paper's module lists its parts, runs its points, draws its figures, and gives its checks as
//! `Rule`s over its own results. Nothing here knows a paper. Called by `systor13` and `atc17`.

pub(crate) mod machine_table;
pub(crate) mod rule;

use millrace_machine::Model;

use crate::bench::BenchError;
use crate::sim::machine;

/// The part of this name.
pub(crate) fn part_named<P: Copy>(
    paper: &str,
    names: &[(P, &'static str)],
    text: &str,
) -> Result<P, String> {
    let found = names.iter().find(|(_, name)| *name == text);
    let all = || names.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    found.map(|(part, _)| *part).ok_or_else(|| format!("{paper}:{text}: one of {}", all()))
}

/// The command that runs these parts again.
pub(crate) fn command<P: PartialEq>(
    paper: &str,
    names: &[(P, &'static str)],
    parts: &[P],
    seed: u64,
) -> String {
    let chosen: Vec<&str> =
        names.iter().filter(|(part, _)| parts.contains(part)).map(|(_, name)| *name).collect();
    match chosen.len() == names.len() {
        true => format!("millrace paper {paper} --seed {seed}"),
        false => format!("millrace paper {paper}:{} --seed {seed}", chosen.join(",")),
    }
}

/// The models of these machines.
///
/// # Errors
/// If a file is wrong.
pub(crate) fn models<'a>(
    names: impl Iterator<Item = &'a &'static str>,
) -> Result<Vec<Model>, BenchError> {
    let load = |name: &&'static str| {
        machine(name).map_err(|error| BenchError::Machine { text: error.to_string() })
    };
    names.map(load).collect()
}
