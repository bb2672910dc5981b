//! `millrace ctl reload`: switches a running daemon to another configuration.
//!
//! The daemon reads the file with its own permissions, and applies or refuses it. This verb prints
//! the changes that the daemon reports. ctl.rs calls this file.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_console::visible;

use super::Daemon;
use crate::views::Reload;
use crate::views::reload_report::ReloadReport;
use crate::views::requests::RELOAD;

pub const EXAMPLES: &str = "\
Examples:
  millrace ctl reload --dry-run       what would change, and can it be served?
  millrace ctl reload                 the file that the daemon loaded last, as it is now
  millrace ctl reload new.toml
  millrace ctl reload --disconnect    also if clients use an export that is removed

Prints a line for each part that is added (+), removed (-) or changed (~). Volumes, drives, \
exports, \
addresses, groups and controllers come and go; weights, limits and schedulers change; clients of \
exports that stay notice nothing. It is all or nothing: if a drive cannot be opened, a socket not \
bound, or a volume that goes not be flushed, everything is as before. [server] metrics may come, go \
and change; threads, backend, limits and control change with a restart only.
Exit status: 0 if the configuration is served (with --dry-run: could be), 2 if the daemon refused.
";

pub fn run(daemon: &Daemon, args: &Reload) -> Result<ExitCode> {
    if args.file.as_deref() == Some(Path::new("-")) {
        bail!(
            "the daemon reads the configuration itself and cannot use standard input; name a file"
        );
    }
    let file = args.file.as_deref().map(std::path::absolute).transpose();
    let asked = Reload {
        file: file.context("cannot determine the working directory")?,
        options: args.options,
    };
    show(&daemon.ask(&RELOAD, &asked)?, daemon)
}

pub fn show(report: &ReloadReport, daemon: &Daemon) -> Result<ExitCode> {
    daemon.print(report, || {
        report.text().lines().map(|line| format!("{}\n", visible(line))).collect()
    })
}
