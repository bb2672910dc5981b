//! Compares file drives with fio: the same file, the same minute, turn and turn about.
//!
//! For each cell (kind of I/O, block size, depth) it runs rounds; in a round fio's io_uring engine
//! and our file drive have one measured run each, and who is first changes. Prints medians of I/Os
//! a second with the least and the most, and the ratio to fio, taken within each round. For
//! sequential cells our drive runs with other merge limits, too: `alone` merges nothing, `longest`
//! as far as a request goes, so the last column says whether the drive's own limit is as good as
//! the better of both.
//!
//! The file is made, written whole, and removed at the end. Give it a folder on the store that is
//! to be measured; both sides pass the page cache by (`O_DIRECT`). Nothing else may use the store.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "common/compare.rs"]
mod compare;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::{CellAlignment, Table};
use millrace_block::{
    Disk, DiskConfig, Driver, DriverQueue, Extent, HwQueues, QueueLimits, Sector, Volume,
};
use millrace_drives::{Spec, open, size_bytes};
use millrace_experiments::{Rw, Workload, run_row};
use millrace_machine::{Native, Topology};

use compare::{Outcome, fio_job, in_turns, median, ratio, table};

const USAGE: &str = "\
usage: file_compare [OPTIONS] --dir DIR

  --dir DIR     a folder on the store to be measured; a file is made there, and removed at the end
  --size 1g     bytes of the file
  --cells randread/4k/64,read/128k/16,read/4k/1,read/1m/4,write/4k/32
                what is measured: kind/block/depth, separated by commas
  --rounds 5    runs of each side at each cell
  --ms 1500     length of a run

example:
  cargo run --release -p millrace-experiments --example file_compare -- --dir /var/tmp";

/// What is measured in one row of the table.
struct Cell {
    rw: Rw,
    bs: u32,
    depth: u32,
}

/// A side of the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Fio,
    /// Our drive, with its own merge limit or another one in sectors.
    Ours(&'static str, Option<u32>),
}

impl Side {
    const OURS: Side = Side::Ours("millrace", None);
    const ALONE: Side = Side::Ours("alone", Some(0));
    const LONGEST: Side = Side::Ours("longest", Some(u32::MAX));

    fn name(self) -> &'static str {
        match self {
            Side::Fio => "fio",
            Side::Ours(name, _) => name,
        }
    }
}

/// What is measured, and how often.
struct Settings {
    dir: PathBuf,
    size_bytes: u64,
    cells: Vec<Cell>,
    rounds: usize,
    ms: u64,
}

fn bytes(text: &str) -> Outcome<u64> {
    size_bytes(text).ok_or_else(|| format!("{text}: bytes with k, m or g, as in 128k").into())
}

fn cell(text: &str) -> Outcome<Cell> {
    let [rw, bs, depth] = text.split('/').collect::<Vec<_>>()[..] else {
        return Err(format!("{text}: kind/block/depth, as in read/128k/16").into());
    };
    Ok(Cell { rw: rw.parse()?, bs: u32::try_from(bytes(bs)?)?, depth: depth.parse()? })
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Settings> {
        let usual = "randread/4k/64,read/128k/16,read/4k/1,read/1m/4,write/4k/32";
        let cells = |text: &str| text.split(',').map(cell).collect::<Outcome<Vec<Cell>>>();
        let mut settings = Settings {
            dir: PathBuf::new(),
            size_bytes: 1 << 30,
            cells: cells(usual)?,
            rounds: 5,
            ms: 1500,
        };
        while let Some(key) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{key}: no value\n{USAGE}"))?;
            match key.as_str() {
                "--dir" => settings.dir = value.into(),
                "--size" => settings.size_bytes = bytes(&value)?,
                "--cells" => settings.cells = cells(&value)?,
                "--rounds" => settings.rounds = value.parse::<usize>()?.max(1),
                "--ms" => settings.ms = value.parse()?,
                _ => return Err(format!("{key}: unknown\n{USAGE}").into()),
            }
        }
        if !settings.dir.is_dir() {
            return Err(USAGE.into());
        }
        Ok(settings)
    }
}

