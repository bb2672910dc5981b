//! Arguments of `millrace-lab bench`, named as in fio.
//!
//! Parsed by clap and read by plan.rs. `bench` measures each value of a comma-separated list. If
//! several arguments have lists, `bench` measures each combination of values.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgGroup, Args};
use millrace::{
    CacheConfig, ControllerConfig, Layout, SchedulerKind, Serving, ServingConfig, Spec, Spread,
    Stack, Stamp,
};
use millrace_block::baseline::Inside;
use millrace_block::{TRACE_RING_EVENTS, TraceStamp};
use millrace_clients::vhost::Wait;
use millrace_console::words::{duration, size, whole, word};
use millrace_drives::controller_config;
use millrace_experiments::Rw;
use millrace_experiments::simulation::{InterfaceKind, Irq, KernelKind};
use millrace_reactor::Backend;

use super::beside_args::BesideArgs;
use super::connect::Server;
use super::contention::ContentionArgs;
use super::jobfile_args::{JobFileArgs, OutputFormat};
use super::linux24::Linux24Args;
use super::program_args::ProgramArgs;
use super::row_flags::rows_only;
use super::vm::words::VmArgs;

const EXAMPLES: &str = "\
Examples:
  millrace-lab bench
      the designs mq, sq and raw on a drive that does nothing, at depth 1 and 32, on 1, 2, ... CPUs
  millrace-lab bench --drive file:path=/srv/d0 --rw randread --bs 4k --iodepth 64 --runtime 5
      an existing file through io_uring, for five seconds
  millrace-lab bench --drive file:path=/srv/d0 --rw randrw --rwmixread 70 --size 1g --numjobs 4 \\
      --overwrite
      four threads on the first GiB of a file, 70 % reads; what is there is lost
  millrace-lab bench --drive ram:size=1g --drive ram:size=1g --chunk 4k --rw randwrite --verify
      a stripe of two drives; every block is read back and checked
  millrace-lab bench --controller scu:tags=250 --drive model@scu:preset=520 \\
      --drive model@scu:preset=520
      two modelled SSDs that share the 250 tags of a controller
  millrace-lab bench --connect 'nbd+unix:///vol0?socket=millrace-data/vol0.sock' --numjobs 4
      any NBD server, over four connections
  millrace-lab bench --connect vhost-user:/run/vol0.sock --numjobs 2 --wait events
      any vhost-user-blk server, with a virtqueue for each job, as a virtual machine would have
  millrace-lab bench --drive ram:size=1g --drive ram:size=1g --serving inline,per-drive --states
      two ways to serve the drives of a volume, and what each drive did
  millrace-lab bench --machine e7-2870 --cpus 1,10,20,80 --stack mq,sq --interface libaio --locks
      the block layer on a simulated machine with 80 cores, and what its locks do there
  millrace-lab bench --machine miot --vm baseline --vm mq --vm miot,batching=0 --numjobs 1,8
      a guest of 8 vCPUs on a simulated host, its disk served in three ways
  millrace-lab bench --machine epyc-2x64 --drive model:preset=850evo --scheduler none,deadline \\
      --client iodepth=1 --client rw=randwrite,bs=128k,iodepth=256
      two clients at one modelled SSD, and what each gets with either scheduler
  millrace-lab bench --drive file:path=/tmp/d0,size=1g --bs 4k --trace /tmp/t
      a recording of every step of every I/O; read it with `millrace trace spans /tmp/t`
  millrace-lab bench --jobfile randread.fio --output-format json
      the jobs of one of fio's job files, reported with fio's keys
  millrace-lab bench --program fileserver,untar --serving per-drive,per-volume \\
      --drive model:preset=850evo --drive model:preset=850evo
      programs through a write-back cache on two modelled SSDs, served in two ways
  millrace-lab bench --drive file:path=/srv/d0 --beside 'fio=fio --output-format=json d0.fio'
      fio's job and the same as a row, in turn five times, and their ratio
  millrace-lab bench --calibrate file:path=/srv/new,size=8g
      what a drive does in a second, as keys `cost.*` for its [[drive]]

A run that writes, by --rw, --client, --program, --jobfile or --calibrate, destroys what its target
holds. A target that is not known to be empty, as block devices never are, needs --overwrite.

