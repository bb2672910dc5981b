//! `millrace trace`: records blktrace files, and reads those of millrace and of the kernel.
//!
//! This module owns the list of subcommands, one file each, and the arguments that select traces.
//! cli.rs calls it; millrace-trace reads the files.

mod record;
mod show;
mod spans;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use millrace_console::{EventFlow, EventWalk, ProgressBar, for_each_event};
use millrace_trace::{Reader, TraceEntry, TraceName};

const EXAMPLES: &str = "\
Examples:
  millrace trace record -o /tmp/t --duration 10s
      ten seconds of the daemon in this directory: /tmp/t.blktrace.0, ...
  millrace trace show sda | less
      the files sda.blktrace.0, sda.blktrace.1, ... as blkparse prints them
  millrace trace spans sda --per op
      how long I/Os took from step to step, as btt tells, of reads and of writes
  blktrace -d /dev/sda -w 10 -o - | millrace trace spans -
      without files

A trace NAME is the files NAME.blktrace.0, NAME.blktrace.1 and so on, one for each CPU, as \
blktrace writes them; blkparse and btt read the same files. The name - is standard input, where \
`blktrace -o -` can write. `millrace-lab trace report` makes a page of plots of a trace, and `millrace-lab \
trace convert` makes recordings of traces of other formats.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Have a running daemon record every step of its I/Os
    Record(record::Args),
    /// Print each event, as blkparse does
    Show(show::Args),
    /// Print how long I/Os took from one step to the next, as btt does
    Spans(spans::Args),
}

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Record(args) => record::run(args),
        Verb::Show(args) => show::run(args),
        Verb::Spans(args) => spans::run(args),
    }
}

#[derive(Debug, clap::Args)]
struct TraceInput {
    /// Names of recordings, - for standard input; several are merged by time, as blkparse does
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Directory of the recordings
    #[arg(short = 'D', long = "dir", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Show drives and volumes by their device numbers, as blkparse and btt do, instead of names
    #[arg(long)]
    numbers: bool,
}

impl TraceInput {
    fn names(&self) -> Vec<TraceName> {
        self.names.iter().map(|name| TraceName::new(name, self.dir.as_deref())).collect()
    }

    /// Passes each event of the traces to `each`, and shows progress in `bar`. A caller that prints
    /// lines meanwhile must pass an invisible bar, which cannot break up these lines.
    fn for_each_event(
        &self,
        bar: ProgressBar,
        mut each: impl FnMut(&TraceEntry, &Reader) -> EventFlow,
    ) -> Result<EventWalk> {
        let mut reader = Reader::open(&self.names())?;
        for_each_event(&mut reader, (bar, &self.names.join(" ")), |entry, reader| {
            if self.numbers {
                reader.names_mut().forget_devices();
            }
            each(entry, reader)
        })
    }
}
