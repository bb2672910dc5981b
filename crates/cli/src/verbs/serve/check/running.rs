//! `--check` of a configuration whose daemon runs: what a reload would change, and whether it can.
//!
//! Drives that the daemon has locked and sockets that it has bound would count as in use, so the
//! daemon is asked. It is known by the control socket that the configuration says. Called by
//! `serve`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use millrace_console::{say, visible};

use super::view_sockets;
use crate::config::ServePlan;
use crate::views::Reload;
use crate::views::client::Client;
use crate::views::requests::{RELOAD, RemovalOptions};

/// Asks the daemon of a configuration, if it runs; the exit status.
///
/// # Errors
/// If the folder of the file cannot be told.
pub fn check(plan: &ServePlan, file: Option<&Path>) -> anyhow::Result<Option<ExitCode>> {
    let Some(file) = file else { return Ok(None) };
    // Nobody there, or no daemon of this version: the host is looked at as for a start.
    let places = view_sockets::control_places(plan);
    let mut found = places.iter().filter_map(|socket| Client::connect(socket).ok());
    let Some(mut client) = found.find(|client| client.knows(RELOAD.name)) else { return Ok(None) };
    let (_, pid, socket) = client.daemon();
    let socket = socket.display().to_string();
    say(&format!("daemon {pid} runs, with unix:{}; a reload would do this:\n", visible(&socket)));
    let file = std::path::absolute(file).context("cannot tell the working folder")?;
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
