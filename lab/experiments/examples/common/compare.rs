//! What the examples that compare servers or drives share: rounds in turn, medians, servers as
//! child processes, plans, fio's report.
//!
//! Each example is a program of its own and takes what it needs, so some of this is unused in each.

#![allow(dead_code, clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use millrace_block::Stamp;
use millrace_experiments::{Plan, Workload};
use serde_json::Value;

/// What an example does, or a sentence on why it could not.
pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// Prints what came out; status 2 if it is an error.
pub fn print(outcome: Outcome<impl Display>) -> ExitCode {
    match outcome {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// A plain table with this head.
pub fn table(head: impl Into<comfy_table::Row>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    table
}

/// The middle of these values, or 0.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len.is_multiple_of(2) => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// Median of the ratios of two series, round by round.
pub fn ratio(one: &[f64], other: &[f64]) -> f64 {
    median(one.iter().zip(other).map(|(one, other)| one / other.max(1e-9)).collect())
}

/// A measurement of each of `sides` in each round; who is first changes from round to round.
pub fn in_turns<T>(
    rounds: usize,
    sides: usize,
    mut measure: impl FnMut(usize) -> Outcome<T>,
) -> Outcome<Vec<Vec<T>>> {
    let mut found: Vec<Vec<T>> = (0..sides).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for place in 0..sides {
            let index = (place + round) % sides;
            found[index].push(measure(index)?);
        }
    }
    Ok(found)
}

/// A plan of one job that runs for so long.
pub fn plan(workload: Workload, runtime: Duration) -> Plan {
    Plan {
        workload,
        jobs: 1,
        cpus: Vec::new(),
        runtime,
        ios: None,
        stamp: Stamp::Batch,
        reactor: millrace_reactor::Config::default(),
        size_bytes: None,
        interrupt: millrace_experiments::Interrupt::default(),
    }
}

/// The first job of fio's report in JSON.
pub fn fio_job(output: &Output) -> Outcome<Value> {
    Ok(fio_jobs(output)?.swap_remove(0))
}

/// The jobs of fio's report in JSON, at least one; notes may come before the document.
pub fn fio_jobs(output: &Output) -> Outcome<Vec<Value>> {
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = || {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("fio: {}: {said}{text}", output.status)
    };
    let json = text.find('{').ok_or_else(failed)?;
    let report: Value = serde_json::from_str(&text[json..])?;
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty()).ok_or_else(failed)?;
    match output.status.success() && jobs.iter().all(|job| job["error"] == 0) {
        true => Ok(jobs.clone()),
        false => Err(failed().into()),
    }
}

/// CPU time so far of the process of this `stat` file in `/proc`, with threads that have ended, for
/// itself and in the kernel.
pub fn cpu_us(stat: &Path) -> Outcome<[f64; 2]> {
    const US_PER_TICK: f64 = 10_000.0;
    let text = fs::read_to_string(stat)?;
    // The name in parentheses may hold anything; what follows are numbers.
    let fields = text.rsplit_once(") ").ok_or("/proc/PID/stat has changed")?.1;
    let mut ticks = fields.split(' ').skip(11).map(str::parse::<u64>);
    let mut next_us = || -> Outcome<f64> {
        Ok(ticks.next().ok_or("/proc/PID/stat has changed")?? as f64 * US_PER_TICK)
    };
    Ok([next_us()?, next_us()?])
}

/// A server's name, its socket, and the command that starts it.
pub type ServerArgs = (String, PathBuf, String);

/// Parses `NAME,SOCKET,COMMAND`.
pub fn server_args(value: &str) -> Outcome<ServerArgs> {
    let mut parts = value.splitn(3, ',').map(str::to_owned);
    let (name, socket, command) = (parts.next(), parts.next(), parts.next());
    let all = name.zip(socket).zip(command).ok_or("NAME,SOCKET,COMMAND")?;
    let ((name, socket), command) = all;
    Ok((name, socket.into(), command))
}

/// A server under measurement; killed by its pid and reaped when dropped.
pub struct Server {
    /// What its lines are called.
    pub name: String,
    /// Where it listens.
    pub socket: PathBuf,
    child: Child,
}

impl Server {
    /// Starts a server by a command of the shell, and waits until it listens.
    pub fn start(name: &str, socket: &Path, command: &str) -> Outcome<Server> {
        if socket.exists() {
            return Err(format!("{}: is there already; remove it", socket.display()).into());
        }
        let child = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).spawn()?;
        let mut server = Server { name: name.to_owned(), socket: socket.to_owned(), child };
        let start = Instant::now();
        while !socket.exists() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("{name}: ended with {status} before it listened").into());
            }
            if start.elapsed() > Duration::from_secs(20) {
                return Err(format!("{name}: no socket {} after 20 s", socket.display()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may listen a moment after the socket is there.
        std::thread::sleep(Duration::from_millis(100));
        Ok(server)
    }

    /// A file of its process in `/proc`.
    pub fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.child.id()).into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A child that is not reaped keeps its pid, so this meets no other process.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}
