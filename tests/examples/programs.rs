//! `cargo xtask programs`: records cp and tar on a volume, compares them with the modelled programs
//! of `millrace-lab bench --program`, and replays them over modelled drives, served as Linux did
//! and as millrace does.
//!
//! Owns arguments and tables; millrace-tests runs and records. Needs root, for the mount.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::{ErrorKind, Write};
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_tests::guest::Image;
use millrace_tests::mounted::obstacle;
use millrace_tests::programs::{
    Amounts, Kind, Recordings, Rig, Times, Traffic, in_guest, model, real,
};
use millrace_tests::{client, millrace_lab, run};
use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

const USAGE: &str = "\
usage: cargo xtask programs [--copy-mib N] [--files N] [--file-bytes N] [--machine NAME]
                            [--iodepth N,...] [--limit N] [--rounds N] [--guest] [--json]

Runs cp and tar on ext4 on a volume that millrace serves (through nbdfuse and a loop device),
records each program's I/O at the volume, and replays it as fast as possible over a stripe of
eight modelled 850 EVOs, served per-volume (as Linux's md), per-drive and inline. The modelled
programs of `millrace-lab bench --program` are recorded and replayed in the same way.

  --copy-mib N    size of the file that is copied [default: 192]
  --files N       files of the tree that is packed and unpacked [default: 4000]
  --file-bytes N  their mean size [default: 11264]
  --machine NAME  the simulated machine, as of `millrace-lab bench --machine` [default: e5-2620]
  --iodepth N,... I/Os in flight while replaying: few as if the program waited for each, many as if
                  for none [default: 2,512]
  --limit N       I/Os replayed at most of each recording [default: 20000]
  --rounds N      replays on this machine, whose median counts; 0: none [default: 5]
  --guest         run the programs in a guest, as where this machine lets nobody mount
  --json          print one JSON array

Examples:
  cargo xtask programs
  cargo xtask programs --copy-mib 32 --files 500 --rounds 0
  cargo xtask programs --iodepth 1,16 --json | jq '.[] | {program, source, replays}'

Needs root, fuse and loop devices, and the Debian packages libnbd-bin, fuse3, e2fsprogs, mount, tar;
a guest needs no root, but linux-image-amd64, qemu-system-x86, busybox-static, e2fsprogs and fio, and
copies at most 64 MiB.
MILLRACE_BIN names the program to measure, such as target/release/millrace [default: that of this
build]. Takes about a minute, most of a gigabyte of memory, and as much of the temporary \
directory.";

/// Programs of other packages that this runs.
const CLIENTS: [&str; 6] = ["nbdfuse", "fusermount3", "mkfs.ext4", "mount", "losetup", "tar"];

struct Arguments {
    amounts: Amounts,
    /// The rig of replays; each of `iodepths` is its depth in turn.
    rig: Rig,
    iodepths: Vec<u32>,
    guest: bool,
    json: bool,
}

fn parse(words: &[String]) -> Result<Arguments, String> {
    let amounts = Amounts { copy_mib: 192, files: 4000, file_bytes: 11 << 10 };
    let rig = Rig { machine: Some("e5-2620".into()), iodepth: 512, limit: 20_000, rounds: 5 };
    let mut arguments =
        Arguments { amounts, rig, iodepths: vec![2, 512], guest: false, json: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => arguments.json = true,
            "--guest" => arguments.guest = true,
            _ => {}
        }
        if ["--json", "--guest"].contains(&word.as_str()) {
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word}: no value, or unknown"))?;
        let number = |text: &str, range: RangeInclusive<u32>| {
            let number = text.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("{word} {value}: give a whole number in {range:?}"))
        };
        let whole = |range| number(value, range);
        match word.as_str() {
            "--copy-mib" => arguments.amounts.copy_mib = whole(1..=2048)?,
            "--files" => arguments.amounts.files = whole(1..=100_000)?,
            "--file-bytes" => arguments.amounts.file_bytes = whole(1..=1 << 20)?,
            "--iodepth" => {
                let each = value.split(',').map(|text| number(text, 1..=65_536));
                arguments.iodepths = each.collect::<Result<_, _>>()?;
            }
            "--limit" => arguments.rig.limit = whole(1..=u32::MAX)?.into(),
            "--rounds" => arguments.rig.rounds = whole(0..=100)?,
            "--machine" => arguments.rig.machine = Some(value.clone()),
            _ => return Err(format!("{word}: unknown")),
        }
    }
    Ok(arguments)
}

