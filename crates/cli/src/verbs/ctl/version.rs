//! `millrace ctl version`: versions of this program and of a running daemon.
//!
//! The versions differ after an upgrade of the package, until the daemon is restarted.

use std::process::ExitCode;

use anyhow::Result;
use millrace_console::visible;
use serde_json::json;

use super::Daemon;
use crate::views::CONTROL_VERSION;

const EXAMPLES: &str = "\
Examples:
  millrace ctl version
  millrace ctl version --json --connect unix:/run/millrace/control.sock

Exit status: 0 if both have one version, 1 if not, 2 if no daemon is found.
";

const OWN: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct VersionArgs {}

/// Returns exit status 1 if the versions differ.
pub fn run(daemon: &Daemon, _: &VersionArgs) -> Result<ExitCode> {
    let client = daemon.connect.client()?;
    let (version, pid, path) = client.daemon();
    let is_same = version == OWN;
    let path = visible(&path.to_string_lossy()).into_owned();
    let of_daemon = json!({ "version": version, "pid": pid, "control_socket": path });
    let answer = json!({ "version": OWN, "control": CONTROL_VERSION, "daemon": of_daemon });
    let done = daemon.print(&answer, || {
        let differ = "\nthe versions differ: restart the daemon to run the version of this program";
        let end = if is_same { "" } else { differ };
        format!(
            "program  millrace {OWN}, control protocol {CONTROL_VERSION}\n\
             daemon   millrace {version}, process {pid}, at unix:{path}{end}\n"
        )
    })?;
    Ok(if is_same { done } else { ExitCode::FAILURE })
}
