//! `acknowledge`: clears the warning that a volume's cache was dirty when an earlier daemon died.
//!
//! This file has the arguments, the daemon's part, and `millrace ctl acknowledge`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_console::visible;
use serde::{Deserialize, Serialize};

use super::Daemon;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::requests::NoAnswer;
use crate::views::{Access, Refusal, Verb};

pub const ACKNOWLEDGE: Verb<Acknowledge, NoAnswer> = Verb::new(
    "acknowledge",
    Access::Admins,
    "clears the warning that an earlier daemon may have lost a volume's cached writes",
);

const EXAMPLES: &str = "\
Examples:
  millrace ctl acknowledge vol0     after fsck, or the database's own check, of what is on vol0

With [server] state = \"DIR\", a daemon that dies with a dirty cache leaves a mark, and the next one \
warns at its start and in `millrace stat` until the volume is acknowledged.
Exit status: 0 if it is, 2 if the volume has nothing to acknowledge.
";

#[derive(Debug, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(after_help = EXAMPLES)]
pub struct Acknowledge {
    /// Name of the volume that the daemon warns about
    volume: String,
}

pub fn answer(daemon: &LiveDaemon, asked: &Acknowledge) -> Result<NoAnswer, Refusal> {
    daemon.marks.acknowledge(&asked.volume).map(|()| NoAnswer::new())
}

pub fn run(daemon: &Daemon, asked: &Acknowledge) -> Result<ExitCode> {
    daemon.ask(&ACKNOWLEDGE, asked)?;
    daemon.print(asked, || format!("{}: acknowledged\n", visible(&asked.volume)))
}
