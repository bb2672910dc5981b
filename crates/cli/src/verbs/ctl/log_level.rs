//! `millrace ctl log-level`: how much a running daemon logs.
//!
//! The daemon reads the level as it reads `MILLRACE_LOG`. Called by ctl.rs.

use std::process::ExitCode;

use anyhow::Result;
use millrace_console::{say, visible};
use serde_json::json;

use super::Daemon;
use crate::views::LogLevel;

const EXAMPLES: &str = "\
Examples:
  millrace ctl log-level              the level that holds now
  millrace ctl log-level debug        what clients do, too, until the daemon ends
  millrace ctl log-level info,millrace_exports=trace
  millrace ctl log-level info         as at a start without -v and MILLRACE_LOG

Exit status: 0 if it is set, 2 if the daemon refused.
";

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

/// Shows or sets the level.
///
/// # Errors
/// If the daemon is not there, or refuses.
pub fn run(args: &LogLevelArgs) -> Result<ExitCode> {
    let asked = LogLevel { level: args.level.clone() };
    let answer = args.daemon.connect.client()?.log_level(&asked)?;
    let level = visible(&answer.level);
    say(&match (&answer.before, args.daemon.json) {
        (_, true) => format!("{}\n", json!(answer)),
        (Some(before), false) => format!("log level {level}, before {}\n", visible(before)),
        (None, false) => format!("log level {level}\n"),
    });
    Ok(ExitCode::SUCCESS)
}
