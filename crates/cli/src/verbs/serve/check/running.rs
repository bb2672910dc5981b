//! `--check` of a configuration whose daemon is running: reports what a reload would change, or why
//! the reload would fail.
//!
//! The running daemon itself holds the locks and sockets, so a check of the host would find them in
//! use. Instead, the daemon does a dry run of a reload.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use millrace_console::{say, visible};

use super::view_sockets;
use crate::config::ServePlan;
use crate::views::Reload;
use crate::views::client::Client;
use crate::views::requests::{RELOAD, RemovalOptions};

/// Returns `None` if the daemon of this configuration is not running.
pub fn check(plan: &ServePlan, file: Option<&Path>) -> anyhow::Result<Option<ExitCode>> {
    let Some(file) = file else { return Ok(None) };
    // Asks only a running daemon that knows the verb `reload`. If there is none, returns `None`,
    // and the caller checks the drives and sockets of this host.
    let places = view_sockets::control_places(plan);
    let mut found = places.iter().filter_map(|socket| Client::connect(socket).ok());
    let Some(mut client) = found.find(|client| client.knows(RELOAD.name)) else { return Ok(None) };
    let (_, pid, socket) = client.daemon();
    let socket = socket.display().to_string();
    say(&format!(
        "daemon {pid} is running at unix:{}; a reload would make these changes:\n",
        visible(&socket)
    ));
    let file = std::path::absolute(file).context("cannot determine the working directory")?;
    let options = RemovalOptions { dry_run: true, ..RemovalOptions::default() };
    Ok(Some(match client.ask(&RELOAD, &Reload { file: Some(file), options }) {
        Ok(report) => {
            report.text().lines().for_each(|line| say(&format!("{}\n", visible(line))));
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }))
}
