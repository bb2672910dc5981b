//! Arguments of `millrace bench`, in fio's words.
//!
//! Parsed by clap, read by plan.rs. A comma list makes a row for each value (and for each
//! combination of several lists).

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use millrace::{ControllerConfig, Layout, Serving, ServingConfig, Spec, Spread, Stack, Stamp};
use millrace_block::{TRACE_RING_EVENTS, TraceStamp};
use millrace_drives::controller_config;
use millrace_exports::vhost_client::Wait;
use millrace_lab::Rw;
use millrace_lab::sim::{InterfaceKind, Irq};
use millrace_reactor::Backend;

use super::connect::Server;
use crate::config::words::whole;

const EXAMPLES: &str = "\
Examples:
  millrace bench
      mq, sq and raw on the null drive, depth 1 and 32, on each core count
  millrace bench --drive file:path=/srv/d0,size=4g --rw randread --bs 4k --iodepth 64
      one file with io_uring
  millrace bench --drive ram:size=1g --drive ram:size=1g --chunk 4k --rw randwrite --verify
      a stripe of two, every block read back and checked
  millrace bench --controller scu:tags=250 --drive model@scu:preset=520 --drive model@scu:preset=520
      drives that share the 250 tags of a controller
  millrace bench --connect 'nbd+unix:///vol0?socket=millrace-data/vol0.sock' --jobs 4 --iodepth 32
      any NBD server
  millrace bench --connect vhost-user:/run/vol0.sock --jobs 2 --iodepth 32 --wait events
      any vhost-user-blk server, with a virtqueue for each job, as a virtual machine would have
  millrace bench --drive ram:size=1g --drive ram:size=1g --serving inline,per-drive --states
      who serves a volume's drives, and what each of them did
  millrace bench --machine e7-2870 --cpus 1,10,20,80 --stack mq,sq --interface libaio --locks
      the same code on 80 cores that are simulated, and what its locks do there
  millrace bench --drive file:path=/tmp/d0,size=1g --bs 4k --trace /tmp/t
      every step of every I/O, recorded; then: millrace trace spans /tmp/t";

/// Measure drives, stacks and servers.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub queues: QueueArgs,
    #[command(flatten)]
    pub serving: ServingArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// What is recorded.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Record every step of every I/O of the row into NAME.blktrace.0, ..., for `millrace trace`,
    /// blkparse and btt
    #[arg(long, value_name = "NAME", conflicts_with_all = ["connect", "machine", "locks"])]
    pub trace: Option<PathBuf>,
    /// Events that fit each thread's ring; what finds it full is counted as dropped
    #[arg(long, value_name = "N", requires = "trace", default_value_t = TRACE_RING_EVENTS as u32)]
    #[arg(value_parser = whole::<u32>(2..=1 << 26))]
    pub trace_ring: u32,
    /// Which time events have: batch (that of their batch, or of their I/O with --stamp io), event
    /// (each its own: 50 ns an I/O where those of batches take 9)
    #[arg(long, value_name = "WHEN", requires = "trace", default_value = "batch")]
    #[arg(value_parser = word::<TraceStamp>)]
    pub trace_stamp: TraceStamp,
}

/// Where it runs, if not plainly here.
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Run on a simulated machine, in its own time: i7-3930k, x5690, x7560, e7-2870, epyc-2x64,
    /// e5-2620, e5-2620-nvme, miot, miot-nvme, or a file; drives null, ram and model
    #[arg(long, value_name = "NAME|FILE.toml")]
    #[arg(conflicts_with_all = ["connect", "verify", "backend"])]
    pub machine: Option<String>,
    /// With --machine or --locks, how programs submit: sync (iodepth 1), libaio, libaio-fixed, ring
    /// [default: ring]
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    pub interface: Vec<InterfaceKind>,
    /// I/Os that go in at once, as fio's iodepth_batch_submit [default: all that are free]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = whole::<u32>(1..=u32::MAX.into()))]
    pub batch: Option<u32>,
    /// Who takes interrupts of drives that complete later: submitter, core0, steered, poller
    #[arg(long, value_name = "WHO", default_value = "submitter", requires = "machine")]
    pub irq: Irq,
    /// Report what each lock did, by place: taken, rejected, waits, holds; `millrace locks --help`
    /// says how each column is defined. Drives null, ram, model
    #[arg(long, conflicts_with_all = ["connect", "verify"])]
    pub locks: bool,
}

