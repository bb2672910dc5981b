//! For tests: parses a command line of `bench`.

use clap::Parser;

use super::args::BenchArgs;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

pub(super) fn parse(text: &str) -> Result<BenchArgs, clap::Error> {
    let words = std::iter::once("bench").chain(text.split_whitespace());
    Command::try_parse_from(words).map(|command| command.bench)
}
