//! `millrace trace spans`: times of I/Os from one step to the next, in the format of btt.
//!
//! `trace::run` calls this module; millrace-trace measures and formats.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_console::{EventFlow, ProgressBar};
use millrace_trace::{Columns, SpanGrouping, Spans, TraceError, json_line};

use super::TraceInput;

const EXAMPLES: &str = "\
Examples:
  millrace trace spans sda
  millrace trace spans dm-0 nvme0n1 --per drive
  millrace trace spans sda --json | jq .spans.Q2C.p99_ns

Spans, in seconds; percentiles are known to an eighth:
  Q2Q       from one I/O to the next
  Q2G       until an I/O has a place in the layer (S2G: from when it began to wait for one)
  G2I       until its request enters a queue
  Q2M  M2D  until an I/O is merged into another; from there until the driver has it
  Q2A       until a volume's I/O has become a drive's
  I2D       until the driver has the request
  I2S, S2D  of I2D, waiting for the scheduler, and from the first wait for a tag
  D2C       in the drive
  Q2C       the whole way
Spans of devices that only map I/Os to others (device majors 9, 253, 254) have dm in their \
names; btt keeps them apart.";

fn groupings() -> impl TypedValueParser<Value = SpanGrouping> {
    PossibleValuesParser::new(["drive", "cpu", "op"]).map(|word| match word.as_str() {
        "drive" => SpanGrouping::Drive,
        "cpu" => SpanGrouping::Cpu,
        _ => SpanGrouping::Op,
    })
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: TraceInput,
    /// Print all columns, including btt's; by default, only those that fit 80 characters
    #[arg(short = 'x', long)]
    extended: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also print the spans of each drive, CPU or kind of I/O
    #[arg(long, value_parser = groupings())]
    per: Option<SpanGrouping>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut spans = Spans::new();
    let walked = args.input.for_each_event(ProgressBar::new(1), |entry, _| {
        spans.entry(entry, &mut ());
        EventFlow::Event
    })?;
    spans.names = walked.names;
    if spans.has_completions_only() {
        bail!(TraceError::CompletionsOnly { trace: args.input.names.join(" ") });
    }
    let columns = if args.extended { Columns::All } else { Columns::Short };
    if args.json {
        let mut json = spans.json(args.per);
        let notes = walked.notes.iter().cloned().chain(spans.notes());
        json["notes"] = notes.collect::<Vec<String>>().into();
        json["damage"] = walked.damage.lines().into();
        millrace_console::say(&json_line(&json));
    } else {
        millrace_console::say(&spans.text(args.per, columns));
    }
    Ok(walked.damage.exit_code())
}
