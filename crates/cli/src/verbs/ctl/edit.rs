//! `millrace ctl add` and `ctl remove`: add or remove one section of the served configuration.
//!
//! The daemon reloads its current configuration with the section added or removed. The file stays
//! unchanged until `ctl save`. ctl.rs calls this module.

use std::process::ExitCode;

use anyhow::Result;

use super::{Daemon, pair, reload};
use crate::config::edit::SECTIONS;
use crate::views::requests::{ADD, REMOVE};
use crate::views::{AddSection, RemoveSection};

const ADD_EXAMPLES: &str = "\
Examples:
  millrace ctl add drive b spec=file:path=/srv/b.img
  millrace ctl add volume b drives=b cache.size=64m
  millrace ctl add export b volume=b nbd=unix:/run/millrace/b.sock
  millrace ctl add group gold weight=400 iops=20k

Keys and values are those of the section in the configuration; commas separate the drives of a \
volume. A drive is opened when a volume uses it. Nothing is written to the configuration file: \
`millrace ctl save` does that.
Exit status: 0 if it is served (with --dry-run: could be), 2 if the daemon refused.
";

pub const REMOVE_EXAMPLES: &str = "\
Examples:
  millrace ctl remove export b
  millrace ctl remove export b --disconnect    also if it has clients
  millrace ctl remove volume b
  millrace ctl remove drive b

A volume is flushed before it is removed. Nothing is written to the configuration file: `millrace \
ctl \
save` does that.
Exit status: 0 if it is removed (with --dry-run: could be), 2 if the daemon refused.
";

#[derive(Debug, clap::Args)]
#[command(after_help = ADD_EXAMPLES)]
pub struct AddArgs {
    /// Kind of section: drive, volume, export or group
    #[arg(value_parser = SECTIONS)]
    section: String,
    /// Name of the section
    name: String,
    /// Settings of the new section
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Change nothing; only print whether the daemon would accept the new section
    #[arg(long)]
    dry_run: bool,
}

pub fn add(daemon: &Daemon, args: &AddArgs) -> Result<ExitCode> {
    let settings = args.settings.iter().map(|text| pair(text, "drives=b"));
    let asked = AddSection {
        section: args.section.clone(),
        name: args.name.clone(),
        settings: settings.collect::<Result<_>>()?,
        dry_run: args.dry_run,
    };
    reload::show(&daemon.ask(&ADD, &asked)?, daemon)
}

pub fn remove(daemon: &Daemon, asked: &RemoveSection) -> Result<ExitCode> {
    reload::show(&daemon.ask(&REMOVE, asked)?, daemon)
}
