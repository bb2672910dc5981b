//! `millrace trace show`: prints a trace like `blkparse -i NAME`, byte for byte, except for names
//! of drives in place of numbers.
//!
//! `trace::run` calls this module; millrace-trace formats the lines. The program ends without an
//! error when its reader closes the pipe.

use std::io::{BufWriter, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use millrace_console::{EventFlow, ProgressBar, is_gone};
use millrace_trace::{DriverData, Show};

use super::TraceInput;

const EXAMPLES: &str = "\
Examples:
  millrace trace show sda | head
  millrace trace show -q -D /var/tmp dm-0 nvme0n1 > both.txt

Columns: drive or volume (or device number, if the recording has no name for it), CPU, sequence \
number, seconds since the first event, process or client, action, kind, and what the action needs, \
mostly the first sector, + and the number of sectors.
Actions:
  Q  a client queued an I/O              G  the I/O got a place in the layer
  I  a request entered a queue           D  the driver took the request
  C  the request completed               M  F  an I/O was merged at the end or front of a request
  A  a volume's I/O became a drive's     X  an I/O was split
  P  a batch began                       U  UT  the batch was handed on (UT: since its thread waits)
  R  the driver gave a request back      S  an I/O waits for a place
  B  data were copied once more
Kinds: R read, W write, D discard, F before these flush, F after them FUA, S sync, A read-ahead, \
M metadata, N none.";

const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    input: TraceInput,
    /// Omit the counts at the end
    #[arg(short, long)]
    quiet: bool,
    /// Also print drivers' messages about requests, as lines with the action d, which blkparse does
    /// not have
    #[arg(long)]
    driver_data: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let stdout = std::io::stdout();
    let on_terminal = stdout.is_terminal();
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, stdout.lock());
    let names = args.input.names();
    let data = if args.driver_data { DriverData::Shown } else { DriverData::Hidden };
    let mut show = Show::new(names.iter().map(|name| name.name()).collect(), data);
    let mut written = Ok(());
    let bar = if on_terminal { ProgressBar::hidden() } else { ProgressBar::new(1) };
    let walked = args.input.for_each_event(bar, |entry, reader| {
        written = out.write_all(show.entry(entry, reader.names()));
        if written.is_ok() { EventFlow::Event } else { EventFlow::Stop }
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
    let walked = walked?;
    if let Some(note) = walked.names.dropped_note() {
        millrace_console::tell!("note: {note}");
    }
    Ok(walked.damage.exit_code())
}
