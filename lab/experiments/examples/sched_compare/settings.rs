//! What a user gave: which clients, which schedulers, how often and for how long.
//!
//! Owns the command line and its words; everything is checked before anything is made. Called by
//! main.rs; cells and pairs of schedulers are the table's rows, too.

use std::fmt;
use std::path::PathBuf;

use millrace_drives::size_bytes;
use millrace_experiments::Rw;

use crate::compare::Outcome;

const USAGE: &str = "\
usage: sched_compare [OPTIONS] --dir DIR

  --dir DIR       a folder on the store to be measured; a file is made there, and removed at the end
  --millrace target/release/millrace   the program that is compared
  --size 1g       bytes of the file
  --schedulers none/none,mq-deadline/deadline,bfq/fair,kyber/latency
                  the kernel's scheduler / ours, side by side
  --cells CELLS   what is measured, with commas between; a cell is one client, or several at the
                  same time with + between; a client is kind/block/depth or kind/block/depth/weight:
                  randread/4k/1+randwrite/128k/256 is a reader beside a writer
  --target-us 1000   the latency target of clients of depth 1, p99, with our latency; and kyber's
                  read_lat_nsec
  --drive LINE    a line for our [[drive]], as of `millrace-lab bench --calibrate`; may be repeated
  --rounds 3      runs of each scheduler in each cell
  --seconds 3     measured length of a run
  --ramp 1        seconds before that, which are not measured
  --json          every run's figures, instead of the table

example, as root:
  cargo build --release --bin millrace
  cargo run --release -p millrace-experiments --example sched_compare -- --dir /var/tmp";

/// Small readers, writers and deep readers alone, then beside each other.
const CELLS: &str = "randread/4k/1,randwrite/128k/32,randwrite/128k/256,\
    randread/4k/1+randwrite/128k/32,randread/4k/1+randwrite/128k/256,\
    randread/4k/4,randread/4k/128,randread/4k/4+randread/4k/128,\
    randread/4k/32,randread/4k/32/100+randread/4k/32/400";

/// One of fio's jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub rw: Rw,
    pub bs_bytes: u64,
    pub depth: u32,
    /// 1 to 1000: what both sides can be told.
    pub weight: u32,
}

impl Client {
    fn parse(text: &str) -> Outcome<Client> {
        let wrong = || format!("{text}: kind/block/depth or kind/block/depth/weight");
        let (rw, bs, depth, weight) = match text.split('/').collect::<Vec<_>>()[..] {
            [rw, bs, depth] => (rw, bs, depth, "100"),
            [rw, bs, depth, weight] => (rw, bs, depth, weight),
            _ => return Err(wrong().into()),
        };
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let numbers = size_bytes(bs).ok().zip(number(depth)).zip(number(weight));
        let ((bs_bytes, depth), weight) = numbers.ok_or_else(wrong)?;
        if weight > 1000 {
            return Err(format!("{text}: weight {weight}: bfq has 1 to 1000").into());
        }
        Ok(Client { rw: rw.parse()?, bs_bytes, depth, weight })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}k/{}", self.rw, self.bs_bytes >> 10, self.depth)?;
        if self.weight == 100 { Ok(()) } else { write!(f, "/{}", self.weight) }
    }
}

/// Clients at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub clients: Vec<Client>,
}

impl Cell {
    /// Whether a scheduler has to know weights to do as the cell asks.
    pub fn has_weights(&self) -> bool {
        self.clients.iter().any(|client| client.weight != self.clients[0].weight)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.clients.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("+"))
    }
}

fn cells(text: &str) -> Outcome<Vec<Cell>> {
    let cell = |text: &str| {
        let clients = text.split('+').map(Client::parse).collect::<Outcome<_>>()?;
        Ok(Cell { clients })
    };
    text.split(',').map(cell).collect()
}

/// Schedulers that are compared with each other.
#[derive(Debug, Clone)]
pub struct Pair {
    pub kernel: String,
    pub ours: String,
}

fn pairs(text: &str) -> Outcome<Vec<Pair>> {
    let pair = |text: &str| {
        let names = text.split_once('/').ok_or_else(|| format!("{text}: KERNEL/OURS"))?;
        Ok(Pair { kernel: names.0.to_owned(), ours: names.1.to_owned() })
    };
    text.split(',').map(pair).collect()
}

/// What is measured, and how often.
#[derive(Debug)]
pub struct Settings {
    pub dir: PathBuf,
    pub millrace: String,
    pub size_bytes: u64,
    pub pairs: Vec<Pair>,
    pub cells: Vec<Cell>,
    pub target_us: u32,
    pub drive_lines: String,
    pub rounds: usize,
    pub seconds: u64,
    pub ramp_s: u64,
    pub is_json: bool,
}

impl Settings {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Settings> {
        let mut settings = Settings {
            dir: PathBuf::new(),
            millrace: "target/release/millrace".to_owned(),
            size_bytes: 1 << 30,
            pairs: pairs("none/none,mq-deadline/deadline,bfq/fair,kyber/latency")?,
            cells: cells(CELLS)?,
            target_us: 1000,
            drive_lines: String::new(),
            rounds: 3,
            seconds: 3,
            ramp_s: 1,
            is_json: false,
        };
        while let Some(key) = arguments.next() {
            if key == "--json" {
                settings.is_json = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{key}: no value\n{USAGE}"))?;
            settings.set(&key, &value).map_err(|error| format!("{key} {value}: {error}"))?;
        }
        if !settings.dir.is_dir() {
            return Err(USAGE.into());
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Outcome<()> {
        match key {
            "--dir" => self.dir = value.into(),
            "--millrace" => value.clone_into(&mut self.millrace),
            "--size" => self.size_bytes = size_bytes(value)?,
            "--schedulers" => self.pairs = pairs(value)?,
            "--cells" => self.cells = cells(value)?,
            "--target-us" => self.target_us = value.parse()?,
            "--drive" => self.drive_lines += &format!("{value}\n"),
            "--rounds" => self.rounds = value.parse::<usize>()?.max(1),
            "--seconds" => self.seconds = value.parse::<u64>()?.max(1),
            "--ramp" => self.ramp_s = value.parse::<u64>()?.max(1),
            _ => return Err(format!("unknown\n{USAGE}").into()),
        }
        Ok(())
    }
}
