//! `millrace stat`: counters of a running daemon, in iostat's columns.
//!
//! Each report has the differences since the last one; the first covers the time since the daemon
//! began to serve, as iostat's covers the time since boot. Reports are printed at whole intervals
//! after the first, however long a reply takes. columns.rs does the arithmetic, table.rs the text.

pub mod caches;
pub mod columns;
pub mod groups;
mod guests;
mod table;

use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use millrace_console::Form;
use serde_json::{Value, json};

use super::connect::Connect;
use super::serve::live::dirty_marks::warning;
use super::serve::live::shown_volumes::VOLUMES_SHOWN;
use crate::config::words;
use crate::views::StatsQuery;
use crate::views::report::Report;
use crate::views::requests::STATS;

const EXAMPLES: &str = "\
Examples:
  millrace stat                         once, since the daemon began to serve
  millrace stat 1                       and then every second, until Ctrl-C
  millrace stat 1 -x                    with all columns, and the 99th percentile
  millrace stat 1 --clients             with a row for each client of a volume
  millrace stat --all                   with idle volumes, also where there are many
  millrace stat 1 --guests              the queues and I/O threads of virtual machines
  millrace stat 1 --groups              groups of clients: shares, and what holds them
  millrace stat 0.5 10 --json           ten reports as lines of JSON, half a second apart
  millrace stat --connect unix:/run/millrace/fast.sock.control 1

`serve` prints where its control socket is when it starts: the line \"control at ...\".
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help())]
pub struct Args {
    /// Time between two reports, such as 1 (second) or 500ms; without it, print one report
    #[arg(value_parser = interval)]
    interval: Option<Duration>,
    /// Number of reports; without it, print until Ctrl-C
    #[arg(value_parser = words::whole::<u64>(1..=u64::MAX))]
    count: Option<u64>,
    #[command(flatten)]
    connect: Connect,
    /// Print p99 and all columns of iostat -x; by default, only those that fit 80 characters
    #[arg(short = 'x', long)]
    extended: bool,
    /// Add a row for each hardware queue of each drive: DRIVE:N
    #[arg(long)]
    queues: bool,
    /// Add a row for each client of each volume: client-N, as traces name it
    #[arg(long)]
    clients: bool,
    /// Print I/O threads and queues of virtual machines, instead of volumes and drives
    #[arg(long, conflicts_with_all = ["queues", "clients"])]
    guests: bool,
    /// Print groups of clients and why their I/Os waited, instead of volumes and drives
    #[arg(long, conflicts_with_all = ["queues", "clients", "guests"])]
    groups: bool,
    /// Show idle volumes, too; by default they are hidden if there are more than 64 volumes
    #[arg(long)]
    all: bool,
    /// Print one line of JSON for each report
    #[arg(long)]
    json: bool,
}

impl Args {
    fn text(&self, report: &Report, before: Option<&Report>) -> String {
        let form = if self.extended { Form::Whole } else { Form::Short };
        let uptime_ns = report.uptime_ns;
        if self.groups {
            let rows = groups::rows(report, before);
            return match self.json {
                true => format!("{}\n", json!({ "uptime_ns": uptime_ns, "groups": rows })),
                false => groups::table(&rows, form),
            };
        }
        if self.guests {
            return match self.json {
                true => {
                    format!("{}\n", json!({ "uptime_ns": uptime_ns, "guests": report.guests }))
                }
                false => guests::table(report, before, form),
            };
        }
        let mut rows = columns::rows(report, before);
        rows.retain(|row| match row.kind {
            "queue" => self.queues,
            "client" => self.clients,
            _ => true,
        });
        let idle = if self.all { 0 } else { leave_out_idle(&mut rows, report.idle.volumes) };
        match self.json {
            true => format!("{}\n", as_json(report, &rows, idle)),
            false => table::table(&rows, idle, form) + &caches::table(report, before, form),
        }
    }
}

/// If there are many volumes, removes the rows of the volumes without I/O in the interval. Returns
/// the number of idle volumes, including those that the daemon left out of its report.
fn leave_out_idle(rows: &mut Vec<columns::StatRow>, left_out: usize) -> usize {
    let volumes = rows.iter().filter(|row| row.kind == "volume").count();
    if volumes + left_out <= VOLUMES_SHOWN {
        return left_out;
    }
    let busy: HashSet<String> =
        rows.iter().filter(|row| row.is_busy()).map(|row| row.volume.clone()).collect();
    rows.retain(|row| busy.contains(&row.volume));
    left_out + volumes - busy.len()
}

fn as_json(report: &Report, rows: &[columns::StatRow], idle: usize) -> Value {
    let volumes = report.volumes.iter().map(|volume| {
        let (size_bytes, unused_bytes) = (volume.size_bytes, volume.unused_bytes);
        json!({ "name": volume.name, "size_bytes": size_bytes, "unused_bytes": unused_bytes })
    });
    let volumes: Vec<Value> = volumes.collect();
    let (caches, unacknowledged) = (&report.caches, &report.unacknowledged);
    json!({
        "daemon": report.daemon,
        "uptime_ns": report.uptime_ns,
        "volumes": volumes,
        "caches": caches,
        "unacknowledged": unacknowledged,
        "server": report.server,
        "idle_volumes": idle,
        "rows": rows,
    })
}

fn long_help() -> String {
    let helps = [columns::HELP, caches::HELP, guests::HELP, groups::HELP].join("\n\n");
    format!("{EXAMPLES}\n{helps}")
}

pub fn interval(text: &str) -> Result<Duration, String> {
    let time = millrace_console::words::duration(text)?;
    let is_short = time < Duration::from_millis(10);
    if is_short {
        Err("give an interval of 10ms or more; 0.5 means half a second".to_owned())
    } else {
        Ok(time)
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut client = args.connect.client()?;
    let count = match args.interval {
        None => 1,
        Some(_) => args.count.unwrap_or(u64::MAX),
    };
    let (start, mut before) = (Instant::now(), None);
    for number in 0..count {
        let report = client.ask(&STATS, &StatsQuery { all: args.all })?;
        if !args.json && before.is_none() {
            // Warnings go to the log, because other programs read the rows on standard output.
            report.unacknowledged.iter().for_each(|volume| tracing::warn!("{}", warning(volume)));
        }
        let text = args.text(&report, before.as_ref());
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written?,
        }
        drop(out);
        before = Some(report);
        let Some(interval) = args.interval.filter(|_| number + 1 < count) else { continue };
        let next = interval.as_secs_f64() * (number + 1) as f64;
        let next = start + Duration::try_from_secs_f64(next).unwrap_or(Duration::MAX / 4);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(ExitCode::SUCCESS)
}
