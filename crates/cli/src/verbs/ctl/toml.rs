//! `millrace ctl get --toml`: prints the current settings as lines of a configuration.
//!
//! Pure: a report to text that may be pasted at the end of a file. Groups are complete sections,
//! which replace those of the file. A scheduler that was set belongs in the drive's own section, so
//! it is printed as a comment. Called by ctl.rs.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use millrace::{DEFAULT_GROUP, GroupConfig};
use millrace_console::visible;

use crate::config::group;
use crate::views::report::Report;

const GROUPS: &str = "# These replace all [[group]] sections of the configuration:\n\n";

pub fn lines(report: &Report) -> Result<String> {
    let mut text = String::new();
    // Groups with a / in their names belong to single clients, and exist only while the client is
    // connected.
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
            "# Changed since the start; add these lines to the sections by hand:\n{schedulers}"
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
                        # Changed since the start; add these lines to the sections by hand:\n\
                        #   in [[drive]] name = \"d0\": scheduler = \"deadline\"\n";
        assert_eq!(lines(&report).unwrap(), expected);
        let nothing = lines(&Report::default()).unwrap();
        assert!(nothing.starts_with("# there are no groups"), "{nothing}");
    }
}
