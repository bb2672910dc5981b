//! The command line: verbs and their arguments.
//!
//! Owns the list of verbs. Called by main; calls one function per verb. Wrong arguments, and errors
//! of a verb, end with exit status 2; a verb says 0 or 1 itself.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::verbs;

/// Exit status of an error.
const ERROR: u8 = 2;

/// A multi-queue block layer in user space: volumes of drives, served and measured.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve volumes over NBD until SIGTERM or SIGINT
    Serve(verbs::serve::Args),
    /// Show what a running daemon does, in iostat's columns
    Stat(verbs::stat::Args),
    /// Show it on a terminal, live
    Top(verbs::top::Args),
    /// Show what a running daemon's locks do: who waits for whom, and for how long
    Locks(verbs::locks::Args),
    /// Change what a running daemon serves: volumes whose drives have grown
    Ctl(verbs::ctl::Args),
    /// Measure drives, stacks and servers, in fio's words
    Bench(Box<verbs::bench::BenchArgs>),
    /// Repeat a paper's experiments on simulated machines and compare
    Paper(verbs::paper::Args),
    /// Look for bugs of the block layer by deterministic simulation
    Explore(verbs::explore::ExploreArgs),
    /// Show blktrace files, and where I/Os spent their time
    Trace(verbs::trace::Args),
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
        }
    }
}

/// Runs the verb that the command line names.
pub fn run() -> ExitCode {
    Cli::parse().verb.run().unwrap_or_else(|error| {
        verbs::complain(&error);
        ExitCode::from(ERROR)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            ("bench --jobs 1,0", "'0' for '--jobs <N>': write a whole number from 1 to 4096\n"),
        ] {
            let words = std::iter::once("millrace").chain(arguments.split(' '));
            let error = Cli::try_parse_from(words).expect_err(arguments).to_string();
            assert!(error.contains(said), "{error}");
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
