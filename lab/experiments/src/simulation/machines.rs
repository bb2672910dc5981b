//! Machine models that benchmarks run on: by name, from the built-in files in `machines/`, or from
//! a file.
//!
//! The error for an unknown name lists the known names and suggests the nearest. A machine's file
//! has all constants with their origins; the code adds no constant.
#![allow(missing_docs)] // Names of most fields and variants say what they are.

use std::path::Path;

use millrace_drives::nearest;
use millrace_simulator::{Cost, Model};
use serde::de::DeserializeOwned;

use crate::load::bench::BenchError;
use crate::page::{ORIGINS, Source};

const MACHINES: [(&str, &str); 10] = [
    ("i7-3930k", include_str!("../../machines/i7-3930k.toml")),
    ("x5690", include_str!("../../machines/x5690.toml")),
    ("x7560", include_str!("../../machines/x7560.toml")),
    ("e7-2870", include_str!("../../machines/e7-2870.toml")),
    ("epyc-2x64", include_str!("../../machines/epyc-2x64.toml")),
    ("e5-2620", include_str!("../../machines/e5-2620.toml")),
    ("e5-2620-nvme", include_str!("../../machines/e5-2620-nvme.toml")),
    ("miot", include_str!("../../machines/miot.toml")),
    ("miot-nvme", include_str!("../../machines/miot-nvme.toml")),
    ("p3-8way", include_str!("../../machines/p3-8way.toml")),
];

/// Reason why a machine model is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// No built-in machine has this name.
    #[error(
        "machine {name}: {hint}known machines are {}; or give a file that ends in .toml",
        names()
    )]
    Unknown { name: String, hint: String },
    #[error("machine file {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("machine {name}: {text}")]
    Invalid { name: String, text: String },
}

fn names() -> String {
    machine_names().collect::<Vec<_>>().join(", ")
}

/// Returns the names of the built-in machines: first the four of \[MQ\] table 1, last the machines
/// of \[FALCON\], \[MIOT\] and \[OLS\].
pub fn machine_names() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|(name, _)| *name)
}

/// Returns the machine called `name`. If `name` ends in `.toml`, reads the machine from this file.
///
/// # Errors
/// If the name is unknown, the file cannot be read, or the model is invalid.
pub fn machine(name: &str) -> Result<Model, MachineError> {
    if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
        let read = std::fs::read_to_string(name);
        let text = read.map_err(|source| MachineError::Read { path: name.into(), source })?;
        return parse(name, &text);
    }
    match MACHINES.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => parse(name, text),
        None => Err(MachineError::Unknown { name: name.into(), hint: hint(name) }),
    }
}

fn hint(name: &str) -> String {
    nearest(name, machine_names()).map_or_else(String::new, |near| format!("did you mean {near}? "))
}

fn parse(name: &str, text: &str) -> Result<Model, MachineError> {
    let invalid = |text: String| MachineError::Invalid { name: name.into(), text };
    let model: Model = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
    check_origins(text).map_err(invalid)?;
    model.validate().map_err(|error| invalid(error.to_string()))?;
    Ok(model)
}

/// Reads a built-in file of costs. Each cost, as listed by `entries`, must be 0 to 1e9 ns.
pub(crate) fn read_costs<T: DeserializeOwned>(
    (name, text): (&str, &str),
    entries: fn(&T) -> Vec<(&'static str, &Cost)>,
) -> Result<T, BenchError> {
    let wrong = |text: String| BenchError::Machine { text: format!("{name}: {text}") };
    let costs: T = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
    check_origins(text).map_err(wrong)?;
    match entries(&costs).into_iter().find(|(_, cost)| !(0.0..=1e9).contains(&cost.ns)) {
        Some((name, _)) => Err(wrong(format!("{name}: must be a time of 0 to 1e9 ns"))),
        None => Ok(costs),
    }
}

fn check_origins(text: &str) -> Result<(), String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    check_table(&table, "")
}

