//! The command line: verbs and their arguments.
//!
//! Owns the list of verbs. Called by main; calls one function per verb. Wrong arguments, and errors
//! of a verb, end with exit status 2; a verb says 0 or 1 itself.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Command, CommandFactory, Parser, Subcommand};
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;

use crate::{logging, output_queue, verbs};

/// Exit status of an error.
const ERROR: u8 = 2;

/// A multi-queue block layer in user space: volumes of drives, served and measured.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, max_term_width = 100, arg_required_else_help = true)]
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
    /// Measure drives, designs and servers, in fio's words
    Bench(Box<verbs::bench::BenchArgs>),
    /// Repeat the experiments of four papers on simulated machines
    Paper(verbs::paper::Args),
    /// Look for bugs of the block layer by simulation
    Explore(verbs::explore::ExploreArgs),
    /// Record what drives do, and read recordings, as blktrace's tools do
    Trace(verbs::trace::Args),
    /// Send the I/Os of a recorded trace again, at their times or as fast as possible
    Replay(Box<verbs::replay::ReplayArgs>),
    /// Print completions for bash, zsh or fish
    Completions(verbs::completions::Args),
    /// Print or write manual pages
    Man(verbs::man::Args),
}

impl Verb {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Verb::Serve(args) => verbs::serve::run(&args),
            Verb::Stat(args) => verbs::stat::run(&args),
            Verb::Top(args) => verbs::top::run(&args),
            Verb::Locks(args) => verbs::locks::run(&args),
            Verb::Ctl(args) => verbs::ctl::run(&args),
            Verb::Bench(args) => verbs::bench::run(&args),
            Verb::Paper(args) => verbs::paper::run(&args),
            Verb::Explore(args) => verbs::explore::run(&args),
            Verb::Trace(args) => verbs::trace::run(&args),
            Verb::Replay(args) => verbs::replay::run(&args),
            Verb::Completions(args) => verbs::completions::run(&args, command()),
            Verb::Man(args) => verbs::man::run(&args, command()),
        }
    }
}

/// The definition of the command line.
pub fn command() -> Command {
    Cli::command()
}

/// Names of all verbs.
#[cfg(test)]
pub fn verbs() -> Vec<String> {
    command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect()
}

/// Runs the verb that the command line names.
pub fn run() -> ExitCode {
    let Cli { verb, logging } = Cli::parse();
    let run = || {
        survive_file_limit()?;
        logging::install(logging)?;
        verb.run()
    };
    let code = run().unwrap_or_else(|error| {
        verbs::complain(&error);
        ExitCode::from(ERROR)
    });
    output_queue::finish();
    if verbs::has_lost_output() { ExitCode::from(ERROR) } else { code }
}

/// Has a write behind the limit on the size of files (RLIMIT_FSIZE) fail with EFBIG like any other
/// error, where its signal would end the process, and with it the service of all clients.
fn survive_file_limit() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).context("cannot catch SIGXFSZ")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_number_that_is_none_is_answered_with_what_to_write() {
        for (arguments, said) in [
            ("explore --seeds x", "'x' for '--seeds <N>': write a whole number from 1\n"),
            ("explore --seeds 0", "'0' for '--seeds <N>': write a whole number from 1\n"),
            ("explore --seed -", "'-' for '--seed <S>': write a whole number from 0\n"),
            ("serve --threads 0", "write a whole number from 1 to 1024\n"),
            ("bench --jobs 1,0", "'0' for '--numjobs <N>': write a whole number from 1 to 4096\n"),
        ] {
            let words = std::iter::once("millrace").chain(arguments.split(' '));
            let error = Cli::try_parse_from(words).expect_err(arguments).to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    /// The longest line of a help text, in characters.
    fn longest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn no_line_of_a_help_text_is_longer_than_100() {
        fn check(command: &mut Command) {
            let name = command.get_name().to_owned();
            for help in [command.render_help(), command.render_long_help()] {
                let help = help.to_string();
                let line = help.lines().find(|line| line.chars().count() == longest(&help));
                assert!(longest(&help) <= 100, "{name}: {line:?}");
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = command().term_width(100);
        command.build();
        check(&mut command);
    }

    /// Words of a shell's command line, up to where another command or a file begins.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
        for letter in line.chars().chain([' ']) {
            match (letter, quote) {
                ('\'' | '"', None) => quote = Some(letter),
                (letter, Some(end)) if letter == end => quote = None,
                (' ', None) if word.is_empty() => {}
                (' ', None) => words.push(std::mem::take(&mut word)),
                (letter, _) => word.push(letter),
            }
        }
        let ends = ["|", "&&", ">", "#", ";"];
        let end = words.iter().position(|word| ends.contains(&word.as_str()));
        words.truncate(end.unwrap_or(words.len()));
        words
    }

    /// The commands of this program that a text shows on lines of their own, with two blanks or
    /// more before what explains them.
    fn shown(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for line in text.lines().filter(|line| line.starts_with("  ")) {
            for part in line.trim().split(" && ") {
                let part = part.split("  ").next().unwrap_or(part);
                let part = part
                    .strip_prefix("cargo run --release -- ")
                    .map_or_else(|| part.to_owned(), |arguments| format!("millrace {arguments}"));
                if part.starts_with("millrace ") {
                    found.push(part);
                }
            }
        }
        found
    }

    #[test]
    fn every_command_of_the_documents_and_examples_is_understood() {
        let mut texts = vec![
            include_str!("../../../README.md").to_owned(),
            include_str!("../../../docs/bench.md").to_owned(),
            include_str!("../../../docs/papers.md").to_owned(),
            include_str!("../../../docs/replay.md").to_owned(),
            include_str!("../../../docs/vm.md").to_owned(),
        ];
        fn helps(command: &Command, texts: &mut Vec<String>) {
            texts.extend(command.get_after_help().map(ToString::to_string));
            command.get_subcommands().for_each(|verb| helps(verb, texts));
        }
        helps(&command(), &mut texts);
        let commands: Vec<String> = texts.iter().flat_map(|text| shown(text)).collect();
        assert!(commands.len() > 60, "{commands:#?}");
        for command in commands {
            let parsed = Cli::try_parse_from(words(&command));
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
}