Ctrl-C ends the run and prints what was measured until then. A second Ctrl-C ends the program at
once.
Exit status: 0 if every I/O succeeded, 1 if one failed, 130 after Ctrl-C.
docs/lab/bench.md explains the columns and the keys of --json.";

/// Maximum number of I/Os of a job, enough for years. The sum over all jobs fits in 64 bits.
const IOS_MAX: u64 = 1 << 50;

/// Arguments that exclude `--connect`, because they apply only to drives that this program opens.
const DRIVES_ONLY: [&str; 8] = [
    "drive",
    "stack",
    "chunk",
    "scheduler",
    "software_queues",
    "hardware_queues",
    "stamp",
    "backend",
];

/// Arguments that exclude `--virtqueue`, because they would have no effect.
const NO_VIRTQUEUE: [&str; 9] =
    ["connect", "machine", "locks", "trace", "serving", "workers", "states", "stamp", "backend"];

/// Arguments that exclude `--calibrate`, because each run of a calibration sets them.
const CALIBRATED: &str = "\
    client drive connect virtqueue chunk stack scheduler software_queues hardware_queues serving \
    workers states rw bs rwmixread ios verify stamp trace locks plug_high plug_low extended";

/// Measure drives, block layer designs and servers.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(flatten, next_help_heading = "Targets")]
    pub target: TargetArgs,
    #[command(flatten, next_help_heading = "Queues of the block layer")]
    pub queues: QueueArgs,
    #[command(flatten, next_help_heading = "Threads that serve drives")]
    pub serving: ServingArgs,
    #[command(flatten, next_help_heading = "Workload")]
    pub workload: WorkloadArgs,
    #[command(flatten, next_help_heading = "Simulated machine")]
    pub machine: MachineArgs,
    #[command(flatten, next_help_heading = "Designs of Linux 2.4")]
    pub history: Linux24Args,
    #[command(flatten, next_help_heading = "Traces")]
    pub trace: TraceArgs,
    #[command(flatten, next_help_heading = "Virtual machines")]
    pub vm: VmArgs,
    #[command(flatten, next_help_heading = "Clients that compete")]
    pub contend: ContentionArgs,
    #[command(flatten, next_help_heading = "Calibration")]
    pub calibrate: CalibrationArgs,
    #[command(flatten, next_help_heading = "Job files of fio")]
    pub jobfile: JobFileArgs,
    #[command(flatten, next_help_heading = "Programs")]
    pub program: ProgramArgs,
    #[command(flatten, next_help_heading = "Other programs")]
    pub beside: BesideArgs,
    #[command(flatten)]
    pub ignored: IgnoredArgs,
}

/// fio's options whose effect is always in force here, or that change nothing. They are accepted
/// and ignored.
#[derive(Debug, Clone, Args)]
pub struct IgnoredArgs {
    /// `--direct` is ignored: drives are always opened for direct I/O where that works.
    #[arg(long, hide = true, value_name = "0|1", value_parser = is_direct)]
    pub direct: Option<String>,
    /// `--buffered` is ignored, like `--direct`.
    #[arg(long, hide = true, value_name = "0|1", value_parser = is_not_buffered)]
    pub buffered: Option<String>,
    /// `--ioengine` is ignored: the driver of a drive decides how I/O is done.
    #[arg(long, hide = true, value_name = "NAME")]
    pub ioengine: Option<String>,
    #[arg(long, hide = true, value_name = "NAME")]
    pub name: Option<String>,
    #[arg(long, hide = true, alias = "group_reporting")]
    pub group_reporting: bool,
    /// `--time_based` is ignored: any `--runtime` is already time-based.
    #[arg(long, hide = true, alias = "time_based")]
    pub time_based: bool,
    /// `--thread` is ignored: jobs are always threads.
    #[arg(long, hide = true)]
    pub thread: bool,
    /// `--randrepeat` is ignored: offsets are the same in each run.
    #[arg(long, hide = true, value_name = "0|1")]
    pub randrepeat: Option<String>,
    /// `--invalidate` is ignored: direct I/O does not use the page cache.
    #[arg(long, hide = true, value_name = "0|1")]
    pub invalidate: Option<String>,
    /// `--eta` is ignored: a progress line is shown only on a terminal.
    #[arg(long, hide = true, value_name = "WHEN")]
    pub eta: Option<String>,
    /// `--norandommap` is ignored: random offsets never depend on which blocks were used before.
    #[arg(long, hide = true)]
    pub norandommap: bool,
    /// `--refill_buffers` is ignored: only drives that compress or deduplicate would notice.
    #[arg(long, hide = true, alias = "refill_buffers")]
    pub refill_buffers: bool,
    /// `--gtod_reduce` is ignored: times are stamped once for each batch of I/Os.
    #[arg(long, hide = true, alias = "gtod_reduce", value_name = "0|1")]
    pub gtod_reduce: Option<String>,
    /// `--fallocate` is ignored: a file that a drive creates is sparse.
    #[arg(long, hide = true, value_name = "MODE")]
    pub fallocate: Option<String>,
    /// `--exitall` is ignored: all jobs have the same `--runtime` or `--ios`.
    #[arg(long, hide = true)]
    pub exitall: bool,
}