fn check_table(table: &toml::Table, place: &str) -> Result<(), String> {
    for (name, value) in table {
        let key = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        match value {
            toml::Value::Table(inner) => check_table(inner, &key)?,
            toml::Value::String(origin) if name == "origin" && Source::of(origin).is_none() => {
                let words = ORIGINS.map(|word| format!("{word}:")).join(", ");
                return Err(format!("{key} = {origin:?}: begin it with one of {words}"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_machine_is_a_valid_model_of_its_name() {
        let cpus: Vec<u32> = machine_names()
            .map(|name| {
                let model = machine(name).expect("checked here");
                assert_eq!(model.name, name);
                model.cpus()
            })
            .collect();
        assert_eq!(cpus, [6, 12, 32, 80, 128, 12, 12, 8, 8, 8]);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_and_all() {
        let text = machine("e7-2780").expect_err("the machine must not exist").to_string();
        assert!(
            text.contains("did you mean e7-2870? known machines are i7-3930k, x5690, x7560"),
            "{text}"
        );
        let text = machine("pdp-11").expect_err("the machine must not exist").to_string();
        assert!(!text.contains("did you mean"), "{text}");
        let text = machine("/nowhere/a.toml").expect_err("the file must not exist").to_string();
        assert!(text.starts_with("machine file /nowhere/a.toml: "), "{text}");
    }

    /// Each origin of a file, behind its key.
    fn origins(table: &toml::Table, place: &str, found: &mut Vec<(String, String)>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) => origins(inner, &format!("{place}.{name}"), found),
                toml::Value::String(origin) if name == "origin" => {
                    found.push((place.to_owned(), origin.clone()));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn origin_of_every_file_has_one_leading_word() {
        let others = [
            ("kvm-2015", include_str!("../../machines/kvm-2015.toml")),
            ("linux-2.4", include_str!("../../machines/linux-2.4.toml")),
            ("linux-4.4", include_str!("../../machines/linux-4.4.toml")),
        ];
        let mut marks: BTreeMap<String, (String, String)> = BTreeMap::new();
        for (name, text) in MACHINES.into_iter().chain(others) {
            let mut found = Vec::new();
            origins(&text.parse().expect("the text must be TOML"), "", &mut found);
            assert!(found.len() >= 5, "{name}");
            for (key, origin) in found {
                assert!(Source::of(&origin).is_some(), "{name}: {key}: {origin}");
                let (word, rest) = origin.split_once(':').expect("checked above");
                let place = format!("{name}{key}");
                let rest = rest.trim().to_owned();
                let mark = marks.entry(rest).or_insert((word.to_owned(), place.clone()));
                assert_eq!(mark.0, word, "{place} and {}: one origin, two marks", mark.1);
            }
        }
    }

    #[test]
    fn origin_without_known_word_is_refused_with_its_key_and_words() {
        let known = MACHINES[0].1;
        for (wrong, shown) in [("a guess: x", "a guess: x"), ("measured", "measured")] {
            let text = known.replacen(
                "input: one-core rate, 80 cycles: the null driver's queue_rq",
                wrong,
                1,
            );
            let error =
                parse("mine.toml", &text).expect_err("the input must be refused").to_string();
            let key = format!("machine mine.toml: work.driver.origin = \"{shown}\": ");
            assert!(error.starts_with(&key), "{error}");
            assert!(
                error.ends_with("published:, counted:, input:, assumption:, not used:"),
                "{error}"
            );
        }
        assert!(parse("mine.toml", known).is_ok());
    }

    #[test]
    fn what_was_partly_looked_up_and_partly_not_counts_as_cited() {
        let of = |origin| Source::of(origin).expect("the word must be known");
        assert_eq!(of("published: a table, looked up"), Source::Published);
        assert_eq!(of("published: a table, looked up, the rest from memory"), Source::Cited);
        assert_eq!(of("published: a table"), Source::Cited);
        assert_eq!(of("counted: lines"), Source::Published);
        assert_eq!((Source::of("not used"), Source::of("published: ")), (None, None));
        assert_eq!((of("not used: one"), of("input: x")), (Source::Unused, Source::Input));
    }
}
