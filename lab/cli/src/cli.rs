//! The command line of the laboratory: verbs and their arguments.
//!
//! This module owns the list of verbs. Called by `main`; calls one function for each verb. Wrong
//! arguments, and errors of a verb, end with exit status 2; a verb itself returns 0 or 1.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use millrace_console::{completions, logging, man};

use crate::verbs;

const COMPLETIONS: &str = "\
Examples:
  millrace-lab completions bash > ~/.local/share/bash-completion/completions/millrace-lab
  millrace-lab completions zsh > \"${fpath[1]}/_millrace-lab\"
  millrace-lab completions fish > ~/.config/fish/completions/millrace-lab.fish";

const MAN: &str = "\
Examples:
  millrace-lab man | man -l -               the page of the program
  millrace-lab man ~/.local/share/man/man1  all pages: millrace-lab.1, millrace-lab-bench.1 and so on
  man millrace-lab-bench                    then read one";

/// Commands of the program `millrace`, which `millrace-lab` does not have. If a user types the last
/// word of such a command here, the error message shows the right command.
const DAEMON_VERBS: [&str; 8] =
    ["serve", "stat", "top", "locks", "ctl", "trace record", "trace show", "trace spans"];

/// The laboratory of millrace: measures, replays, and simulates its block layer.
#[derive(Debug, Parser)]
#[command(name = "millrace-lab", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    logging: logging::Args,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure drives, block layer designs and servers, with options named as in fio
    Bench(Box<verbs::bench::BenchArgs>),
    /// Repeat the experiments of four papers on simulated machines
    Paper(verbs::paper::Args),
    /// Search for bugs in the block layer by simulation
    Explore(verbs::explore::ExploreArgs),
    /// Plot traces of any format, or convert them
    Trace(verbs::trace::Args),
    /// Replay the I/Os of a recorded trace, at their original times or as fast as possible
    Replay(Box<verbs::replay::ReplayArgs>),
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
            Verb::Bench(args) => verbs::bench::run(&args),
            Verb::Paper(args) => verbs::paper::run(&args),
            Verb::Explore(args) => verbs::explore::run(&args),
            Verb::Trace(args) => verbs::trace::run(&args),
            Verb::Replay(args) => verbs::replay::run(&args),
            Verb::Completions(args) => completions::run(&args, command()),
            Verb::Man(args) => man::run(&args, command()),
        }
    }
}

pub fn command() -> Command {
    let command = Cli::command().mut_subcommand("bench", verbs::bench::with_short_help);
    millrace_console::wrap_after_help(command)
}

pub fn run() -> ExitCode {
    let parsed = command().try_get_matches();
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(Cli { verb, logging }) => millrace_console::run("millrace-lab", logging, || verb.run()),
        Err(error) => with_tip(error).exit(),
    }
}

fn with_tip(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(verb) =
            DAEMON_VERBS.iter().find(|verb| verb.rsplit(' ').next() == Some(word.as_str()))
    {
        let tip = format!(
            "`{verb}` is a command of millrace, not of millrace-lab: millrace {verb} --help"
        );
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

#[cfg(test)]
mod tests {
    use millrace_documents as documents;

    use super::*;

    /// Names of all verbs.
    fn verbs() -> Vec<String> {
        command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect()
    }

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_number_that_is_none_is_answered_with_what_to_write() {
        for (arguments, said) in [
            ("explore --seeds x", "'x' for '--seeds <N>': write a whole number of at least 1\n"),
            ("explore --seeds 0", "'0' for '--seeds <N>': write a whole number of at least 1\n"),
            ("explore --seed -", "'-' for '--seed <S>': write a whole number of at least 0\n"),
            ("bench --jobs 1,0", "'0' for '--numjobs <N>': write a whole number from 1 to 4096\n"),
        ] {
            let words = std::iter::once("millrace-lab").chain(arguments.split(' '));
            let error = Cli::try_parse_from(words).expect_err(arguments).to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_command_of_the_other_program_is_named() {
        for verb in DAEMON_VERBS {
            let words = std::iter::once("millrace-lab").chain(verb.split(' '));
            let error = with_tip(command().try_get_matches_from(words).unwrap_err()).to_string();
            let tip = format!(
                "tip: `{verb}` is a command of millrace, not of millrace-lab: millrace {verb} "
            );
            assert!(error.contains(&tip) && error.matches("tip:").count() == 1, "{error}");
        }
    }

    #[test]
    fn no_line_of_a_help_text_is_longer_than_100() {
        assert_eq!(documents::long_lines(&command()), Vec::<String>::new());
    }

    #[test]
    fn every_command_of_the_documents_and_examples_is_understood() {
        let mut texts = vec![
            include_str!("../../../README.md").to_owned(),
            include_str!("../../../docs/backends.md").to_owned(),
            include_str!("../../../docs/lab/bench.md").to_owned(),
            include_str!("../../../docs/cache.md").to_owned(),
            include_str!("../../../docs/lab/papers.md").to_owned(),
            include_str!("../../../docs/lab/replay.md").to_owned(),
        ];
        texts.extend(documents::examples(&Cli::command()));
        let cargo = "cargo run --release -p millrace-lab --";
        let commands = documents::shown(&texts, "millrace-lab", cargo);
        assert!(commands.len() > 40, "{commands:#?}");
        for command in commands {
            let parsed = Cli::try_parse_from(documents::words(&command));
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn every_shell_completes_every_verb() {
        for shell in [completions::Shell::Bash, completions::Shell::Zsh, completions::Shell::Fish] {
            let script = completions::script(shell, command());
            for verb in verbs() {
                assert!(script.contains(&verb), "{shell:?} lacks {verb}");
            }
            assert!(script.contains("rwmixread"), "{shell:?} lacks an option of bench");
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
            let page = page(&format!("millrace-lab-{verb}.1"));
            assert!(page.contains(&format!("millrace\\-lab\\-{verb}")), "{page}");
        }
        let bench = page("millrace-lab-bench.1");
        assert!(bench.contains("rwmixread") && bench.contains(".nf\nExamples:"), "{bench}");
        assert!(pages[0].0 == "millrace-lab.1" && pages[0].1.contains("SUBCOMMANDS"));
    }
}
