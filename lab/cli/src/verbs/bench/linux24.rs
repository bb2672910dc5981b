//! Flags of `bench` for raw I/O as in Linux 2.4, for comparisons with old results. Not meant for
//! other measurements.
//!
//! clap parses the flags, and machine.rs measures the configurations; a list of values creates a
//! configuration for each value. This file also refuses flags that have no effect with the given
//! stack or drives.

use anyhow::{Result, bail};
use clap::Args;
use millrace::{Spec, Stack, Words};
use millrace_console::words::{size, whole, word};
use millrace_experiments::simulation::{Linux24, LockScope, Readv};

/// Flags for raw I/O as in Linux 2.4.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Raw I/O as in Linux 2.4 (with --machine or --locks)")]
pub struct Linux24Args {
    /// Size in bytes of the buffer heads into which each I/O is split: 512, page (4096) or whole
    /// (no split; with --iovecs, one buffer head for each element). Needs --iodepth 1. Latencies
    /// are those of whole I/Os
    #[arg(long, value_delimiter = ',', value_name = "UNIT", value_parser = unit)]
    #[arg(requires = "laboratory")]
    pub unit: Vec<Unit>,
    /// Number of elements of each I/O's vector, for --iodepth 1
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = whole::<u32>(1..=1024))]
    #[arg(requires = "laboratory")]
    pub iovecs: Vec<u32>,
    /// With --iovecs, how a vector is executed: whole (as one I/O), serial (its elements one after
    /// the other) [default: whole]
    #[arg(long, value_delimiter = ',', value_name = "HOW", value_parser = word::<Readv>)]
    #[arg(requires = "iovecs")]
    pub readv: Vec<Readv>,
    /// Copy the data of each I/O through a bounce buffer: always or never. Needs --iodepth 1. On a
    /// simulated machine a copy takes the time that Linux 2.4 needed on a Pentium III [default:
    /// never]
    #[arg(long, value_delimiter = ',', value_name = "WHEN", value_parser = either(["never", "always"]))]
    #[arg(requires = "laboratory")]
    pub bounce: Vec<bool>,
    /// Scope of the lock of --stack sq: queue (one lock for each drive), adapter (one lock for each
    /// controller), global (one lock for all drives). With adapter, every drive must name its
    /// controller, as DRIVER@NAME, or with the key `controller` of a model drive [default: queue]
    #[arg(long, value_delimiter = ',', value_name = "SCOPE", value_parser = word::<LockScope>)]
    #[arg(requires = "laboratory")]
    pub request_lock: Vec<LockScope>,
    /// List in which the bios of a batch wait with --stack sq: task (a list of the submitting
    /// thread, as since Linux 2.6.39) or queue (a list of the request queue, under the queue's
    /// lock, as in earlier kernels) [default: task]
    #[arg(long, value_delimiter = ',', value_name = "WHERE")]
    #[arg(value_parser = either(["task", "queue"]), requires = "laboratory")]
    pub queue_plug: Vec<bool>,
    /// Number of bytes of memory that each job fills and keeps, as Linux 2.4 keeps a kiobuf for an
    /// open drive. A kiobuf had 8792 bytes, in later versions 608. The time to fill the memory is
    /// not measured. Needs --unit, --iovecs or --bounce always [default: 0]
    #[arg(long, value_delimiter = ',', value_name = "SIZE")]
    #[arg(value_parser = descriptor, requires = "laboratory")]
    pub descriptor: Vec<u32>,
}

fn descriptor(text: &str) -> Result<u32, String> {
    match size(text)? {
        bytes @ 0..=0x10_0000 => Ok(bytes as u32),
        _ => Err("write a size up to 1m, such as 8792".to_owned()),
    }
}

/// Length in bytes of the pieces (buffer heads) into which I/Os are split; `None` for no split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit(Option<u32>);

fn unit(text: &str) -> Result<Unit, String> {
    match text {
        "512" => Ok(Unit(Some(512))),
        "page" => Ok(Unit(Some(4096))),
        "whole" => Ok(Unit(None)),
        _ => Err("write 512, page or whole".to_owned()),
    }
}

/// Returns a clap parser that accepts two words: the first means false, the second true.
fn either(words: [&'static str; 2]) -> impl Fn(&str) -> Result<bool, String> + Clone {
    move |text| match text {
        text if text == words[0] => Ok(false),
        text if text == words[1] => Ok(true),
        _ => Err(format!("write {} or {}", words[0], words[1])),
    }
}

/// Returns a copy of each setting in `before` for each value in `given`, the values of one flag.
/// `set` stores a value in a copy. If `given` is empty, returns `before`.
fn with<T: Copy>(before: Vec<Linux24>, given: &[T], set: impl Fn(&mut Linux24, T)) -> Vec<Linux24> {
    if given.is_empty() {
        return before;
    }
    let mut combined = Vec::new();
    for (mut history, value) in before.iter().flat_map(|h| given.iter().map(move |v| (*h, *v))) {
        set(&mut history, value);
        combined.push(history);
    }
    combined
}

impl Linux24Args {
    /// Returns a [`Linux24`] for each combination of values in the flags' lists.
    pub fn histories(&self) -> Vec<Linux24> {
        let all = vec![Linux24::default()];
        let all = with(all, &self.unit, |history, unit| {
            // Raw I/O is selected if `unit_bytes` or `iovecs` is set. `--unit whole` leaves
            // `unit_bytes` at `None`, so `iovecs` is set to 1. If `--iovecs` is given, the next
            // statement replaces the 1.
            (history.unit_bytes, history.iovecs) = (unit.0, unit.0.is_none().then_some(1));
        });
        let all = with(all, &self.iovecs, |history, iovecs| history.iovecs = Some(iovecs));
        let all = with(all, &self.readv, |history, readv| history.readv = readv);
        let all = with(all, &self.bounce, |history, bounce| history.bounce = bounce);
        let all = with(all, &self.request_lock, |history, scope| history.request_lock = scope);
        let all = with(all, &self.queue_plug, |history, in_queue| history.plug_in_queue = in_queue);
        with(all, &self.descriptor, |history, bytes| history.descriptor_bytes = bytes)
    }

    /// Refuses flags for Linux 2.4 that have no effect with this `--stack` or with these drives.
    pub fn check(&self, stack: Stack, drives: &[Spec]) -> Result<()> {
        for (flag, given) in [
            ("--request-lock", !self.request_lock.is_empty()),
            ("--queue-plug", !self.queue_plug.is_empty()),
        ] {
            if given && stack != Stack::Sq {
                let stack = stack.word();
                bail!("{flag}: only --stack sq has a request queue, not {stack}; use --stack sq");
            }
        }
        let unnamed = drives.iter().find(|drive| Linux24::adapter_of(drive).is_none());
        if let (true, Some(drive)) = (self.request_lock.contains(&LockScope::Adapter), unnamed) {
            bail!(
                "--request-lock adapter: drive `{drive}` names no controller; write DRIVER@NAME:... \
                 and --controller NAME:tags=N, or controller=NAME of a model"
            );
        }
        let cut = !self.unit.is_empty() || !self.iovecs.is_empty();
        if !self.descriptor.is_empty() && !cut && self.bounce != [true] {
            bail!("--descriptor: needs --unit, --iovecs or --bounce always; add one of them");
        }
        Ok(())
    }
}
