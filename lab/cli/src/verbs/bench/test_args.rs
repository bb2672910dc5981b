//! For tests: what `bench` makes of a command line.

use clap::Parser;

use super::args::BenchArgs;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

/// The arguments of `bench TEXT`.
pub(super) fn parse(text: &str) -> Result<BenchArgs, clap::Error> {
    let words = std::iter::once("bench").chain(text.split_whitespace());
    Command::try_parse_from(words).map(|command| command.bench)
}
