//! `millrace locks`: lock statistics of a running daemon, in lockmeter's columns.
//!
//! The program makes the daemon take statistics, queries them repeatedly so that the daemon
//! continues, and ends them after the given time or at Ctrl-C. If this program dies, the daemon
//! ends the statistics by itself. `bench --locks` prints the same table.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_console::words::duration;
use millrace_console::{Form, ProgressBar, counted, lock_table, say};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::verbs::connect::{Connect, keep_asking};
use crate::views::requests::{LOCKS_START, LOCKS_STATUS, LOCKS_STOP, NoArguments};

/// Time between two requests to the daemon.
const ASK: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  millrace locks                        for five seconds, of the daemon that it finds
  millrace locks --for 1m --connect unix:/run/millrace/fast.sock.control
  millrace locks --json | jq '.locks[] | select(.site == null)'

A row adds up all locks of one name; below it is a row for each place in the source that took \
them. Times are in microseconds; columns marked * come with -x.
  taken         number of times that a lock was taken
  rejected *    attempts that found the lock taken and went away without it, such as a thread that
                leaves its I/Os to the thread which serves the queue already
  contended     share of all attempts that found the lock taken
  wait          how long these attempts waited, on average; an attempt that went away waited 0
  hold          how long a lock was held, on average
  held          share of the time in which a lock was held; several locks of a name are added up
  spinning *    share of the time of all CPUs that threads spent waiting

The lock `serve` is that of a hardware queue. A lock that was taken before the start, or is still \
held at the end, is left out. Locks are counted only while this verb runs; each acquisition then \
takes about 40 ns longer.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Time for which locks are counted, such as 5 (seconds) or 1m; Ctrl-C ends it earlier
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "5s")]
    length: Duration,
    #[command(flatten)]
    connect: Connect,
    /// Print all columns; by default, only the columns that fit 80 characters
    #[arg(short = 'x', long)]
    extended: bool,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch Ctrl-C")?;
    let mut client = args.connect.client()?;
    client.ask(&LOCKS_START, &NoArguments {})?;
    let mut bar = ProgressBar::new(1);
    let waited = keep_asking(&mut signals, Some(args.length), ASK, |since| {
        bar.show(0, "lock statistics", since.as_secs_f64() / args.length.as_secs_f64());
        client.ask(&LOCKS_STATUS, &NoArguments {}).map(drop)
    });
    bar.clear();
    waited?;
    let locks = client.ask(&LOCKS_STOP, &NoArguments {})?;
    let (seconds, lines) = (locks.elapsed_ns as f64 / 1e9, locks.lines());
    if args.json {
        say(&format!("{}\n", json!({ "seconds": seconds, "cpus": locks.cpus, "locks": lines })));
    } else if lines.is_empty() {
        say(&format!("no lock was taken in {seconds:.2} s\n"));
    } else {
        let table = lock_table(&lines, if args.extended { Form::Whole } else { Form::Short });
        let cpus = counted(locks.cpus as usize, "CPU");
        say(&format!("locks taken in {seconds:.2} s on {cpus}:\n{table}\n"));
    }
    Ok(ExitCode::SUCCESS)
}
