//! The command line of `millrace`: verbs and their arguments.
//!
//! This module owns the list of verbs, and calls one function for each. `main` calls it. Exit
//! status 2 means wrong arguments or a verb's error; a verb itself returns 0 or 1.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use millrace_console::{ERROR, complain, completions, logging, man, wrap_after_help};

use crate::{former_verbs, verbs};

const COMPLETIONS: &str = "\
Examples:
  echo 'source <(millrace completions bash)' >> ~/.bashrc
  millrace completions zsh > \"${fpath[1]}/_millrace\"
  millrace completions fish > ~/.config/fish/completions/millrace.fish

The Debian package installs all three.";

const MAN: &str = "\
Examples:
  millrace man | man -l -               the page of the program
  millrace man ~/.local/share/man/man1  all pages: millrace.1, millrace-serve.1 and so on
  man millrace-serve                    then read one

The Debian package installs all of them.";

/// A multi-queue block layer in user space: serve volumes of drives, and watch them.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "For benchmarks, trace replay and bug search, see millrace-lab --help.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    logging: logging::Args,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve files, devices or volumes over NBD and to virtual machines
    Serve(verbs::serve::Args),
    /// Print what a running daemon does, in iostat's columns
    Stat(verbs::stat::Args),
    /// Watch a running daemon live on a terminal
    Top(verbs::top::Args),
    /// Print how long a running daemon's threads wait for its locks
    Locks(verbs::locks::Args),
    /// Change a running daemon: schedulers, groups, sizes; say why it is slow
    Ctl(verbs::ctl::Args),
    /// Record what drives do, and read recordings, as blktrace's tools do
    Trace(verbs::trace::Args),
    /// Print completions for bash, zsh or fish
    #[command(after_help = COMPLETIONS)]
    Completions(completions::Args),
    /// Print or write manual pages
    #[command(after_help = MAN)]
    Man(man::Args),
}

impl Verb {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Verb::Serve(args) => verbs::serve::run(&args),
            Verb::Stat(args) => verbs::stat::run(&args),
            Verb::Top(args) => verbs::top::run(&args),
            Verb::Locks(args) => verbs::locks::run(&args),
            Verb::Ctl(args) => verbs::ctl::run(&args),
            Verb::Trace(args) => verbs::trace::run(&args),
            Verb::Completions(args) => completions::run(&args, command()),
            Verb::Man(args) => man::run(&args, command()),
        }
    }
}

pub fn command() -> Command {
    wrap_after_help(Cli::command())
}

#[cfg(test)]
pub fn verbs() -> Vec<String> {
    command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect()
}

pub fn run() -> ExitCode {
    let parsed = command().try_get_matches();
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(Cli { verb, logging }) => millrace_console::run("millrace", logging, || verb.run()),
        Err(error) => refuse(&error),
    }
}

/// Reports a wrong command line. For a verb that has moved to millrace-lab, prints a hint and
/// returns the exit status. For any other error, clap prints the error and ends the process.
fn refuse(error: &clap::Error) -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    match former_verbs::answer(error, &words.collect::<Vec<_>>()) {
        Some(text) => {
            complain(&anyhow!(text));
            ExitCode::from(ERROR)
        }
        None => error.exit(),
    }
}

#[cfg(test)]
mod tests {
    use millrace_documents as documents;

    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_number_that_is_none_is_answered_with_what_to_write() {
        for (arguments, said) in [
            ("serve --threads 0", "write a whole number from 1 to 1024\n"),
            ("trace record --tenant x", "'x' for '--tenant <N>': write a whole number from 0 to"),
        ] {
            let words = std::iter::once("millrace").chain(arguments.split(' '));
            let error = Cli::try_parse_from(words).expect_err(arguments).to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn no_line_of_a_help_text_is_longer_than_100() {
        assert_eq!(documents::long_lines(&command()), Vec::<String>::new());
    }

    #[test]
    fn examples_and_notes_of_a_help_text_fit_80_columns() {
        fn texts(command: &Command) -> Vec<String> {
            let own = [command.get_after_help(), command.get_after_long_help()];
            let own = own.into_iter().flatten().map(ToString::to_string);
            own.chain(command.get_subcommands().flat_map(texts)).collect()
        }
        let texts = texts(&command());
        let long = texts.iter().flat_map(|text| text.lines()).filter(|line| line.len() > 80);
        assert_eq!(long.collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn every_command_of_the_documents_and_examples_is_understood() {
        let mut texts = vec![
            include_str!("../../../README.md").to_owned(),
            include_str!("../../../docs/backends.md").to_owned(),
            include_str!("../../../docs/cache.md").to_owned(),
            include_str!("../../../docs/control.md").to_owned(),
            include_str!("../../../docs/vm.md").to_owned(),
        ];
        texts.extend(documents::examples(&Cli::command()));
        let commands = documents::shown(&texts, "millrace", "cargo run --release --");
        assert!(commands.len() > 40, "{commands:#?}");
        for command in commands {
            let parsed = Cli::try_parse_from(documents::words(&command));
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn serve_takes_a_file_or_a_data_folder_but_not_both() {
        assert!(Cli::try_parse_from(["millrace", "serve", "a.toml", "--threads", "2"]).is_ok());
        assert!(Cli::try_parse_from(["millrace", "serve", "--data-dir", "x"]).is_ok());
        assert!(Cli::try_parse_from(["millrace", "serve", "a.toml", "--data-dir", "x"]).is_err());
        assert!(Cli::try_parse_from(["millrace", "serve", "--backend", "kqueue"]).is_err());
        assert!(Cli::try_parse_from(["millrace", "serve", "a.img", "b.img"]).is_ok());
        assert!(Cli::try_parse_from(["millrace", "serve", "-"]).is_ok());
        assert!(Cli::try_parse_from(["millrace", "serve", "a.img", "--config", "b"]).is_err());
    }

    #[test]
    fn every_shell_completes_every_verb() {
        for shell in [completions::Shell::Bash, completions::Shell::Zsh, completions::Shell::Fish] {
            let script = completions::script(shell, command());
            for verb in verbs() {
                assert!(script.contains(&verb), "{shell:?} lacks {verb}");
            }
            assert!(script.contains("data-dir"), "{shell:?} lacks an option of serve");
        }
    }

    #[test]
    fn every_verb_has_a_page_with_its_options_and_examples() {
        let pages = man::pages(command()).unwrap();
        let page = |name: &str| {
            let found = pages.iter().find(|(file, _)| file == name);
            &found.unwrap_or_else(|| panic!("no page {name}")).1
        };
        for verb in verbs() {
            let page = page(&format!("millrace-{verb}.1"));
            assert!(page.contains(&format!("millrace\\-{verb}")), "{page}");
        }
        assert!(page("millrace-trace-record.1").contains("duration"));
        let serve = page("millrace-serve.1");
        assert!(serve.contains("data\\-dir") && serve.contains(".nf\nExamples:"), "{serve}");
        assert!(pages[0].0 == "millrace.1" && pages[0].1.contains("SUBCOMMANDS"), "{}", pages[0].1);
    }
}
