//! The verb `completions`: what a shell completes after a program's name, from the definition of
//! its command line.
//!
//! Owns the list of shells. Called by each program's cli.rs with that definition, which has the
//! examples; writes to standard output.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate};

/// Shells that the completions are tested for.
// Documents of the variants would stand in the help, which has these words already.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum For {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that shall complete
    shell: For,
}

/// Prints the script.
///
/// # Errors
/// None; other verbs have some.
pub fn run(args: &Args, command: Command) -> Result<ExitCode> {
    crate::say(&script(args.shell, command));
    Ok(ExitCode::SUCCESS)
}

/// The text for a shell to read.
#[must_use]
pub fn script(shell: For, mut command: Command) -> String {
    let shell = match shell {
        For::Bash => Shell::Bash,
        For::Zsh => Shell::Zsh,
        For::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