fn is_direct(value: &str) -> Result<String, &'static str> {
    match value {
        "1" | "true" => Ok(value.to_owned()),
        _ => Err("drives are opened for direct I/O; for buffered I/O use --jobfile, with direct=0"),
    }
}

fn is_not_buffered(value: &str) -> Result<String, &'static str> {
    is_direct(if value == "0" || value == "false" { "1" } else { "0" })
}

/// Arguments that `bench -h` shows, each with its help text for `-h`. `bench --help` shows all
/// arguments, with their full help texts.
const COMMON: [(&str, &str); 14] = [
    ("drive", "Drive, as DRIVER:KEY=VALUE,... [default: null]"),
    ("connect", "Measure a server: NBD URI or vhost-user:SOCKET"),
    ("overwrite", "Allow a run to destroy what the target holds"),
    ("cache", "Size of a cache over the drives, such as 256m"),
    ("stack", "Block layer designs: mq, sq, raw [default: mq]"),
    ("scheduler", "none, deadline, fair or latency"),
    ("numjobs", "Number of submitting threads"),
    ("rw", "read, write, randread, randwrite or randrw"),
    ("bs", "Bytes of an I/O [default: 512 on null, else 4k]"),
    ("iodepth", "I/Os in flight for each job [default: 32]"),
    ("size", "Only this part of the device, such as 1g"),
    ("runtime", "Length of each measurement [default: 1s]"),
    ("verify", "Read back what was written, and check it"),
    ("json", "Print one JSON array of rows, with fio's keys"),
];

/// Keeps only the common arguments in the short help of `bench`, each on one line.
pub fn with_short_help(bench: clap::Command) -> clap::Command {
    bench.after_help("All arguments, and examples: millrace-lab bench --help").mut_args(|arg| {
        let common = COMMON.into_iter().find(|(id, _)| arg.get_id() == id);
        let Some((_, text)) = common else { return arg.hide_short_help(true) };
        let long = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default();
        arg.long_help(long).help(text)
    })
}

impl BenchArgs {
    /// Returns whether to print JSON instead of tables.
    pub fn json(&self) -> bool {
        self.workload.json || self.jobfile.output_format != OutputFormat::Normal
    }

    /// Returns an error if `--wait` is given without `--connect`, or `--warm-up` without
    /// `--client`. clap does not report the missing flag if the user also gives a flag that
    /// conflicts with it.
    pub fn check_needs(&self) -> Result<()> {
        let (wait, warm_up) = (self.target.wait.is_some(), self.contend.warm_up.is_some());
        let needs = [
            (wait, self.target.connect.is_some(), "--wait", "--connect"),
            (warm_up, !self.contend.client.is_empty(), "--warm-up", "--client"),
        ];
        match needs.into_iter().find(|(given, has, ..)| *given && !has) {
            Some((_, _, flag, other)) => bail!("{flag}: has no effect without {other}"),
            None => Ok(()),
        }
    }
}

