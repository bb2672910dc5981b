//! `millrace trace spans`: how long I/Os took from step to step, in btt's words and digits.
//!
//! Called by `trace::run`; measuring and layout are the lab's. Prints nothing of a broken trace,
//! since numbers of a part would pass for those of the whole.

use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;
use millrace_lab::trace::{Per, Spans, json_line};

use super::{Input, Next};

const EXAMPLES: &str = "\
Examples:
  millrace trace spans sda
  millrace trace spans dm-0 nvme0n1 --per drive
  millrace trace spans sda --json | jq .spans.Q2C.p99_ns

Spans: Q2Q between I/Os; Q2G until it has a request (S2G: since it slept for one); G2I until that is
inserted; Q2M until it is merged; Q2A until it is remapped; I2D, M2D until it is given to the
driver; D2C at the driver; Q2C all together. All in seconds; P50 to P99.9 are known to an eighth.
Names with dm are of devices that only map (majors 9, 253 and 254), which btt keeps apart.";

/// By what the numbers are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Drive,
    Cpu,
    Op,
}

/// Arguments of `trace spans`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the spans of each, too
    #[arg(long, value_enum)]
    per: Option<By>,
}

/// Runs the verb.
///
/// # Errors
/// If a trace cannot be read to its end.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut spans = Spans::new();
    args.input.walk(true, |entry, _| {
        spans.entry(entry, &mut ());
        Next::Event
    })?;
    let per = args.per.map(|by| match by {
        By::Drive => Per::Drive,
        By::Cpu => Per::Cpu,
        By::Op => Per::Op,
    });
    match args.json {
        true => crate::verbs::say(&json_line(&spans.json(per))),
        false => crate::verbs::say(&spans.text(per)),
    }
    Ok(ExitCode::SUCCESS)
}
