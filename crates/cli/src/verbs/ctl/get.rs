//! `millrace ctl get`: prints the current settings of volumes and groups.
//!
//! This file prints the settings in `stats` and their differences from the configuration file, or
//! with `--toml` lines for the configuration (toml.rs). ctl.rs calls it.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use millrace_console::{say, visible};
use serde_json::{Value, json};

use super::{Daemon, groups, toml};
use crate::views::StatsQuery;
use crate::views::reload_report::UnsavedChanges;
use crate::views::report::{Drive, Report, Volume};
use crate::views::requests::{NoArguments, STATS, UNSAVED};

const EXAMPLES: &str = "\
Examples:
  millrace ctl get                all volumes and groups
  millrace ctl get vol0           the schedulers of the drives of vol0
  millrace ctl get groups         all groups, those of single clients too
  millrace ctl get group gold
  millrace ctl get --toml         groups, and schedulers that were set, as the configuration has them

The last lines say what differs from the daemon's configuration file: ~ for a setting, with the \
file's on the left of the arrow, + for what is not in the file, - for what is there only.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// Name of a volume, `group NAME`, or `groups`; without it, all volumes and groups
    #[arg(value_name = "VOLUME|group NAME|groups", num_args = 0..=2)]
    target: Vec<String>,
    /// Print lines for the configuration: groups as they are now, and schedulers that were set
    #[arg(long, conflicts_with_all = ["target", "json"])]
    toml: bool,
}

pub fn run(daemon: &Daemon, args: &GetArgs) -> Result<ExitCode> {
    let mut client = daemon.connect.client()?;
    let report = client.ask(&STATS, &StatsQuery::ALL)?;
    let target: Vec<&str> = args.target.iter().map(String::as_str).collect();
    let (volumes, shown) = match target[..] {
        [] => (report.volumes.iter().collect(), report.groups.iter().collect()),
        ["groups"] => (Vec::new(), report.groups.iter().collect()),
        ["group", name] => (Vec::new(), vec![groups::find(&report, name)?]),
        ["group"] => bail!("which group? write group NAME, or groups for all of them"),
        [name] => (vec![volume(&report, name)?], Vec::new()),
        [name, ..] => bail!("{name:?} is not a target; write VOLUME, group NAME, or groups"),
    };
    if args.toml {
        say(&toml::lines(&report)?);
        return Ok(ExitCode::SUCCESS);
    }
    let unsaved = client.knows(UNSAVED.name).then(|| client.ask(&UNSAVED, &NoArguments {}));
    let unsaved = unsaved.transpose()?.map(|unsaved| of_target(unsaved, &report, &target));
    if daemon.json {
        let volumes: Vec<Value> = volumes.iter().map(|one| volume_json(&report, one)).collect();
        let mut answer = match (target.len(), &volumes[..]) {
            (1, [volume]) => volume.clone(),
            (2, _) => json!(shown[0]),
            (1, _) => json!({ "groups": shown }),
            _ => json!({ "volumes": volumes, "groups": shown }),
        };
        answer["unsaved"] = json!(unsaved);
        say(&format!("{answer}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text: String = volumes.iter().map(|one| volume_text(&report, one)).collect();
    text.push_str(&match target[..] {
        ["group", _] => groups::describe(shown[0]),
        _ if shown.is_empty() => String::new(),
        _ => groups::table(&shown),
    });
    let unsaved = unsaved.map(|unsaved| unsaved.text()).unwrap_or_default();
    text.extend(unsaved.lines().map(|line| format!("{}\n", visible(line))));
    say(&text);
    groups::warn(shown.iter().flat_map(|group| &group.warnings));
    Ok(ExitCode::SUCCESS)
}

/// Removes the unsaved changes that do not belong to a target of `get`.
fn of_target(mut unsaved: UnsavedChanges, report: &Report, target: &[&str]) -> UnsavedChanges {
    unsaved.changes.retain(|change| match (target, change.section.as_str()) {
        ([], _) | (["groups"], "group") => true,
        (["group", name], "group") | ([name], "volume") => change.name == *name,
        ([name], "drive") => {
            let is_it = |drive: &Drive| drive.name == change.name && drive.volume == *name;
            report.drives.iter().any(is_it)
        }
        _ => false,
    });
    unsaved
}

pub fn volume<'a>(report: &'a Report, name: &str) -> Result<&'a Volume> {
    report.volumes.iter().find(|one| one.name == name).ok_or_else(|| {
        let known: Vec<_> = report.volumes.iter().map(|one| visible(&one.name)).collect();
        let text = format!("there is no volume {name:?}; there are {}", known.join(", "));
        match report.groups.iter().any(|group| group.name == name) {
            true => anyhow!("{text}; did you mean `millrace ctl get group {}`?", visible(name)),
            false => anyhow!(text),
        }
    })
}

fn drives<'a>(report: &'a Report, volume: &'a Volume) -> impl Iterator<Item = &'a Drive> {
    report.drives.iter().filter(|drive| drive.volume == volume.name)
}

fn volume_json(report: &Report, volume: &Volume) -> Value {
    let drive = |drive: &Drive| json!({ "name": drive.name, "scheduler": drive.scheduler });
    let drives: Vec<Value> = drives(report, volume).map(drive).collect();
    json!({ "volume": volume.name, "drives": drives })
}

fn volume_text(report: &Report, volume: &Volume) -> String {
    let mut text = format!("{}:\n", visible(&volume.name));
    for drive in drives(report, volume) {
        let (name, scheduler) = (visible(&drive.name), visible(&drive.scheduler));
        let _ = writeln!(text, "  {name}: scheduler={scheduler}");
    }
    text
}