/// Flags of recording.
#[derive(Debug, Clone, Args)]
pub struct TraceArgs {
    /// Record every step of every I/O in NAME.blktrace.0, ..., for `millrace trace`, blkparse and
    /// btt; the arguments must select one configuration. With --machine or --locks the warm-up is
    /// recorded, too; with --machine the times are those of the simulated machine, and events that
    /// do not fit the rings are dropped, because the rings are emptied only at the end
    #[arg(long, value_name = "NAME", conflicts_with = "connect")]
    pub trace: Option<PathBuf>,
    /// Number of events for which each thread's ring has room. Usually more events fit, because
    /// events of a batch share data. Events that find the ring full are dropped, and counted
    #[arg(long, value_name = "N", requires = "trace", default_value_t = TRACE_RING_EVENTS as u32)]
    #[arg(value_parser = whole::<u32>(2..=1 << 26))]
    pub trace_ring: u32,
    /// Timestamps of events: batch (one for all events of a batch, or for all events of an I/O with
    /// --stamp io) or event (one for each event). Recording costs 9 ns per I/O with batch, and 50
    /// ns per I/O with event
    #[arg(long, value_name = "WHEN", requires = "trace", default_value = "batch")]
    #[arg(value_parser = word::<TraceStamp>)]
    pub trace_stamp: TraceStamp,
}

/// Flags of calibration.
#[derive(Debug, Clone, Args)]
pub struct CalibrationArgs {
    /// Measure how many I/Os and bytes per second a drive reads and writes, and print the result as
    /// the keys `cost.*` for the drive's [[drive]] section. Schedulers use these costs to share the
    /// drive. The measurement writes to the drive. Flags that apply include --runtime (total time;
    /// 30s by default, 6s with --machine), --iodepth (128 by default), --numjobs, --cpus, --size,
    /// --overwrite and --machine
    #[arg(long, value_name = "DRIVE", conflicts_with_all = rows_only(CALIBRATED))]
    pub calibrate: Option<String>,
}

/// Flags for a simulated machine or for lock statistics. The clap group `laboratory` consists of
/// `--machine` and `--locks`. An argument that requires the group needs at least one of these
/// flags.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("laboratory").args(["machine", "locks"]).multiple(true))]
pub struct MachineArgs {
    /// Run on a simulated machine, in the machine's virtual time: i7-3930k, x5690, x7560, e7-2870,
    /// epyc-2x64, e5-2620, e5-2620-nvme, miot, miot-nvme, p3-8way, or a file that describes a
    /// machine. Works with the drives null, ram and model only
    #[arg(long, value_name = "NAME|FILE.toml")]
    #[arg(conflicts_with_all = ["connect", "verify", "backend"])]
    pub machine: Option<String>,
    /// With --machine or --locks, how programs submit: sync (iodepth 1), libaio, libaio-fixed, ring
    /// [default: ring]
    #[arg(long, value_delimiter = ',', value_name = "KIND", requires = "laboratory")]
    pub interface: Vec<InterfaceKind>,
    /// With --machine or --locks, number of I/Os that a job submits together, as fio's
    /// iodepth_batch_submit [default: all I/Os of the job that are not in flight]
    #[arg(long, value_name = "N", requires = "laboratory")]
    #[arg(value_parser = whole::<u32>(1..=u32::MAX.into()))]
    pub batch: Option<u32>,
    /// With --machine, the CPU that receives the interrupts of drives: submitter (the submitting
    /// CPU), core0 (the first), steered (the first of the queue's socket), poller (the polling CPU)
    #[arg(long, value_name = "WHO", default_value = "submitter", requires = "machine")]
    pub irq: Irq,
    /// With --machine or --locks, number of threads that may dispatch from a hardware queue of
    /// --stack mq at a time. one: a thread that finds the queue busy leaves its I/Os to the
    /// dispatching thread. each: any number of threads, as in the kernel; possible only with drives
    /// that complete I/Os immediately (null, ram) [default: one]
    #[arg(long, value_delimiter = ',', value_name = "WHO", value_parser = word::<Inside>)]
    #[arg(requires = "laboratory")]
    pub inside: Vec<Inside>,
    /// With --machine or --locks, the kernel to simulate, which determines the shared counters.
    /// own: the counters of millrace's block layer and, with --interface libaio, the inode's count
    /// of direct I/Os in flight (i_dio_count). linux-3: also counters of Linux 3.13, as in `paper
    /// systor13`. With --interface sync, linux-3 has i_dio_count, too. With --inside each, linux-3
    /// has counters for each hardware queue, which all CPUs of the queue write
    #[arg(long, value_name = "WHOSE", default_value = "own", requires = "laboratory")]
    #[arg(value_parser = word::<KernelKind>)]
    pub kernel: KernelKind,
    /// Report the statistics of each lock, and of each line of code that takes the lock. `millrace
    /// locks --help` explains the columns. Works with the drives null, ram and model only
    #[arg(long, conflicts_with_all = ["connect", "verify", "backend"])]
    pub locks: bool,
}

