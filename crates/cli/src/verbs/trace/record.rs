//! `millrace trace record`: makes a running daemon record the events of its drives.
//!
//! The verb uses the control socket; the daemon writes the files, as its own user. This program
//! shows the progress and ends the recording after the given time or at Ctrl-C; if this program
//! dies, the daemon ends the recording by itself. If the daemon cannot write the files (a full
//! disk, a directory without write permission), the verb fails. `trace::run` calls this module.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace_console::words::duration;
use millrace_console::{counted, say, shell_word, visible};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::verbs::connect::{Connect, keep_asking};
use crate::views::TraceStart;
use crate::views::report::TraceStatus;
use crate::views::requests::{NoArguments, TRACE_START, TRACE_STATUS, TRACE_STOP};

/// Time between two requests to the daemon.
const ASK: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the files to write, NAME.blktrace.0, NAME.blktrace.1, ...; none of them may exist
    #[arg(short, long, value_name = "NAME", default_value = "millrace")]
    output: PathBuf,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    start: TraceStart,
    /// Time to record, such as 10 (seconds) or 500ms; without it, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
}

/// Returns exit status 1 if events were dropped.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch Ctrl-C")?;
    let mut client = args.connect.client()?;
    let name = std::path::absolute(&args.output)
        .with_context(|| format!("--output {}", args.output.display()))?;
    let start = TraceStart { name, ..args.start.clone() };
    client.ask(&TRACE_START, &start)?;
    let shows = std::io::stderr().is_terminal();
    keep_asking(&mut signals, args.duration, ASK, |since| {
        let status = client.ask(&TRACE_STATUS, &NoArguments {})?;
        if !status.files.is_empty() {
            bail!("the daemon ended the recording, because this program sent no request for 10 s");
        }
        if shows {
            show(&status, since);
        }
        Ok(())
    })?;
    let done = client.ask(&TRACE_STOP, &NoArguments {})?;
    if shows {
        clear();
    }
    let (files, at) = (counted(done.files.len(), "file"), start.name.to_string_lossy());
    say(&format!("{} events recorded in {files}: {}.blktrace.*\n", done.events, visible(&at)));
    let name = args.output.to_string_lossy();
    let name = shell_word(&name);
    say(&format!("to show where the time of I/Os went: millrace trace spans {name}\n"));
    if done.dropped > 0 {
        say(&format!(
            "{} events dropped: record fewer kinds of events, as with --action D,C\n",
            done.dropped
        ));
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(status: &TraceStatus, since: Duration) {
    let TraceStatus { events, dropped, .. } = status;
    let seconds = since.as_secs_f64();
    // An error means that the terminal is gone; the recording continues.
    let _ = write!(
        std::io::stderr(),
        "\r\x1b[K{seconds:.1} s: {events} events, {dropped} dropped; Ctrl-C ends"
    );
}

fn clear() {
    let _ = write!(std::io::stderr(), "\r\x1b[K");
}