/// Checks, before anything is run, that the machine's model exists; the error is the program's own
/// message.
fn check_machine(rig: &Rig) -> Result<(), String> {
    let Some(machine) = &rig.machine else { return Ok(()) };
    let mut bench = millrace_lab();
    bench.args(["bench", "--machine", machine, "--drive", "null", "--iodepth", "1", "--ios", "1"]);
    let output = run(&mut bench);
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// A recorded program, and its replays, each with where and how it was.
struct Row {
    kind: Kind,
    source: &'static str,
    traffic: Traffic,
    replays: Vec<(Rig, Times)>,
}

/// The recorded programs with their replays: on the simulated machine, then here, at each depth.
fn rows(source: &'static str, recordings: &Recordings, arguments: &Arguments) -> Vec<Row> {
    let rig = &arguments.rig;
    let here = (rig.rounds > 0).then(|| Rig { machine: None, ..rig.clone() });
    let machines = [Some(Rig { rounds: 1, ..rig.clone() }), here].into_iter().flatten();
    let depths = |rig: Rig| {
        arguments.iodepths.iter().map(move |iodepth| Rig { iodepth: *iodepth, ..rig.clone() })
    };
    let rigs: Vec<Rig> = machines.flat_map(depths).collect();
    let row = |(kind, traffic): (Kind, Traffic)| {
        let timed = |rig: &Rig| (rig.clone(), rig.times(recordings.dir(), kind.name()));
        Row { kind, source, traffic, replays: rigs.iter().map(timed).collect() }
    };
    recordings.traffic().into_iter().map(row).collect()
}

fn json_of(row: &Row) -> Value {
    let Row { kind, source, traffic, replays } = row;
    let replay = |(rig, times): &(Rig, Times)| {
        let [per_volume, per_drive, inline] = times.seconds;
        json!({
            "machine": rig.machine, "iodepth": rig.iodepth, "ios": times.ios,
            "ratio": times.ratio(),
            "seconds": { "per-volume": per_volume, "per-drive": per_drive, "inline": inline },
        })
    };
    json!({
        "program": kind.name(), "source": source, "paper_ratio": kind.paper(),
        "ios": traffic.ios, "bytes": traffic.bytes, "read_bytes": traffic.read_bytes,
        "reads_share": traffic.share(traffic.reads), "mean_bytes": traffic.mean_bytes(),
        "in_order_share": traffic.share(traffic.in_order),
        "replays": replays.iter().map(replay).collect::<Vec<_>>(),
    })
}

fn tables(rows: &[Row]) -> String {
    let mut text =
        "I/Os of the volume; in order: those that begin where one of the last 16 ended\n \
                    program    source    I/Os      MiB   reads  mean size  in order\n"
            .to_owned();
    for Row { kind, source, traffic, .. } in rows {
        text += &format!(
            " {:<10} {source:<6} {:>7} {:>8.1} {:>5.1} % {:>6.1} KiB {:>7.1} %\n",
            kind.name(),
            traffic.ios,
            traffic.bytes as f64 / f64::from(1 << 20),
            100.0 * traffic.share(traffic.reads),
            traffic.mean_bytes() / 1024.0,
            100.0 * traffic.share(traffic.in_order),
        );
    }
    let replays = rows.first().map_or(0, |row| row.replays.len());
    (0..replays).for_each(|at| text += &replay_table(rows, at));
    text + "\nratio: per-volume over per-drive; paper: [FALCON]'s, of the programs themselves\n"
}

/// The table of one machine and depth: the replays that have this place in each row.
fn replay_table(rows: &[Row], at: usize) -> String {
    let rig = &rows[0].replays[at].0;
    let mut text = format!(
        "\nReplayed on {} over 8 x model:preset=850evo, at most {} I/Os in flight: milliseconds\n \
         program    source    I/Os per-volume per-drive   inline  ratio  paper\n",
        rig.place(),
        rig.iodepth
    );
    for Row { kind, source, replays, .. } in rows {
        let times = &replays[at].1;
        let [per_volume, per_drive, inline] = times.seconds.map(|seconds| seconds * 1e3);
        text += &format!(
            " {:<10} {source:<6} {:>7} {per_volume:>10.1} {per_drive:>9.1} {inline:>8.1} \
             {:>6.2} {:>6.2}\n",
            kind.name(),
            times.ios,
            times.ratio(),
            kind.paper(),
        );
    }
    text
}

/// The real programs, mounted here or in a guest; None, with the reason printed, if neither can be.
fn record(arguments: &Arguments) -> Option<Recordings> {
    let why = match arguments.guest {
        true => Some("as told".to_owned()),
        false if CLIENTS.iter().any(|name| client(name).is_none()) => Some("see above".to_owned()),
        false => obstacle(),
    };
    let Some(why) = why else {
        return Some(real(arguments.amounts));
    };
    eprintln!("note: programs run in a guest, not on this machine: {why}");
    Some(in_guest(&Image::build()?, arguments.amounts))
}

/// Measures all; returns after everything that was started is gone.
fn measure(arguments: &Arguments) -> Option<String> {
    let mut rows_of = rows("real", &record(arguments)?, arguments);
    rows_of.extend(rows("model", &model(), arguments));
    rows_of.sort_by_key(|row| Kind::ALL.iter().position(|kind| *kind == row.kind));
    if !arguments.json {
        return Some(tables(&rows_of));
    }
    let all: Vec<Value> = rows_of.iter().map(json_of).collect();
    Some(format!("{:#}\n", Value::from(all)))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let arguments = match parse(&words) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("programs: {text}; --help lists what there is");
            return ExitCode::from(2);
        }
    };
    if let Err(text) = check_machine(&arguments.rig) {
        eprintln!("programs: {text}");
        return ExitCode::from(2);
    }
    // Ctrl-C reaches the programs too, which share this terminal. Their failure unwinds from here,
    // so that everything mounted is unmounted.
    let seen = Arc::new(AtomicBool::new(false));
    if let Err(error) = signal_hook::flag::register(SIGINT, seen) {
        eprintln!("programs: cannot catch Ctrl-C: {error}");
        return ExitCode::from(2);
    }
    let Some(text) = measure(&arguments) else {
        return ExitCode::from(2);
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader of the pipe has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("programs: cannot print: {error}");
            ExitCode::from(2)
        }
        _ => ExitCode::SUCCESS,
    }
}