/// Flags that select the drives or the server to measure.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    /// A drive, `DRIVER:KEY=VALUE,...`, or `DRIVER@CONTROLLER:...`; several --drive make a stripe
    /// [default: null]
    #[arg(long, value_name = "SPEC")]
    pub drive: Vec<String>,
    /// A controller that drives can name, `NAME:tags=N`: at most N requests are in flight in all
    /// its drives together. `,sharing=drive` allows N for each drive, `,sharing=queue` N for each
    /// hardware queue. `,node=N` is the controller's NUMA node. A drive's own limit is `depth` in
    /// its spec
    #[arg(long, value_name = "CONTROLLER", conflicts_with = "connect")]
    pub controller: Vec<String>,
    /// Measure a server instead of drives: an NBD URI, or vhost-user:SOCKET for a vhost-user-blk
    /// server
    #[arg(long, value_name = "URI", conflicts_with_all = DRIVES_ONLY)]
    pub connect: Option<Server>,
    /// With --connect vhost-user:SOCKET, how jobs learn of completions: poll (each job polls all
    /// the time, and uses a CPU), events (a job sleeps until the server interrupts it) [default:
    /// poll]
    #[arg(long, value_name = "HOW", requires = "connect", value_parser = wait)]
    pub wait: Option<Wait>,
    /// Submit as a virtual machine does, through a virtqueue for each job; guest and device take
    /// turns on the job's thread, so that no second CPU affects the figures
    #[arg(long, conflicts_with_all = NO_VIRTQUEUE)]
    pub virtqueue: bool,
    /// Overwrite the data on a drive or server. Without this flag a run that writes is refused,
    /// unless the target is known to be empty: memory, a new file, a file without data, or a server
    /// or Ceph image that holds only zeroes
    #[arg(long, conflicts_with_all = ["machine", "locks", "vm"])]
    pub overwrite: bool,
    /// Put a cache in memory over the drives: its size, or `size=256m,dirty-max=64m,dirty-age=5s,
    /// read-ahead=512k,mode=write-back|write-through,registered=false|auto|true`. Each measured
    /// configuration begins with an empty cache
    #[arg(long, value_name = "SETTINGS", value_parser = millrace_console::cache::of_text)]
    #[arg(conflicts_with_all = ["connect", "machine", "locks", "virtqueue", "client", "calibrate"])]
    pub cache: Option<CacheConfig>,
    /// Chunk size in bytes of a stripe of several --drive, as in RAID 0 [default: 64k]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub chunk: Option<u64>,
    /// Backend in which I/O threads sleep: io_uring, epoll, or auto (io_uring where the kernel
    /// allows it)
    #[arg(long, default_value = "auto", value_parser = word::<Backend>)]
    pub backend: Backend,
}

