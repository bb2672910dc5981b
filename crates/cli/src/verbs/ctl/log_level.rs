//! `log-level`: how much a running daemon logs.
//!
//! Arguments and answer, the daemon's part, which reads the level as it reads `MILLRACE_LOG`, and
//! `millrace ctl log-level`. Named in the table of ctl.rs.

use std::process::ExitCode;

use anyhow::Result;
use millrace_console::{logging, say, visible};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Daemon;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::{Access, Refusal, Verb};

/// The verb.
pub const LOG_LEVEL: Verb<LogLevel, LogLevelChange> = Verb::new(
    "log-level",
    Access::EverybodyToRead,
    "the `level` of the log; with `level`, changes it",
);

const EXAMPLES: &str = "\
Examples:
  millrace ctl log-level              the level that holds now
  millrace ctl log-level debug        what clients do, too, until the daemon ends
  millrace ctl log-level info,millrace_exports=trace
  millrace ctl log-level info         as at a start without -v and MILLRACE_LOG

Exit status: 0 if it is set, 2 if the daemon refused.
";

/// Level of the log from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// A level, or modules with theirs, as `MILLRACE_LOG` has them; none: only tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
}

/// The answer to `log-level`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLevelChange {
    /// The level from now on, in the words of `MILLRACE_LOG`.
    pub level: String,
    /// The level before, if it was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// Arguments of `ctl log-level`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct LogLevelArgs {
    /// off, error, warn, info, debug or trace, or MODULE=LEVEL with commas between; nothing: show
    /// the level that holds now
    level: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
}

/// Tells the level of the log, or changes it and says so; for the daemon.
///
/// # Errors
/// `bad-request` if it is none.
pub fn answer(_daemon: &LiveDaemon, asked: &LogLevel) -> Result<LogLevelChange, Refusal> {
    let Some(level) = &asked.level else {
        return Ok(LogLevelChange { level: logging::level(), before: None });
    };
    let refused = |error: anyhow::Error| Refusal::new("bad-request", error.to_string());
    let before = logging::set_level(level).map_err(refused)?;
    tracing::info!("log level {} from now on, before {}", visible(level), visible(&before));
    Ok(LogLevelChange { level: level.clone(), before: Some(before) })
}

/// Shows or sets the level.
///
/// # Errors
/// If the daemon is not there, or refuses.
pub fn run(args: &LogLevelArgs) -> Result<ExitCode> {
    let asked = LogLevel { level: args.level.clone() };
    let answer = args.daemon.connect.client()?.ask(&LOG_LEVEL, &asked)?;
    let level = visible(&answer.level);
    say(&match (&answer.before, args.daemon.json) {
        (_, true) => format!("{}\n", json!(answer)),
        (Some(before), false) => format!("log level {level}, before {}\n", visible(before)),
        (None, false) => format!("log level {level}\n"),
    });
    Ok(ExitCode::SUCCESS)
}
