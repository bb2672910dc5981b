//! Compares vhost-user-blk servers: the same client, the same minute, turn and turn about.
//!
//! For each place of client and server on the CPUs it starts every server with its command, then
//! for each way in which the client waits and each depth runs rounds; in a round each server has
//! one measured run, and who is first changes. Prints medians: I/Os a second (with the least and
//! the most), CPU time of the server's process and of this client for one I/O, kicks and interrupts
//! for one I/O, and the ratios to the first server, taken within each round. Beside it stands a
//! ping-pong of a cache line between the two CPUs, measured before each run: on shared machines it
//! has modes, and what crosses CPUs is worth no more than it. The last lines name each ratio that
//! is below `--least`.
//!
//! A server's CPU time is the sum over its threads as the scheduler counts it, in nanoseconds
//! (`/proc/PID/task/*/schedstat`). Commands are run by `sh -c exec`, below `taskset` where a place
//! names the server's CPU: from outside, as whoever runs a daemon does it.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "common/compare.rs"]
mod compare;

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table};
use millrace_clients::vhost::Wait;
use millrace_experiments::{Notifications, Plan, Row, Rw, Workload, run_vhost_row};
use millrace_machine::{CpuId, Machine, Native, Thread};

use compare::{Outcome, Server, ServerArgs, in_turns, median, server_args, table};

const USAGE: &str = "\
usage: vhost_compare [OPTIONS] --server NAME,SOCKET,COMMAND [--server ...]

  --depths 1,32,128   I/Os in flight for each job
  --jobs 1            jobs, each with a virtqueue
  --rw randread       read, write, randread, randwrite, randrw
  --bs 4096           bytes of an I/O
  --wait poll         how the client waits: poll, spin (polls, and never gives its CPU away),
                      events, or several of them
  --rounds 7          runs of each server at each depth
  --ms 1000           length of a run
  --client-cpus 0     CPUs of the jobs
  --server-cpu 1      CPU of the servers with --separate, and the other one of the ping-pong
  --least 1.2         ratio of IOPS below which a server other than the first is named at the end

places, any of them; without one the servers' commands say where they run:
  --separate          the client on --client-cpus, the servers on --server-cpu
  --same-cpu          the client and the servers on the first of --client-cpus
  --unpinned          where the kernel puts them

example:
  vhost_compare --same-cpu --unpinned \
    --server 'qsd,/tmp/q.sock,qemu-storage-daemon --object iothread,id=t \
--blockdev driver=null-co,node-name=d,size=1073741824 --export type=vhost-user-blk,id=e,\
addr.type=unix,addr.path=/tmp/q.sock,node-name=d,num-queues=2,writable=on,iothread=t' \\
    --server 'millrace,/tmp/m.sock,millrace serve null.toml'";

/// Exchanges of the cache line in one measurement.
const PINGS: u32 = 50_000;

/// Where client and servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// As the commands say.
    AsTold,
    Separate,
    SameCpu,
    Unpinned,
}

impl Place {
    const FLAGS: [(&str, Place); 3] = [
        ("--separate", Place::Separate),
        ("--same-cpu", Place::SameCpu),
        ("--unpinned", Place::Unpinned),
    ];

    fn name(self) -> &'static str {
        match self {
            Place::AsTold => "as told",
            Place::Separate => "separate",
            Place::SameCpu => "same CPU",
            Place::Unpinned => "unpinned",
        }
    }

    /// A server's command with what binds it to its CPU.
    fn bind(self, command: &str, settings: &Settings) -> String {
        let cpu = match self {
            Place::AsTold | Place::Unpinned => return format!("exec {command}"),
            Place::Separate => settings.server_cpu,
            Place::SameCpu => settings.client_cpu(),
        };
        format!("exec taskset -c {cpu} {command}")
    }
}

const WAITS: [(&str, Wait); 3] =
    [("poll", Wait::Poll), ("spin", Wait::Spin), ("events", Wait::Events)];