/// Flags for block layer designs, queues and threads.
#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    /// Designs of the block layer: mq (a queue pair for each thread), sq (one queue for all
    /// threads), raw (no queue) [default: mq; if no arguments are given, mq,sq,raw]
    #[arg(long, value_delimiter = ',', value_parser = word::<Stack>)]
    pub stack: Vec<Stack>,
    /// Schedulers of the drives: none (first come, first served), deadline (by sector and by age,
    /// one lock for a drive), fair (shares by weights of groups), latency (latency targets of
    /// groups); deadline, fair and latency need --stack mq
    #[arg(long, value_delimiter = ',', value_parser = word::<SchedulerKind>)]
    #[arg(default_value = "none")]
    pub scheduler: Vec<SchedulerKind>,
    /// Software queues: one for each core, for each NUMA node, or one for all
    #[arg(long, value_delimiter = ',', value_parser = word::<Spread>, default_value = "core")]
    pub software_queues: Vec<Spread>,
    /// Hardware queues: one for each core, for each NUMA node, or one for all
    #[arg(long, value_delimiter = ',', value_parser = word::<Spread>, default_value = "core")]
    pub hardware_queues: Vec<Spread>,
    /// Number of CPUs to use, counted from the first, or `all`; job i runs on the i-th [default:
    /// the kernel places the jobs]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = cpu_count)]
    pub cpus: Vec<u32>,
    /// CPUs to use; job i runs on the i-th of the list
    #[arg(long, value_delimiter = ',', value_name = "CPU", conflicts_with = "cpus")]
    #[arg(value_parser = whole::<u32>(0..=65_535))]
    pub cpu_list: Vec<u32>,
    /// Number of submitting threads [default: one for each CPU of --cpus or --cpu-list, otherwise
    /// 1; if no arguments are given, 1, 2, 4 and so on, up to the number of CPUs]
    #[arg(long, visible_alias = "jobs", value_delimiter = ',', value_name = "N")]
    #[arg(value_parser = whole::<u32>(1..=4096))]
    pub numjobs: Vec<u32>,
}

/// Flags for the threads that serve the drives of a volume.
#[derive(Debug, Clone, Args)]
pub struct ServingArgs {
    /// Threads that serve a volume's drives. inline: the submitting thread. per-drive: a worker
    /// thread for each drive. per-volume: the submitting threads, one at a time, from one request
    /// list for all drives. auto: inline or per-drive, whichever measures faster. All modes except
    /// inline need --stack mq. A single drive has no worker [default: auto for several drives with
    /// --stack mq, otherwise inline]
    #[arg(long, value_delimiter = ',', value_name = "MODE", value_parser = word::<Serving>)]
    #[arg(conflicts_with = "connect")]
    pub serving: Vec<Serving>,
    /// CPUs of the drives' workers, such as 1-4,7; each drive gets the next one [default: CPUs
    /// without a job, or all but the first; none on a machine with one CPU]
    #[arg(long, value_delimiter = ',', value_name = "CPUS", conflicts_with = "connect")]
    pub workers: Vec<CpuRange>,
    /// High watermark: a batch starts by itself when it has this number of I/Os per drive
    /// [default: 32]
    #[arg(long, value_name = "N", conflicts_with = "connect")]
    #[arg(value_parser = whole::<u32>(0..=65_536))]
    pub plug_high: Option<u32>,
    /// Low watermark: a batch with fewer I/Os per drive is served by the submitting thread itself
    /// [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "connect")]
    #[arg(value_parser = whole::<u32>(0..=65_536))]
    pub plug_low: Option<u32>,
    /// Also report, for each drive, how many I/Os were split, merged, dispatched and so on, and how
    /// long they took in the block layer and in the device
    #[arg(long, conflicts_with = "connect")]
    pub states: bool,
}

impl ServingArgs {
    /// Returns one configuration for each serving mode of `--serving`. Without `--serving`, returns
    /// one configuration for `mode`.
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

/// A range of CPUs: its first and its last CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuRange(pub u32, pub u32);

impl FromStr for CpuRange {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = first.parse().ok().zip(last.parse().ok()).map(|(a, b)| CpuRange(a, b));
        range
            .filter(|range| range.0 <= range.1)
            .ok_or_else(|| "write CPUs such as 1-4,7".to_owned())
    }
}

