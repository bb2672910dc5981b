//! Arguments of `millrace-lab replay`.
//!
//! clap parses the arguments, and replay.rs uses them. Arguments that contradict each other, or
//! have no effect together with others, are refused with advice.

use std::time::Duration;

use clap::Args;
use millrace_block::Serving;
use millrace_console::words::{duration, size};
use millrace_console::words::{whole, word};
use millrace_experiments::replay::Fit;
use millrace_experiments::trace::Format;

use super::target::{DeviceMapping, TargetSpec};

const EXAMPLES: &str = "\
Examples:
  millrace-lab replay trace.log --to ram:size=1g
      a trace of any format, at its own times, on memory
  millrace-lab replay sda --to 'nbd+unix:///vol0?socket=millrace-data/vol0.sock' --speed 10x \\
      --overwrite
      blktrace's files sda.blktrace.*, ten times as fast, on a server's export
  millrace-lab replay web.csv.gz --to file:path=/srv/new,size=64g --fit scale \\
      --speed afap --iodepth 64
      as fast as possible with 64 in flight, all addresses shrunk to the size of a new file
  millrace-lab replay t --map 8,0=ram:size=1g --map 8,16=ram:size=4g --to null:
      a volume for each of two devices, and nothing kept of the others
  millrace-lab replay t --to ram:size=1g --to ram:size=1g --chunk 4k --speed afap
      on a stripe of two drives
  millrace-lab replay t --to model:preset=850evo --to model:preset=850evo --serving per-drive \\
      --speed afap --iodepth 128
      each drive of the stripe served by a thread of its own
  millrace-lab replay t --to model:preset=850evo --machine e7-2870
      on a modelled SSD of a simulated machine, in that machine's time
  blkparse -i sda | millrace-lab replay - --to vhost-user:/run/vol0.sock
      from a pipe, to a vhost-user-blk server

A replay writes random bytes wherever the trace writes: a trace has no data. A target that is not
known to be empty, as block devices never are, is written over with --overwrite only. Of a server's
disk, what an NBD server says to be zeroes (block status) is believed, and the rest is read: all of
it up to 64 MiB, else 64 places of 1 MiB, spread evenly.
Times are open loop: an I/O is sent at its time, however long others take, and what could not be
is counted with its lateness. I/Os that overlap keep their order where one of them writes; a flush
is sent when the writes before it have ended.

Ctrl-C ends the replay and prints what was done. Exit status: 0 if every I/O succeeded, 1 if one
failed, 2 if the trace is broken or a target is missing, 130 after Ctrl-C.
docs/lab/replay.md explains the tables and the keys of --json.";

/// Send the I/Os of a trace again.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// Traces: files of any format, names of blktrace's recordings, or - for standard input;
    /// several are merged by time
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<String>,
    /// Target of the I/Os: a drive as `DRIVER:KEY=VALUE,...`, an NBD URI, or vhost-user:SOCKET for
    /// a vhost-user-blk server. If several --to name drives, the drives form a stripe
    #[arg(long, value_name = "TARGET")]
    pub to: Vec<TargetSpec>,
    /// Target of the I/Os of one device of the trace, such as 8,0=ram:size=1g. I/Os of devices
    /// without a --map go to --to. Several --map DEV=DRIVE for the same device make a stripe
    #[arg(long, value_name = "DEV=TARGET")]
    pub map: Vec<DeviceMapping>,
    /// Format of the traces [default: detected]
    #[arg(long, value_name = "NAME")]
    pub format: Option<Format>,
    /// Speed: a factor for the trace's times, such as 1x, 10x or 0.5x; afap (as fast as possible)
    #[arg(long, value_name = "FACTOR", default_value = "1x", value_parser = speed)]
    pub speed: Speed,
    /// Maximum number of I/Os in flight [default: 32 with --speed afap, otherwise 4096; at most 256
    /// on vhost-user]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=65_536))]
    pub iodepth: Option<u32>,
    /// I/Os beyond the target's end: scale (shrink all addresses by the ratio of the trace's extent
    /// to the target's size), wrap (start again at 0), skip (leave them out) [default: an error]
    #[arg(long, value_name = "HOW")]
    pub fit: Option<Fit>,
    /// With --fit scale, the size of the traced device [default: found by reading the trace once in
    /// advance]
    #[arg(long, value_name = "SIZE", requires = "fit", value_parser = size)]
    pub trace_size: Option<u64>,
    #[command(flatten)]
    pub stripe: StripeArgs,
    /// Overwrite the data on a file, device or server
    #[arg(long, conflicts_with = "machine")]
    pub overwrite: bool,
    /// Replay on a simulated machine, in the machine's virtual time: a name as for `millrace-lab
    /// bench --machine`, or a file that describes a machine. Works with the drives null, ram and
    /// model only
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub machine: Option<String>,
    /// End after this time: 5 (seconds), 500ms or 2m
    #[arg(long, value_parser = duration)]
    pub runtime: Option<Duration>,
    /// End after this number of I/Os of the trace
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=u64::MAX))]
    pub limit: Option<u64>,
    /// Seed of the bytes that are written, and of the simulation
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Flags for stripes: volumes of several drives.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct StripeArgs {
    /// Chunk size in bytes of a stripe, as in RAID 0 [default: 64k]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub chunk: Option<u64>,
    /// Threads that serve a stripe's drives. inline: the replaying thread. per-drive: a worker
    /// thread for each drive, if a batch has at least 16 I/Os per drive; use an --iodepth of more
    /// than 16 per drive. per-volume: one thread at a time, from a list of all drives' I/Os, as in
    /// Linux's md. auto: inline or per-drive, whichever measures faster [default: inline]
    #[arg(long, value_name = "MODE", value_parser = word::<Serving>)]
    pub serving: Option<Serving>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// The I/Os are sent at the trace's times divided by this factor.
    Factor(f64),
    Afap,
}

const FACTORS: std::ops::RangeInclusive<f64> = 1e-6..=1e9;

fn speed(text: &str) -> Result<Speed, String> {
    let wrong =
        || "write a factor such as 1x, 10x or 0.5x, or afap (as fast as possible)".to_owned();
    if text == "afap" {
        return Ok(Speed::Afap);
    }
    let number = text.strip_suffix('x').ok_or_else(wrong)?;
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let factor = number.parse().ok().filter(|factor| FACTORS.contains(factor));
    factor.map(Speed::Factor).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_a_factor_with_an_x_or_afap() {
        assert_eq!(speed("1x"), Ok(Speed::Factor(1.0)));
        assert_eq!(speed("0.5x"), Ok(Speed::Factor(0.5)));
        assert_eq!(speed("afap"), Ok(Speed::Afap));
        for text in ["", "x", "1", "0x", "-1x", "infx", "1e3x", "fast"] {
            assert!(speed(text).unwrap_err().contains("0.5x"), "{text}");
        }
    }
}
