//! The verb `completions`: prints a shell's completion script, generated from a program's
//! command-line definition.
//!
//! This module owns the list of shells. The cli.rs of each program calls it with the program's
//! definition.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate};

/// Shells whose completion scripts are tested.
// The variants have no docs, because clap would print them in the help, next to the same words.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TargetShell {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to generate completions for
    shell: TargetShell,
}

/// Prints the completion script.
///
/// # Errors
/// Never fails, but returns a `Result`, as every verb does.
pub fn run(args: &Args, command: Command) -> Result<ExitCode> {
    crate::say(&script(args.shell, command));
    Ok(ExitCode::SUCCESS)
}

/// Returns the completion script for `shell`.
#[must_use]
pub fn script(shell: TargetShell, mut command: Command) -> String {
    let shell = match shell {
        TargetShell::Bash => Shell::Bash,
        TargetShell::Zsh => Shell::Zsh,
        TargetShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