/// Flags of each job's workload.
#[derive(Debug, Clone, Args)]
pub struct WorkloadArgs {
    /// Kinds of I/O: read, write, randread, randwrite, randrw
    #[arg(long, alias = "readwrite", value_delimiter = ',', default_value = "randread")]
    pub rw: Vec<Rw>,
    /// Size of an I/O in bytes, with k or m [default: 512 on null, else 4k]
    #[arg(long, alias = "blocksize", value_delimiter = ',', value_name = "SIZE")]
    pub bs: Vec<String>,
    /// Share of reads in randrw, in percent [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = whole::<u8>(0..=100))]
    pub rwmixread: Option<u8>,
    /// Use only this part at the start of the device, such as 1g [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    #[arg(conflicts_with_all = ["machine", "locks"])]
    pub size: Option<u64>,
    /// Number of I/Os in flight for each job [default: 32; if no arguments are given, 1,32]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = whole::<u32>(1..=65_536))]
    pub iodepth: Vec<u32>,
    /// Length of each measurement: 5 (seconds), 500ms or 2m [default: 1s; on a simulated machine 20
    /// x iodepth I/Os per job, after a warm-up of 5 x iodepth]
    #[arg(long, value_parser = duration)]
    pub runtime: Option<Duration>,
    /// Stop each job after this number of I/Os, not after a time. With --machine or --locks, the
    /// I/Os of the warm-up are not counted
    #[arg(long, value_name = "N", conflicts_with = "runtime")]
    #[arg(value_parser = whole::<u64>(1..=IOS_MAX))]
    pub ios: Option<u64>,
    /// When timestamps are taken: batch (once for all I/Os of a batch), io (for each I/O)
    #[arg(long, value_delimiter = ',', value_parser = word::<Stamp>, default_value = "batch")]
    pub stamp: Vec<Stamp>,
    /// Write a pattern, read every block back and check it
    #[arg(long)]
    pub verify: bool,
    /// Seed of the random offsets, and of the simulation
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Print all columns; without it, those that fit 80 characters
    #[arg(short = 'x', long)]
    pub extended: bool,
    /// Print one JSON array of rows, with fio's keys where fio has them
    #[arg(long)]
    pub json: bool,
}

impl WorkloadArgs {
    /// Returns the kinds of I/O, with the share of reads that was requested.
    pub fn kinds(&self) -> Result<Vec<Rw>> {
        let Some(read_percent) = self.rwmixread else { return Ok(self.rw.clone()) };
        if !self.rw.contains(&Rw::HALF) {
            bail!("--rwmixread {read_percent}: only randrw has a share of reads; add --rw randrw");
        }
        let mixed = |rw: &Rw| if *rw == Rw::HALF { Rw::RandRw { read_percent } } else { *rw };
        Ok(self.rw.iter().map(mixed).collect())
    }
}

impl TargetArgs {
    /// Returns the drives of `--drive`, or the null drive. For rbd drives,
    /// `writethrough-until-flush` is off by default, as in fio. librbd's cache then writes back
    /// from the start, not only after the first flush.
    pub fn drives(&self) -> Result<Vec<Spec>> {
        if self.drive.is_empty() {
            return Ok(vec![Spec::from_str("null")?]);
        }
        let parse = |text: &String| {
            let mut drive: Spec = text.parse().with_context(|| format!("--drive {text}"))?;
            drive.set_default("writethrough-until-flush", "off");
            Ok(drive)
        };
        self.drive.iter().map(parse).collect()
    }

    /// Parses `--controller`. Each storage controller needs a unique name, and at least one drive.
    pub fn controllers(&self) -> Result<Vec<ControllerConfig>> {
        let drives = self.drives()?;
        let mut controllers: Vec<ControllerConfig> = Vec::new();
        for text in &self.controller {
            let config = controller_config(text).with_context(|| format!("--controller {text}"))?;
            let name = &config.name;
            if controllers.iter().any(|other| other.name == *name) {
                bail!("--controller {text}: another controller has this name; choose another");
            }
            if !drives.iter().any(|drive| drive.controller.as_ref() == Some(name)) {
                bail!("--controller {text}: no drive names it; write --drive DRIVER@{name}:...");
            }
            controllers.push(config);
        }
        Ok(controllers)
    }

    pub fn layout(&self) -> Layout {
        match self.drive.len() {
            0 | 1 => Layout::Linear,
            _ => Layout::Stripe { chunk_sectors: (self.chunk.unwrap_or(CHUNK) >> 9) as u32 },
        }
    }
}

const CHUNK: u64 = 65_536;

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "poll" => Ok(Wait::Poll),
        "events" => Ok(Wait::Events),
        _ => Err("write poll or events".to_owned()),
    }
}

/// Value of `--cpus` for the word `all`; no machine has this number of CPUs.
pub const ALL_CPUS: u32 = u32::MAX;

fn cpu_count(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(ALL_CPUS),
        text => text.parse().map_err(|_| "write a number, or all".to_owned()),
    }
}
