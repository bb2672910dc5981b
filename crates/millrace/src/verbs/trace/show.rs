//! `millrace trace show`: a trace as lines, byte for byte those of `blkparse -i NAME`.
//!
//! Called by `trace::run`; the lines are the lab's. What precedes a broken record is printed before
//! the error. A reader of our output that goes away ends it quietly.

use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use millrace_lab::trace::{DriverData, Show};

use super::{Input, Next, is_gone};

const EXAMPLES: &str = "\
Examples:
  millrace trace show sda | head
  millrace trace show -q -D /var/tmp dm-0 nvme0n1 > both.txt

Columns: device, CPU, sequence number, seconds, process, action, kind, then what the action needs.
Actions: Q queued, G got a request, I inserted, D given to the driver, C complete, M F merged at the
end or front, A remapped, X split, P plugged, U UT unplugged (UT by who was about to wait), R given
back, S slept, B bounced.
Kinds: R read, W write, D discard, F flush (before) or FUA (after), S sync, A ahead, M metadata.";

const BUFFER_BYTES: usize = 64 << 10;

/// Arguments of `trace show`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Leave out the counts at the end
    #[arg(short, long)]
    quiet: bool,
    /// Show what drivers said of requests, too, which blkparse leaves out: lines with the action d
    #[arg(long)]
    driver_data: bool,
}

/// Runs the verb.
///
/// # Errors
/// If a trace cannot be read, or the lines cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let stdout = std::io::stdout();
    let on_terminal = stdout.is_terminal();
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, stdout.lock());
    let names = args.input.names();
    let data = if args.driver_data { DriverData::Shown } else { DriverData::Hidden };
    let show = Show::new(names.iter().map(|name| name.name()).collect());
    let mut show = show.with_data(data);
    let mut written = Ok(());
    let walked = args.input.walk(!on_terminal, |entry, reader| {
        written = out.write_all(show.entry(entry, reader.names()));
        if written.is_ok() { Next::Event } else { Next::Stop }
    });
    if written.is_ok() && walked.is_ok() && !args.quiet {
        written = out.write_all(show.summary().as_bytes());
    }
    if written.is_ok() && walked.is_ok() {
        written = out.write_all(show.last_words().as_bytes());
    }
    match written.and_then(|()| out.flush()) {
        Err(error) if is_gone(&error) => return Ok(ExitCode::SUCCESS),
        written => written.context("standard output: cannot write")?,
    }
    walked.map(|()| ExitCode::SUCCESS)
}