/// What is measured.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// A drive, `driver:key=value,...`, or `driver@controller:...`; several make a stripe [default:
    /// null]
    #[arg(long, value_name = "SPEC")]
    pub drive: Vec<String>,
    /// A controller for drives to name, `NAME:tags=N`, and perhaps `,sharing=` queue (each hardware
    /// queue has N), drive (each drive) or controller (all its drives together; the default), and
    /// `,node=N`, its NUMA node. For a drive's own limit there is `depth` in its spec
    #[arg(long, value_name = "CONTROLLER", conflicts_with = "connect")]
    pub controller: Vec<String>,
    /// Be a client of a server instead: NBD by URI, or vhost-user:SOCKET, a vhost-user-blk server
    #[arg(long, value_name = "URI", conflicts_with_all = ["drive", "stack", "chunk"])]
    pub connect: Option<Server>,
    /// With --connect vhost-user:SOCKET, how jobs learn of completions: poll (they look, and use a
    /// CPU each), events (they sleep until the server interrupts) [default: poll]
    #[arg(long, value_name = "HOW", requires = "connect", value_parser = word::<Wait>)]
    pub wait: Option<Wait>,
    /// Submit as a guest does, through a virtqueue of the vhost-user-blk device for each job; guest
    /// and device take turns on the job's thread, so that no other core is in the figures
    #[arg(long, conflicts_with_all = ["connect", "machine", "locks", "trace"])]
    pub virtqueue: bool,
    /// Chunk of the stripe
    #[arg(long, default_value = "64k", value_name = "SIZE", value_parser = size)]
    pub chunk: u64,
    /// Ring of the I/O threads: auto, io_uring, epoll
    #[arg(long, default_value = "auto", value_parser = word::<Backend>)]
    pub backend: Backend,
}

/// Designs, queues and threads.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// Designs: mq, sq, raw [default: mq; all three without arguments]
    #[arg(long, value_delimiter = ',', value_parser = word::<Stack>)]
    pub stack: Vec<Stack>,
    /// Software queues: core, node, one
    #[arg(long, value_delimiter = ',', value_parser = word::<Spread>, default_value = "core")]
    pub software_queues: Vec<Spread>,
    /// Hardware queues: core, node, one
    #[arg(long, value_delimiter = ',', value_parser = word::<Spread>, default_value = "core")]
    pub hardware_queues: Vec<Spread>,
    /// How many CPUs, the first ones, or `all` [default: as many as jobs, at most all]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = cpu_count)]
    pub cpus: Vec<u32>,
    /// Which CPUs; job i runs on the i-th of them
    #[arg(long, value_delimiter = ',', value_name = "CPU", conflicts_with = "cpus")]
    #[arg(value_parser = whole::<u32>(0..=65_535))]
    pub cpu_list: Vec<u32>,
    /// Submitting threads [default: as many as CPUs, or 1]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = whole::<u32>(1..=4096))]
    pub jobs: Vec<u32>,
}

