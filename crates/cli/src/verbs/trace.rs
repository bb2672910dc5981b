//! `millrace trace`: what blktrace files hold, ours and the kernel's.
//!
//! Owns the list of what can be done with a trace, a file each, and what these share: how traces
//! are named on the command line. Called by cli.rs; the reader is millrace-trace's.

mod record;
mod show;
mod spans;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use millrace_console::{Bar, EventWalk, Next, for_each_event};
use millrace_trace::{Reader, TraceEntry, TraceName};

const EXAMPLES: &str = "\
Examples:
  millrace trace record -o /tmp/t --duration 10s
      ten seconds of the daemon of this folder: /tmp/t.blktrace.0, ...
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

/// Arguments of `trace`.
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

/// Runs the verb.
///
/// # Errors
/// If a trace is missing, cannot be read, or is broken: with its file and byte.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Record(args) => record::run(args),
        Verb::Show(args) => show::run(args),
        Verb::Spans(args) => spans::run(args),
    }
}

/// Which traces.
#[derive(Debug, clap::Args)]
struct Input {
    /// Names of recordings, - for standard input; several are merged by time, as blkparse does
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// The folder of the recordings
    #[arg(short = 'D', long = "dir", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Show drives and volumes by their device numbers, as blkparse and btt do, not by their names
    #[arg(long)]
    numbers: bool,
}

impl Input {
    fn names(&self) -> Vec<TraceName> {
        self.names.iter().map(|name| TraceName::new(name, self.dir.as_deref())).collect()
    }

    /// Gives each event to `each`, until the end or until that says stop, and shows in `bar` how
    /// far it is. A bar is for walks that print nothing on the way: it would tear lines on the same
    /// terminal.
    ///
    /// # Errors
    /// If a trace cannot be read.
    fn for_each_event(
        &self,
        bar: Bar,
        mut each: impl FnMut(&TraceEntry, &Reader) -> Next,
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
