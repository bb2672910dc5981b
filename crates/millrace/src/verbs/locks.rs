//! `millrace locks`: what the locks of a running daemon do, in lockmeter's columns.
//!
//! Has the daemon take statistics over the control socket, asks now and then so that it goes on,
//! and ends them: after the time asked for, at Ctrl-C, or by being gone. The table is that of
//! `bench --locks`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::words;
use crate::verbs::bench::table::lock_table;
use crate::verbs::say;
use crate::verbs::stat::{CONNECT_DEFAULT, socket};
use crate::views::client::Client;

/// How often it is looked whether to go on.
const TURN: Duration = Duration::from_millis(50);
/// How often the daemon is asked.
const ASK: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  millrace locks                        for five seconds, the daemon of this folder
  millrace locks --for 1m --connect unix:/run/millrace/fast.sock.control
  millrace locks --json | jq '.locks[] | select(.site == null)'

Columns: what the locks of one name did in all, and below that by the place that took them.
  taken         times that it was taken
  rejected      attempts that found it taken and went away; who comes to a queue that is served
                leaves its work to the server, for one
  contended     part of all attempts that found it taken
  mean wait     of those; 0 for who goes away at once
  held          part of the time that it was held; of several locks of the name, added up
  CPU spinning  part of the time of all CPUs that went by in waiting

The lock `serve` is that of a hardware queue. Not counted: times held that began before the start,
or had not ended at the end. Until somebody asks, locks take no statistics; meanwhile each taking
costs some 40 ns more.
";

/// Arguments of `locks`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// For so long, or until Ctrl-C
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "5s")]
    length: Duration,
    /// The daemon's control socket, unix:PATH
    #[arg(long, value_name = "unix:PATH", value_parser = socket, default_value = CONNECT_DEFAULT)]
    connect: PathBuf,
    /// A line of JSON
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    match words::duration_ns(text)? {
        0 => Err("write a time above 0: 500ms or 5s".to_owned()),
        ns => Ok(Duration::from_nanos(ns)),
    }
}

/// Takes statistics and prints them.
///
/// # Errors
/// If the daemon is not there, refuses, or goes away.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch Ctrl-C")?;
    let mut client = Client::connect(&args.connect)?;
    client.locks_start()?;
    let (began, mut asked) = (Instant::now(), Instant::now());
    while signals.pending().next().is_none() {
        let left = args.length.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(TURN));
        if asked.elapsed() >= ASK {
            asked = Instant::now();
            client.locks_status()?;
        }
    }
    let locks = client.locks_stop()?;
    let (seconds, lines) = (locks.elapsed_ns as f64 / 1e9, locks.lines());
    if args.json {
        say(&format!("{}\n", json!({ "seconds": seconds, "cpus": locks.cpus, "locks": lines })));
    } else if lines.is_empty() {
        say(&format!("no lock was taken in {seconds:.2} s\n"));
    } else {
        let table = lock_table(&lines);
        say(&format!("locks in {seconds:.2} s on {} CPUs:\n{table}\n", locks.cpus));
    }
    Ok(ExitCode::SUCCESS)
}
