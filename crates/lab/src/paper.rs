//! What the repetitions of all papers share: named parts, rules that become checks, machine tables.
//!
//! A paper's module lists its parts, runs its points, draws its figures, and gives its checks as
//! `Rule`s over its own results. Nothing here knows a paper. Called by `systor13`, `atc17`
//! and `msst15`.

pub(crate) mod machine_table;
pub(crate) mod rule;

use millrace_machine::Model;

use crate::bench::BenchError;
use crate::sim::{machine, run_rows};

/// The type of a paper's parts, with their names, from a list of `/// What. Part "name",`.
macro_rules! parts {
    ($paper:literal: $($(#[$what:meta])+ $part:ident $name:literal,)+) => {
        /// A part of the experiment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Part {
            $($(#[$what])+ $part,)+
        }

        impl Part {
            /// All, with their names.
            pub const NAMES: &[(Part, &'static str)] = &[$((Part::$part, $name)),+];

            /// All parts.
            #[must_use]
            pub fn all() -> Vec<Part> {
                Part::NAMES.iter().map(|(part, _)| *part).collect()
            }
        }

        impl std::str::FromStr for Part {
            type Err = String;

            fn from_str(text: &str) -> Result<Part, String> {
                $crate::paper::part_named($paper, Part::NAMES, text)
            }
        }
    };
}
pub(crate) use parts;

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

/// What several parts want, each once.
pub(crate) fn distinct<P: PartialEq>(wanted: impl Iterator<Item = P>) -> Vec<P> {
    let mut all = Vec::new();
    for one in wanted {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Runs so many points side by side; `progress` is told the fraction done.
///
/// # Errors
/// What `run` says.
pub(crate) fn run_points<T: Send>(
    count: usize,
    run: impl Fn(usize) -> Result<T, BenchError> + Sync,
    mut progress: impl FnMut(f64) + Send,
) -> Result<Vec<T>, BenchError> {
    let mut ended = 0usize;
    run_rows(count, run, |_| {
        ended += 1;
        progress(ended as f64 / count as f64);
    })
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