/// Who serves the drives of a volume.
#[derive(Debug, Args)]
pub struct ServingArgs {
    /// Who serves a volume's drives: inline (who submits), per-drive (a worker for each drive),
    /// per-volume (one list for all, as Linux does), auto (inline or per-drive, whichever is
    /// faster); all but inline with --stack mq. One drive alone gets no worker [default: auto, for
    /// several drives with --stack mq]
    #[arg(long, value_delimiter = ',', value_name = "MODE", value_parser = word::<Serving>)]
    #[arg(conflicts_with = "connect")]
    pub serving: Vec<Serving>,
    /// CPUs of the drives' workers, such as 1-4,7; drives are dealt out to them in turn [default:
    /// those that no job runs on, or all but the first; none on a machine of one CPU]
    #[arg(long, value_delimiter = ',', value_name = "CPUS", conflicts_with = "connect")]
    pub workers: Vec<CpuRange>,
    /// High watermark: I/Os for each drive at which a batch starts by itself [default: 32]
    #[arg(long, value_name = "N", conflicts_with = "connect")]
    #[arg(value_parser = whole::<u32>(0..=65_536))]
    pub plug_high: Option<u32>,
    /// Low watermark: batches with fewer I/Os for each drive are served by who submits [default:
    /// 16]
    #[arg(long, value_name = "N", conflicts_with = "connect")]
    #[arg(value_parser = whole::<u32>(0..=65_536))]
    pub plug_low: Option<u32>,
    /// After the rows: how many I/Os of each drive passed each state, and how long they took in the
    /// stack and in the device
    #[arg(long, conflicts_with = "connect")]
    pub states: bool,
}

impl ServingArgs {
    /// The settings of each mode asked for, or of `mode` if none is.
    pub fn configs(&self, mode: Serving) -> Result<Vec<ServingConfig>> {
        let default = ServingConfig::default();
        let plug_high = self.plug_high.unwrap_or(default.plug_high);
        let plug_low = self.plug_low.unwrap_or(default.plug_low.min(plug_high));
        let modes = match self.serving.as_slice() {
            [] => &[mode],
            given => given,
        };
        let config = |serving: &Serving| {
            let config = ServingConfig { serving: *serving, plug_high, plug_low, ..default };
            config.validate().map(|()| config).map_err(|text| anyhow!("--{text}"))
        };
        modes.iter().map(config).collect()
    }
}

/// A CPU, or those from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRange(pub u32, pub u32);

impl FromStr for CpuRange {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = first.parse().ok().zip(last.parse().ok()).map(|(a, b)| CpuRange(a, b));
        range.filter(|range| range.0 <= range.1).ok_or_else(|| "CPUs such as 1-4,7".to_owned())
    }
}

/// What each job does.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// read, write, randread, randwrite, randrw
    #[arg(long, value_delimiter = ',', default_value = "randread")]
    pub rw: Vec<Rw>,
    /// Bytes of one I/O, with k or m [default: 512 on null, else 4k]
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    pub bs: Vec<String>,
    /// I/Os in flight for each job [default: 32; 1 and 32 without arguments]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = whole::<u32>(1..=65_536))]
    pub iodepth: Vec<u32>,
    /// How long each row runs, such as 3s or 500ms [default: 1s; on a simulated machine 20 rounds
    /// of what is in flight, after a warm-up of 5]
    #[arg(long, value_parser = duration)]
    pub runtime: Option<Duration>,
    /// Stop each job after so many I/Os instead; on a simulated machine, not counting the warm-up
    #[arg(long, value_name = "N", conflicts_with = "runtime")]
    #[arg(value_parser = whole::<u64>(1..=u64::MAX))]
    pub ios: Option<u64>,
    /// When times are taken: batch (once a batch), io (for every I/O)
    #[arg(long, value_delimiter = ',', value_parser = word::<Stamp>, default_value = "batch")]
    pub stamp: Vec<Stamp>,
    /// Write a pattern, read it back and check it
    #[arg(long)]
    pub verify: bool,
    /// Seed of the random offsets, and of the simulation
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Print one JSON array of rows
    #[arg(long)]
    pub json: bool,
}

