//! `millrace ctl set`: changes settings of a volume; groups.rs changes those of a group.
//!
//! ctl.rs calls this module.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use millrace_console::visible;

use super::{Daemon, groups, pair};
use crate::views::requests::{SET, STATS};
use crate::views::{SetVolume, StatsQuery};

const EXAMPLES: &str = "\
Examples:
  millrace ctl set vol0 scheduler=deadline    the drives of vol0 serve by sector and by age
  millrace ctl set vol0 scheduler=none --connect unix:/run/millrace/fast.sock.control --json
  millrace ctl set group gold weight=400 iops=20k bandwidth=none

A change takes effect at once, also for I/O in flight, and lasts until the daemon ends; `millrace \
ctl get --toml` \
prints it for the configuration. The scheduler is that of all drives of the volume. A group has \
the keys of [[group]] except name, with the same values; none removes a limit. If a part of a \
change is refused, nothing changes.
Exit status: 0 if it is set, 2 if the daemon refused.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SetArgs {
    /// Name of a volume; for a group, the word `group` and the name of the group
    #[arg(value_name = "VOLUME|group NAME")]
    pub target: String,
    /// Settings, such as scheduler=none for a volume, or weight=400 and iops=20k for a group
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

fn setting(daemon: &Daemon, args: &SetArgs, text: &str) -> Result<(String, String)> {
    let (key, value) = pair(text, "scheduler=deadline")?;
    if key == "scheduler" {
        return Ok((key, value));
    }
    // The daemon's list of groups lets the error text name the group that was probably meant. If
    // the daemon does not answer, the text names only the key.
    let report = daemon.ask(&STATS, &StatsQuery::ALL);
    if let Some(hint) = groups::meant(&report.unwrap_or_default(), args, &key) {
        bail!(hint);
    }
    bail!("a volume has no setting {key:?}; its only setting is \"scheduler\"")
}

pub fn run(daemon: &Daemon, args: &SetArgs) -> Result<ExitCode> {
    if let ("group", Some((name, settings))) = (args.target.as_str(), args.settings.split_first())
        && !name.contains('=')
    {
        return groups::set(daemon, name, settings);
    }
    if let ("volume", [name, ..]) = (args.target.as_str(), args.settings.as_slice())
        && !name.contains('=')
    {
        bail!("write the volume's name alone: millrace ctl set {name} KEY=VALUE");
    }
    let mut asked = SetVolume { volume: args.target.clone(), ..SetVolume::default() };
    for text in &args.settings {
        let (key, value) = setting(daemon, args, text)?;
        if asked.scheduler.replace(value).is_some() {
            bail!("{key} is given twice; remove one of them");
        }
    }
    let changed = daemon.ask(&SET, &asked)?;
    daemon.print(&changed, || {
        let mut text = format!("{}:\n", visible(&changed.volume));
        for drive in &changed.drives {
            let (now, before) = (visible(&drive.scheduler), visible(&drive.before));
            let name = visible(&drive.name);
            let _ = writeln!(text, "  {name}: scheduler={now}, before {before}");
        }
        text
    })?;
    groups::warn(changed.warnings.iter().filter(|_| !daemon.json));
    Ok(ExitCode::SUCCESS)
}
