//! `cargo xtask`: the checks of this repository, run the same way by people and by CI.
//!
//! This file only selects the verb; each verb is one function in one file. Exit status: 0 if the
//! check found no problem, 1 if it found problems, 2 if the check could not be made.

#![allow(clippy::print_stdout, clippy::print_stderr)] // A tool for people: it talks to them.

mod api;
mod check;
mod comparison;
mod deb;
mod models;
mod mutants;
mod planted;
mod primitives;
mod seams;
mod syntax;
mod tidy;
mod times;
mod tree;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy | api [--write] | primitives | models | planted | seams \
                     | mutants [--short | ...] | programs [--help | ...] \
                     | schedulers [--help | ...] | matrix [--help | ...] | deb [PROGRAM] \
                     | times [build | test | change | test-all]... | check [--skip-tests]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let clean = match words.as_slice() {
        ["tidy"] => tidy::run(root),
        ["api"] => api::run(root, api::ListingMode::Check),
        ["api", "--write"] => api::run(root, api::ListingMode::Write),
        ["primitives"] => primitives::run(root),
        ["models"] => models::run(root),
        ["planted"] => planted::run(root),
        ["seams"] => seams::run(root),
        ["mutants", more @ ..] => mutants::run(root, more),
        [name @ ("programs" | "schedulers" | "matrix"), more @ ..] => {
            comparison::run(root, name, more)
        }
        ["times", more @ ..] => times::run(root, more),
        ["deb"] => deb::run(root, None),
        ["deb", binary] => deb::run(root, Some(binary)),
        ["check"] => check::run(root, check::TestSelection::Run),
        ["check", "--skip-tests"] => check::run(root, check::TestSelection::Skip),
        _ => Err(anyhow::anyhow!("{USAGE}")),
    };
    match clean {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
