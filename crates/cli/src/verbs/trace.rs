//! `millrace trace`: what blktrace files hold, ours and the kernel's, and traces of other formats.
//!
//! Owns the list of what can be done with a trace, a file each, and what these share: how traces
//! are named on the command line. `report` and `convert` take traces of any format. Called by
//! cli.rs; the reader is millrace-trace, the formats and the page are the lab's.

mod convert;
mod record;
mod report;
mod show;
mod spans;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use millrace_console::{Bar, Next, walk};
use millrace_experiments::traced::{Format, TracePath};
use millrace_trace::{Entry, Names, Reader, TraceName};

const EXAMPLES: &str = "\
Examples:
  millrace trace record -o /tmp/t --duration 10s
      ten seconds of the daemon of this folder: /tmp/t.blktrace.0, ...
  millrace trace show sda | less
      the files sda.blktrace.0, sda.blktrace.1, ... as blkparse prints them
  millrace trace spans sda --per op
      how long I/Os took from step to step, as btt tells, of reads and of writes
  millrace trace report sda
      the same over time, as plots: sda.html
  millrace trace report usr_0.csv.gz
      what a trace of another format is like: rates, sizes, strides, working set
  millrace trace convert usr_0.csv.gz --to-format blktrace -o usr
      for blkparse and btt
  blktrace -d /dev/sda -w 10 -o - | millrace trace spans -
      without files

A trace NAME is the files NAME.blktrace.0, NAME.blktrace.1 and so on, one for each CPU, as \
blktrace writes them; blkparse and btt read the same files. The name - is standard input, where \
`blktrace -o -` can write. `report` and `convert` read other formats, too, gzipped or not: blkparse's \
lines, fio's iologs, the CSVs of MSR Cambridge, SYSTOR '17, Alibaba, Tencent and SPC, FIU's lines, \
vscsi records, and logs of nbdkit and nbd-server.";

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
    /// Write a page of plots
    Report(report::Args),
    /// Write a trace of any format as one of another
    Convert(convert::Args),
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
        Verb::Report(args) => report::run(args),
        Verb::Convert(args) => convert::run(args),
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
    /// If a trace cannot be read, or not to its end: then after all that precedes.
    fn walk(&self, bar: Bar, mut each: impl FnMut(&Entry, &Reader) -> Next) -> Result<Names> {
        let mut reader = Reader::open(&self.names())?;
        walk(&mut reader, (bar, &self.names.join(" ")), |entry, reader| {
            if self.numbers {
                reader.names_mut().forget_devices();
            }
            each(entry, reader)
        })
    }
}

/// Which traces, of any format.
#[derive(Debug, clap::Args)]
struct Foreign {
    /// Trace files, gzipped or not, names of recordings, or - for standard input; several are
    /// merged by time
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<String>,
    /// The folder of the traces
    #[arg(short = 'D', long = "dir", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The format of the traces [default: found by their first lines]; one of blktrace, blkparse,
    /// iolog, iolog3, msr, systor, alibaba, tencent, spc, fiu, vscsi, nbdkit, nbd-trlog
    #[arg(long, value_name = "FORMAT", hide_default_value = true)]
    format: Option<Format>,
}

impl Foreign {
    fn paths(&self) -> Vec<TracePath> {
        let in_dir = |name: &String| match (&self.dir, name.as_str()) {
            (Some(dir), name) if name != "-" => TracePath::Named(dir.join(name)),
            (_, name) => name.into(),
        };
        self.traces.iter().map(in_dir).collect()
    }

    /// Whether a file, which may not be there, is one of the traces.
    fn reads(&self, file: &Path) -> bool {
        let Ok(file) = file.canonicalize() else { return false };
        self.paths().iter().any(|path| match path {
            TracePath::Named(path) => {
                let of_set = format!("{}.blktrace.", path.display());
                path.canonicalize().is_ok_and(|path| path == file)
                    || Path::new(&(of_set + "0")).canonicalize().is_ok_and(|path| path == file)
            }
            TracePath::Stdin => false,
        })
    }
}
