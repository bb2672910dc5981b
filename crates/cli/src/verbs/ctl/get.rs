//! `millrace ctl get`: prints the current settings of volumes and groups.
//!
//! Settings come from the daemon's answer to `stats`. Differences from the configuration file are
//! printed below them. With `--toml` the output is lines for the configuration.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use millrace::{DEFAULT_GROUP, GroupConfig};
use millrace_console::{say, visible};
use serde_json::{Value, json};

use super::{Daemon, groups};
use crate::config::group;
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
    /// Print present groups, and schedulers changed with `set`, as lines of a configuration
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
        say(&toml_lines(&report)?);
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
        let text = format!("there is no volume {name:?}; known volumes: {}", known.join(", "));
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

const GROUPS: &str = "# These replace all [[group]] sections of the configuration:\n\n";

/// Returns lines to paste at the end of a configuration. Groups are written as sections. Changed
/// schedulers are written as comments, because the user must add them to the sections of the
/// drives.
fn toml_lines(report: &Report) -> Result<String> {
    let mut text = String::new();
    // Groups with a / in their names exist only while a client is connected, so they are left out.
    for named in report.groups.iter().filter(|group| !group.name.contains('/')) {
        let mut config = GroupConfig::new(&named.name);
        for (key, word) in &named.settings {
            group::set(&mut config, key, word).map_err(|error| {
                anyhow!(
                    "group {:?}: {error}; use the same version of millrace as the daemon",
                    named.name
                )
            })?;
        }
        if config != GroupConfig::new(DEFAULT_GROUP) {
            let _ = writeln!(text, "{}", group::section(&config));
        }
    }
    if !text.is_empty() {
        text.insert_str(0, GROUPS);
    }
    let changed = report.drives.iter().filter(|one| one.scheduler != one.scheduler_configured);
    let schedulers = changed.map(|drive| {
        let (name, scheduler) = (visible(&drive.name), visible(&drive.scheduler));
        format!("#   in [[drive]] name = \"{name}\": scheduler = \"{scheduler}\"\n")
    });
    let schedulers: String = schedulers.collect();
    if !schedulers.is_empty() {
        let _ = write!(
            text,
            "# Schedulers changed since the daemon started; add these lines to the sections:\n{schedulers}"
        );
    }
    if text.is_empty() {
        text.push_str(
            "# there are no groups except the default one, and no scheduler was changed\n",
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::report::Drive;
    use crate::views::settings::GroupState;

    #[test]
    fn groups_are_sections_and_scheduler_that_was_set_is_comment() {
        let group = |name: &str, settings: &[(&str, &str)]| GroupState {
            name: name.to_owned(),
            settings: settings.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect(),
            ..GroupState::default()
        };
        let drive = |name: &str, now: &str| Drive {
            name: name.to_owned(),
            scheduler: now.to_owned(),
            scheduler_configured: "none".to_owned(),
            ..Drive::default()
        };
        let report = Report {
            groups: vec![
                group("default", &[("weight", "100")]),
                group("gold", &[("weight", "400"), ("iops", "20k")]),
                group("gold/1", &[("weight", "100"), ("parent", "gold")]),
            ],
            drives: vec![drive("d0", "deadline"), drive("d1", "none")],
            ..Report::default()
        };
        let expected = "# These replace all [[group]] sections of the configuration:\n\n\
                        [[group]]\nname = \"gold\"\nweight = 400\niops = \"20k\"\n\n\
                        # Schedulers changed since the daemon started; add these lines to the sections:\n\
                        #   in [[drive]] name = \"d0\": scheduler = \"deadline\"\n";
        assert_eq!(toml_lines(&report).unwrap(), expected);
        let nothing = toml_lines(&Report::default()).unwrap();
        assert!(nothing.starts_with("# there are no groups"), "{nothing}");
    }
}
