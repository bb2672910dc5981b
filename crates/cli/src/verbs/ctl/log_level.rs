//! `log-level`: shows or changes the log level of a running daemon.
//!
//! The verb's arguments and answer, the daemon's part, and `millrace ctl log-level` are in this
//! file. Levels have the syntax of `MILLRACE_LOG`. The table in ctl.rs lists the verb.

use std::process::ExitCode;

use anyhow::Result;
use millrace_console::{logging, visible};
use serde::{Deserialize, Serialize};

use super::Daemon;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::{Access, Refusal, Verb};

pub const LOG_LEVEL: Verb<LogLevel, LogLevelChange> = Verb::new(
    "log-level",
    Access::EverybodyToRead,
    "returns the log `level`; with a `level` in the request, changes it",
);

const EXAMPLES: &str = "\
Examples:
  millrace ctl log-level              the current level
  millrace ctl log-level debug        also log what clients do, until the daemon ends
  millrace ctl log-level info,millrace_exports=trace
  millrace ctl log-level info         as at a start without -v and MILLRACE_LOG

Exit status: 0 if it is set, 2 if the daemon refused.
";

#[derive(Debug, Default, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(after_help = EXAMPLES)]
pub struct LogLevel {
    /// off, error, warn, info, debug or trace, or MODULE=LEVEL with commas between (modules begin
    /// with millrace, millrace_console or millrace_exports); without it, show the current level
    #[serde(default, skip_serializing_if = "Option::is_none")]
    level: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLevelChange {
    pub level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

pub fn answer(_daemon: &LiveDaemon, asked: &LogLevel) -> Result<LogLevelChange, Refusal> {
    let Some(level) = &asked.level else {
        return Ok(LogLevelChange { level: logging::level(), before: None });
    };
    let refused = |error: anyhow::Error| Refusal::new("bad-request", error.to_string());
    let before = logging::set_level(level).map_err(refused)?;
    tracing::info!("log level is {} from now on; it was {}", visible(level), visible(&before));
    Ok(LogLevelChange { level: level.clone(), before: Some(before) })
}

pub fn run(daemon: &Daemon, asked: &LogLevel) -> Result<ExitCode> {
    let answer = daemon.ask(&LOG_LEVEL, asked)?;
    let level = visible(&answer.level);
    daemon.print(&answer, || match &answer.before {
        Some(before) => format!("log level is {level}; it was {}\n", visible(before)),
        None => format!("log level {level}\n"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// The Rust files below a directory.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
        files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
    }

    #[test]
    fn the_crates_that_log_are_those_that_a_level_can_be_set_for() {
        let macros = ["error!", "warn!", "info!", "debug!", "trace!"];
        let logs = |path: &PathBuf| {
            let text = fs::read_to_string(path).unwrap();
            macros.iter().any(|name| text.contains(&format!("tracing::{name}(")))
        };
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut logging = Vec::new();
        for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
            if folder.is_dir() && files(&folder.join("src")).iter().any(logs) {
                let name = folder.file_name().unwrap().to_str().unwrap();
                logging.push(format!("millrace_{name}").replace("millrace_cli", "millrace"));
            }
        }
        logging.sort();
        assert_eq!(logging, logging::LOGGING_CRATES);
    }

    #[test]
    fn a_module_that_is_none_is_refused_with_the_nearest() {
        let refused = logging::set_level("info,millrace_export::nbd=debug").unwrap_err();
        let text = "unknown module \"millrace_export::nbd\"; choose millrace, millrace_console or \
                    millrace_exports; did you mean \"millrace_exports\"?";
        assert_eq!(refused.to_string(), text);
    }
}
