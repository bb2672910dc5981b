//! Flags of `bench` for how Linux 2.4 did raw I/O, for who compares: history, no advice.
//!
//! Parsed by clap, read by machine.rs, which runs such rows.

use anyhow::{Result, bail};
use clap::Args;
use millrace_lab::sim::{History, LockScope, Readv};

use crate::config::words::{whole, word};

/// How raw I/O is done.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How Linux 2.4 did raw I/O (with --machine or --locks)")]
pub struct HistoryArgs {
    /// Bytes of a buffer head, of which each I/O takes as many as it needs: 512, page (4096) or
    /// whole (the I/O, or an element of its vector, is one); for --iodepth 1
    #[arg(long, value_name = "UNIT", value_parser = unit)]
    pub unit: Option<Unit>,
    /// Elements of each I/O's vector
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1024))]
    pub iovecs: Option<u32>,
    /// What becomes of a vector: whole (one I/O), serial (its elements one after the other)
    #[arg(long, value_name = "HOW", default_value = "whole", value_parser = word::<Readv>)]
    pub readv: Readv,
    /// Copies of what is read and written: always, or never
    #[arg(long, value_name = "WHEN", default_value = "never", value_parser = ["never", "always"])]
    pub bounce: String,
    /// The lock of --stack sq: queue (one for each drive), adapter (for each `controller` of model
    /// drives), global (one for all)
    #[arg(long, value_name = "SCOPE", default_value = "queue", value_parser = word::<LockScope>)]
    pub request_lock: LockScope,
    /// Where the bios of a batch wait with --stack sq: task (with the submitter, as since 2.6.39),
    /// queue (each takes the queue's lock, as before)
    #[arg(long, value_name = "WHERE", default_value = "task", value_parser = ["task", "queue"])]
    pub queue_plug: String,
    /// Bytes of memory of each job's open drive, as a kiobuf had 8792 and later 608
    #[arg(long, value_name = "BYTES", default_value = "0")]
    #[arg(value_parser = whole::<u32>(0..=1 << 20))]
    pub descriptor: u32,
}

/// Bytes of a unit; none for whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit(Option<u32>);

fn unit(text: &str) -> Result<Unit, String> {
    match text {
        "512" => Ok(Unit(Some(512))),
        "page" => Ok(Unit(Some(4096))),
        "whole" => Ok(Unit(None)),
        _ => Err("512, page or whole".to_owned()),
    }
}

impl HistoryArgs {
    /// The setting, for rows that can have it.
    pub fn history(&self) -> History {
        let whole = self.unit == Some(Unit(None));
        History {
            unit_bytes: self.unit.and_then(|unit| unit.0),
            iovecs: self.iovecs.or(whole.then_some(1)),
            readv: self.readv,
            bounce: self.bounce == "always",
            request_lock: self.request_lock,
            plug_in_queue: self.queue_plug == "queue",
            descriptor_bytes: self.descriptor,
            ..History::default()
        }
    }

    /// Refuses what rows of other ways would pass over.
    pub fn check_unused(&self) -> Result<()> {
        if self.history() != History::default() {
            bail!(
                "--unit, --iovecs, --readv, --bounce, --request-lock, --queue-plug and \
                 --descriptor need --machine or --locks"
            );
        }
        Ok(())
    }
}
