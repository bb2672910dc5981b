//! `millrace-lab trace`: shows traces of any format as a page of plots, or converts them.
//!
//! This module defines the subcommands, and the arguments that select traces. Each subcommand is in
//! a file of its own. Called by cli.rs; millrace-experiments has the trace formats and the page.

mod convert;
mod report;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use millrace_experiments::trace::{Format, TracePath};
use millrace_trace::TraceName;

const EXAMPLES: &str = "\
Examples:
  millrace-lab trace report sda -o sda.html
      the files sda.blktrace.0, sda.blktrace.1, ... as tables, and over time as plots
  millrace-lab trace report usr_0.csv.gz
      what a trace of another format is like: rates, sizes, strides, working set
  millrace-lab trace convert usr_0.csv.gz --to-format blktrace -o usr
      for blkparse and btt

Formats are read gzipped or not: blktrace's files, blkparse's lines, fio's iologs, the CSVs of MSR \
Cambridge, SYSTOR '17, Alibaba, Tencent and SPC, FIU's lines, vscsi records, and logs of nbdkit and \
nbd-server. `millrace trace record` records what a daemon does.";

/// Arguments of `trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show statistics of a trace, and write a page of plots
    Report(report::Args),
    /// Convert a trace to another format
    Convert(convert::Args),
}

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Report(args) => report::run(args),
        Verb::Convert(args) => convert::run(args),
    }
}

#[derive(Debug, clap::Args)]
struct TraceInput {
    /// Trace files, gzipped or not, names of recordings, or - for standard input; several are
    /// merged by time
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<String>,
    /// The directory of the traces
    #[arg(short = 'D', long = "dir", value_name = "DIR")]
    dir: Option<PathBuf>,
    #[arg(long, value_name = "FORMAT", help = format_help())]
    format: Option<Format>,
}

fn format_help() -> String {
    let names = Format::names(Format::all());
    format!("The format of the traces [default: detected from their first lines]; one of {names}")
}

impl TraceInput {
    fn paths(&self) -> Vec<TracePath> {
        let in_dir = |name: &String| match (&self.dir, name.as_str()) {
            (Some(dir), name) if name != "-" => TracePath::Named(dir.join(name)),
            (_, name) => name.into(),
        };
        self.traces.iter().map(in_dir).collect()
    }

    /// Returns true if `file` exists and is one of the trace files, even under another name.
    fn reads(&self, file: &Path) -> bool {
        let identity = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
        let Some(file) = identity(file) else { return false };
        self.paths().iter().any(|path| match path {
            TracePath::Named(path) => {
                let of_cpus = TraceName::new(&path.to_string_lossy(), None).files();
                of_cpus.iter().chain([path]).any(|path| identity(path) == Some(file))
            }
            TracePath::Stdin => false,
        })
    }
}
