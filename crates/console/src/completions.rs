//! The verb `completions`: prints a shell's completion script, generated from a program's
//! command-line definition.
//!
//! This module owns the list of shells. The cli.rs of each program calls it with the program's
//! definition.

use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use clap::builder::{PossibleValuesParser, TypedValueParser};
pub use clap_complete::Shell;
use clap_complete::generate;

/// Returns a parser that accepts the shells whose completion scripts are tested.
fn shells() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|word| word.parse::<Shell>())
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to generate completions for
    #[arg(value_parser = shells())]
    shell: Shell,
}

/// Prints the completion script.
pub fn run(args: &Args, command: Command) -> Result<ExitCode> {
    crate::say(&script(args.shell, command));
    Ok(ExitCode::SUCCESS)
}

/// Returns the completion script for `shell`.
pub fn script(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