/// A file written whole; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path, size_bytes: u64) -> Outcome<Scratch> {
        let path = dir.join(format!("file-compare-{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let scratch = Scratch(path);
        let block = vec![0x5a; 1 << 20];
        for _ in 0..size_bytes >> 20 {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A drive with another merge limit.
struct Limited(Box<dyn Driver<Native>>, Option<u32>);

impl Driver<Native> for Limited {
    fn capacity(&self) -> Sector {
        self.0.capacity()
    }
    fn limits(&self) -> QueueLimits {
        let own = self.0.limits();
        QueueLimits { merge_sectors: self.1.unwrap_or(own.merge_sectors), ..own }
    }
    fn hw_queues(&self, topology: &Topology) -> HwQueues {
        self.0.hw_queues(topology)
    }
    fn open_queue(
        &self,
        index: u16,
        depth: u32,
    ) -> Result<Box<dyn DriverQueue<Native>>, millrace_block::Error> {
        self.0.open_queue(index, depth)
    }
    fn extents(&self, sector: Sector, nr_sectors: u64) -> Vec<Extent> {
        self.0.extents(sector, nr_sectors)
    }
}

/// I/Os a second of our drive.
fn ours(path: &Path, cell: &Cell, ms: u64, merge_sectors: Option<u32>) -> Outcome<f64> {
    let spec: Spec = format!("file:path={},direct=on", path.display()).parse()?;
    let driver = Limited(open(&spec, 1)?.driver, merge_sectors);
    let disk = Disk::new(Box::new(driver), DiskConfig { io_threads: 1, ..DiskConfig::default() })?;
    let volume: Arc<Volume<Native>> = Volume::single(disk)?;
    let workload = Workload {
        rw: cell.rw,
        bs_bytes: cell.bs,
        iodepth: cell.depth,
        verify: false,
        seed: u64::from(std::process::id()) ^ ms,
    };
    let plan = compare::plan(workload, Duration::from_millis(ms));
    let row = run_row(&volume, &plan, &mut |_| ())?;
    match row.outcome.errors {
        0 => Ok(row.iops),
        errors => Err(format!("{errors} errors: {:?}", row.outcome.first_error).into()),
    }
}

/// I/Os a second of fio.
fn fio(path: &Path, cell: &Cell, ms: u64) -> Outcome<f64> {
    let output = Command::new("fio")
        .args(["--name=fio", "--ioengine=io_uring", "--direct=1", "--time_based"])
        .args(["--norandommap", "--randrepeat=0", "--output-format=json"])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--rw={}", cell.rw))
        .arg(format!("--bs={}", cell.bs))
        .arg(format!("--iodepth={}", cell.depth))
        .arg(format!("--runtime={ms}ms"))
        .output()
        .map_err(|error| format!("fio: {error}; install it"))?;
    let way = if cell.rw.writes() { "write" } else { "read" };
    let job = fio_job(&output)?;
    job[way]["iops"].as_f64().ok_or_else(|| format!("fio: no IOPS in {job}").into())
}

const HEAD: [&str; 7] = ["cell", "side", "IOPS", "least", "most", "to fio", "millrace to it"];

fn compare_all(settings: &Settings) -> Outcome<Table> {
    let scratch = Scratch::new(&settings.dir, settings.size_bytes)?;
    let mut table = table(HEAD);
    for cell in &settings.cells {
        let mut sides = vec![Side::Fio, Side::OURS];
        if cell.rw.is_sequential() && cell.depth > 1 {
            sides.extend([Side::ALONE, Side::LONGEST]);
        }
        let found = in_turns(settings.rounds, sides.len(), |index| match sides[index] {
            Side::Fio => fio(&scratch.0, cell, settings.ms),
            Side::Ours(_, limit) => ours(&scratch.0, cell, settings.ms, limit),
        })?;
        for (side, iops) in sides.iter().zip(&found) {
            table.add_row([
                format!("{}/{}k/{}", cell.rw, cell.bs >> 10, cell.depth),
                side.name().to_owned(),
                format!("{:.0}", median(iops.clone())),
                format!("{:.0}", iops.iter().copied().fold(f64::MAX, f64::min)),
                format!("{:.0}", iops.iter().copied().fold(0.0, f64::max)),
                format!("{:.3}", ratio(iops, &found[0])),
                format!("{:.3}", ratio(&found[1], iops)),
            ]);
        }
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    Ok(table)
}

fn main() -> std::process::ExitCode {
    let settings = Settings::parse(std::env::args().skip(1));
    compare::print(settings.and_then(|settings| compare_all(&settings)))
}