/// What is measured, and how often.
struct Settings {
    depths: Vec<u32>,
    plan: Plan,
    waits: Vec<(&'static str, Wait)>,
    places: Vec<Place>,
    rounds: usize,
    server_cpu: u32,
    least: f64,
    servers: Vec<ServerArgs>,
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Settings> {
        let workload =
            Workload { rw: Rw::RandRead, bs_bytes: 4096, iodepth: 1, verify: false, seed: 1 };
        let plan = Plan { cpus: vec![0], ..compare::plan(workload, Duration::from_secs(1)) };
        let (depths, servers) = (vec![1, 32, 128], Vec::new());
        let (waits, places, least) = (vec![WAITS[0]], Vec::new(), 1.2);
        let mut settings =
            Settings { depths, plan, waits, places, rounds: 7, server_cpu: 1, least, servers };
        while let Some(key) = arguments.next() {
            if let Some((_, place)) = Place::FLAGS.iter().find(|(flag, _)| *flag == key) {
                settings.places.push(*place);
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{key}: no value\n{USAGE}"))?;
            settings.set(&key, &value).map_err(|error| format!("{key} {value}: {error}"))?;
        }
        if settings.servers.is_empty() {
            return Err(USAGE.into());
        }
        if settings.places.is_empty() {
            settings.places.push(Place::AsTold);
        }
        Ok(settings)
    }

    fn client_cpu(&self) -> u32 {
        self.plan.cpus.first().copied().unwrap_or(0)
    }

    fn set(&mut self, key: &str, value: &str) -> Outcome<()> {
        let plan = &mut self.plan;
        let list = || value.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
        match key {
            "--depths" => self.depths = list()?,
            "--jobs" => plan.jobs = value.parse()?,
            "--rw" => plan.workload.rw = value.parse()?,
            "--bs" => plan.workload.bs_bytes = value.parse()?,
            "--rounds" => self.rounds = value.parse::<usize>()?.max(1),
            "--ms" => plan.runtime = Duration::from_millis(value.parse()?),
            "--client-cpus" => plan.cpus = list()?,
            "--server-cpu" => self.server_cpu = value.parse()?,
            "--least" => self.least = value.parse()?,
            "--wait" => {
                let wait = |name: &str| WAITS.into_iter().find(|(known, _)| *known == name);
                let waits = value.split(',').map(wait).collect::<Option<Vec<_>>>();
                self.waits = waits.ok_or("poll, spin or events")?;
            }
            "--server" => {
                self.servers.push(server_args(value)?);
            }
            _ => return Err(format!("unknown\n{USAGE}").into()),
        }
        Ok(())
    }
}

/// CPU time of all threads of a server so far.
fn cpu_ns(server: &Server) -> Outcome<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(server.proc("task"))? {
        // A thread may end meanwhile.
        let text = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// One run.
struct Sample {
    row: Row,
    server_ns_per_io: f64,
    ping_ns: f64,
}

/// A cell of the table: where client and server are, how the client waits, and for how many.
#[derive(Debug, Clone, Copy)]
struct Cell {
    place: Place,
    wait: (&'static str, Wait),
    depth: u32,
}

fn measure(server: &Server, settings: &Settings, cell: Cell) -> Outcome<Sample> {
    let ping_ns = match cell.place {
        Place::AsTold | Place::Separate => ping_pong(settings.client_cpu(), settings.server_cpu),
        Place::SameCpu | Place::Unpinned => 0.0,
    };
    let mut plan = settings.plan.clone();
    plan.workload.iodepth = cell.depth;
    match cell.place {
        Place::AsTold | Place::Separate => {}
        Place::SameCpu => plan.cpus = vec![settings.client_cpu()],
        Place::Unpinned => plan.cpus.clear(),
    }
    let before = cpu_ns(server)?;
    let row = run_vhost_row(&server.socket, cell.wait.1, &plan, &mut |_| ())
        .map_err(|error| format!("{}: {error}", server.name))?;
    let server_ns_per_io = (cpu_ns(server)? - before) as f64 / row.ios.max(1) as f64;
    if row.outcome.errors > 0 {
        let first = row.outcome.first_error.unwrap_or_default();
        return Err(format!("{}: {} errors: {first}", server.name, row.outcome.errors).into());
    }
    Ok(Sample { row, server_ns_per_io, ping_ns })
}

/// Nanoseconds for a cache line to go to the other CPU and come back changed.
fn ping_pong(here: u32, there: u32) -> f64 {
    let line = Arc::new(AtomicU32::new(0));
    let play = |cpu: u32, first: u32, line: Arc<AtomicU32>| {
        let body = move || {
            for turn in (first..2 * PINGS).step_by(2) {
                // Where both share a CPU, each must let the other run.
                let mut looks = 0u32;
                while line.load(Ordering::SeqCst) != turn {
                    looks += 1;
                    if looks.is_multiple_of(1 << 14) {
                        std::thread::yield_now();
                    }
                }
                line.store(turn + 1, Ordering::SeqCst);
            }
        };
        Native::spawn("ping", Some(CpuId(cpu)), Box::new(body))
    };
    let start = Instant::now();
    let threads = [play(there, 1, Arc::clone(&line)), play(here, 0, line)];
    threads.into_iter().for_each(|thread| assert!(thread.join(), "pings do not panic"));
    start.elapsed().as_nanos() as f64 / f64::from(PINGS)
}

const HEAD: [&str; 15] = [
    "place",
    "client",
    "depth",
    "server",
    "IOPS",
    "least",
    "most",
    "server ns/IO",
    "client ns/IO",
    "p50 ns",
    "kicks/IO",
    "intr/IO",
    "ping-pong ns",
    "IOPS/first",
    "CPU/first",
];

/// Ratio of something of a server to that of the first, in each round; the median.
fn ratio(samples: &[Sample], first: &[Sample], f: fn(&Sample) -> f64) -> f64 {
    let of = |samples: &[Sample]| samples.iter().map(f).collect::<Vec<f64>>();
    compare::ratio(&of(samples), &of(first))
}

fn cells(cell: Cell, name: &str, samples: &[Sample], first: &[Sample]) -> Vec<String> {
    let of = |f: fn(&Sample) -> f64| samples.iter().map(f).collect::<Vec<f64>>();
    let ratio = |f: fn(&Sample) -> f64| format!("{:.2}", ratio(samples, first, f));
    let notes = |f: fn(&Notifications) -> f64| {
        let found = samples.iter().filter_map(|sample| sample.row.cost.notifications.as_ref());
        format!("{:.4}", median(found.map(f).collect()))
    };
    let thousands = |iops: f64| format!("{:.1} K", iops / 1e3);
    let iops = of(|sample| sample.row.iops);
    vec![
        cell.place.name().to_owned(),
        cell.wait.0.to_owned(),
        cell.depth.to_string(),
        name.to_owned(),
        thousands(median(iops.clone())),
        thousands(iops.iter().copied().fold(f64::MAX, f64::min)),
        thousands(iops.iter().copied().fold(0.0, f64::max)),
        format!("{:.0}", median(of(|sample| sample.server_ns_per_io))),
        format!("{:.0}", median(of(|sample| sample.row.cost.cpu_ns_per_io))),
        format!("{:.0}", median(of(|sample| sample.row.lat_ns.p50 as f64))),
        notes(|notes| notes.kicks_per_io),
        notes(|notes| notes.interrupts_per_io),
        format!("{:.0}", median(of(|sample| sample.ping_ns))),
        ratio(|sample| sample.row.iops),
        ratio(|sample| sample.server_ns_per_io),
    ]
}

/// Measures all servers in all cells; the table, and what is to be said of ratios that are too low.
fn compare(settings: &Settings) -> Outcome<(Table, Vec<String>)> {
    let mut table = table(HEAD);
    let mut low = Vec::new();
    for &place in &settings.places {
        let start = |(name, socket, command): &ServerArgs| {
            Server::start(name, socket, &place.bind(command, settings))
        };
        let servers = settings.servers.iter().map(start).collect::<Outcome<Vec<Server>>>()?;
        let cell = |(wait, depth): (&(&'static str, Wait), &u32)| {
            let (wait, depth) = (*wait, *depth);
            Cell { place, wait, depth }
        };
        let all = settings.waits.iter().flat_map(|w| settings.depths.iter().map(move |d| (w, d)));
        for cell in all.map(cell) {
            let samples = in_turns(settings.rounds, servers.len(), |index| {
                measure(&servers[index], settings, cell)
            })?;
            for (server, found) in servers.iter().zip(&samples) {
                table.add_row(cells(cell, &server.name, found, &samples[0]));
                let ratio = ratio(found, &samples[0], |sample| sample.row.iops);
                if server.name != servers[0].name && ratio < settings.least {
                    let Cell { wait: (wait, _), depth, .. } = cell;
                    let (place, name) = (place.name(), &server.name);
                    low.push(format!("{name}: {place}, {wait}, depth {depth}: {ratio:.2}"));
                }
            }
        }
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    Ok((table, low))
}

fn run() -> Outcome<String> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    let (table, low) = compare(&settings)?;
    let below = if low.is_empty() { "none" } else { "these" };
    let lines: String = low.iter().map(|line| format!("\n  {line}")).collect();
    Ok(format!("{table}\n\nIOPS/first below {}: {below}{lines}", settings.least))
}

fn main() -> ExitCode {
    compare::print(run())
}