impl TargetArgs {
    /// The drives named, or the null drive.
    pub fn drives(&self) -> Result<Vec<Spec>> {
        if self.drive.is_empty() {
            return Ok(vec![Spec::from_str("null")?]);
        }
        let parse = |text: &String| text.parse().with_context(|| format!("--drive {text}"));
        self.drive.iter().map(parse).collect()
    }

    /// The controllers given, each with a name of its own and a drive that names it.
    pub fn controllers(&self) -> Result<Vec<ControllerConfig>> {
        let drives = self.drives()?;
        let mut controllers: Vec<ControllerConfig> = Vec::new();
        for text in &self.controller {
            let config = controller_config(text).with_context(|| format!("--controller {text}"))?;
            let name = &config.name;
            if controllers.iter().any(|other| other.name == *name) {
                bail!("--controller {text}: there is one of this name; choose another");
            }
            if !drives.iter().any(|drive| drive.controller.as_ref() == Some(name)) {
                bail!("--controller {text}: no drive names it; write --drive DRIVER@{name}:...");
            }
            controllers.push(config);
        }
        Ok(controllers)
    }

    /// How several drives are joined.
    pub fn layout(&self) -> Layout {
        match self.drive.len() {
            0 | 1 => Layout::Linear,
            _ => Layout::Stripe { chunk_sectors: (self.chunk >> 9) as u32 },
        }
    }
}

/// Words of a setting, each with its value.
pub trait Words: Copy + PartialEq + Sized + 'static {
    /// All of them.
    const WORDS: &'static [(Self, &'static str)];
}

impl Words for Stack {
    const WORDS: &'static [(Stack, &'static str)] =
        &[(Stack::Mq, "mq"), (Stack::Sq, "sq"), (Stack::Raw, "raw")];
}

impl Words for Spread {
    const WORDS: &'static [(Spread, &'static str)] =
        &[(Spread::Core, "core"), (Spread::Node, "node"), (Spread::One, "one")];
}

impl Words for TraceStamp {
    const WORDS: &'static [(TraceStamp, &'static str)] =
        &[(TraceStamp::Batch, "batch"), (TraceStamp::Event, "event")];
}

impl Words for Stamp {
    const WORDS: &'static [(Stamp, &'static str)] = &[(Stamp::Batch, "batch"), (Stamp::Io, "io")];
}

impl Words for Wait {
    const WORDS: &'static [(Wait, &'static str)] =
        &[(Wait::Poll, "poll"), (Wait::Events, "events")];
}

impl Words for Serving {
    const WORDS: &'static [(Serving, &'static str)] = &Serving::NAMES;
}

impl Words for Backend {
    const WORDS: &'static [(Backend, &'static str)] =
        &[(Backend::Auto, "auto"), (Backend::Uring, "io_uring"), (Backend::Epoll, "epoll")];
}

/// The word of a value.
pub fn name_of<T: Words>(value: T) -> &'static str {
    T::WORDS.iter().find(|(known, _)| *known == value).map_or("?", |(_, name)| name)
}

fn word<T: Words>(text: &str) -> Result<T, String> {
    let found = T::WORDS.iter().find(|(_, name)| *name == text);
    let names: Vec<&str> = T::WORDS.iter().map(|(_, name)| *name).collect();
    found.map(|(value, _)| *value).ok_or_else(|| format!("one of {}", names.join(", ")))
}

/// What `--cpus all` stands for.
pub const ALL_CPUS: u32 = u32::MAX;

fn cpu_count(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(ALL_CPUS),
        text => text.parse().map_err(|_| "a number, or all".to_owned()),
    }
}

/// A size such as `512`, `4k` or `1m`.
pub fn size(text: &str) -> Result<u64, String> {
    millrace_drives::size_bytes(text).ok_or_else(|| "a size such as 512, 4k or 1m".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let ns = millrace_drives::time_ns(text).filter(|ns| *ns > 0);
    ns.map(Duration::from_nanos).ok_or_else(|| "a time such as 3s or 500ms".to_owned())
}
