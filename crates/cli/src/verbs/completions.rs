//! `millrace completions`: what a shell completes after `millrace`, from the definition of the
//! command line.
//!
//! Owns the list of shells. Called by cli.rs with that definition; writes to standard output.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate};

const EXAMPLES: &str = "\
Examples:
  millrace completions bash > ~/.local/share/bash-completion/completions/millrace
  millrace completions zsh > \"${fpath[1]}/_millrace\"
  millrace completions fish > ~/.config/fish/completions/millrace.fish

The Debian package installs all three.";

/// Shells that the completions are tested for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum For {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell that shall complete
    shell: For,
}

/// Prints the script.
///
/// # Errors
/// None; others verbs have some.
pub fn run(args: &Args, command: Command) -> Result<ExitCode> {
    super::say(&script(args.shell, command));
    Ok(ExitCode::SUCCESS)
}

/// What the shell is to read.
fn script(shell: For, mut command: Command) -> String {
    let shell = match shell {
        For::Bash => Shell::Bash,
        For::Zsh => Shell::Zsh,
        For::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut command, "millrace", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{command, verbs};

    #[test]
    fn every_shell_completes_every_verb() {
        for shell in [For::Bash, For::Zsh, For::Fish] {
            let script = script(shell, command());
            for verb in verbs() {
                assert!(script.contains(&verb), "{shell:?} lacks {verb}");
            }
            assert!(script.contains("rwmixread"), "{shell:?} lacks an option of bench");
        }
    }
}
