//! `millrace trace report`: a trace as one HTML page of plots and tables that needs no network.
//!
//! Called by `trace::run`; the page is the lab's. Nothing is written of a broken trace.
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use millrace_lab::trace::{Spans, Timeline, report_html};

use super::{Input, Next};
use crate::verbs::bar::Bar;

const EXAMPLES: &str = "\
Examples:
  millrace trace report sda
      writes sda.html: stages over time, latency and sectors as heat maps, depth, CPUs
  millrace trace report dm-0 nvme0n1 -o stripe.html";

/// Arguments of `trace report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Where the page goes [default: NAME.html, of the first name]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs the verb.
///
/// # Errors
/// If a trace cannot be read to its end, or the page cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (mut spans, mut timeline) = (Spans::new(), Timeline::new());
    let walked = args.input.walk(Bar::new(1), |entry, _| {
        spans.entry(entry, &mut timeline);
        timeline.entry(entry, &spans);
        Next::Event
    })?;
    spans.set_names(&walked);
    let names: Vec<String> = args.input.names().iter().map(|name| name.name()).collect();
    let file = args.output.clone().unwrap_or_else(|| format!("{}.html", names[0]).into());
    std::fs::write(&file, report_html(&names, &spans, &timeline))
        .with_context(|| format!("{}: cannot write the page", file.display()))?;
    eprintln!("note: {} written", file.display());
    Ok(ExitCode::SUCCESS)
}
