//! `millrace ctl`: subcommands that send requests to a running daemon, and the table of the
//! requests that a daemon answers.
//!
//! Each file in the `ctl` directory has one subcommand. A file may also have the daemon's function
//! that answers the request. If the daemon refuses a request, the subcommand fails with the
//! daemon's reason.

mod acknowledge;
mod clients;
mod edit;
mod get;
mod groups;
mod log_level;
mod reload;
mod resize;
mod save;
mod set;
mod version;
mod why;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Subcommand;
use millrace_console::{ERROR, say};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::verbs::connect::Connect;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::client::DaemonRefusal;
use crate::views::requests::{
    ADD, CONFIGURATION, HISTORY, LOCKS_START, LOCKS_STATUS, LOCKS_STOP, NoAnswer, RELOAD, REMOVE,
    SET, SET_GROUP, STATS, TRACE_START, TRACE_STATUS, TRACE_STOP, UNSAVED, VERSION,
};
use crate::views::{self, Answers, ControlVerb, Question, Refusal, StatsQuery, Verb};

const EXAMPLES: &str = "\
Examples:
  millrace ctl resize vol0              asks the daemon that it finds
  millrace ctl get --connect unix:/run/millrace/fast.sock.control

--connect names the daemon's control socket, which `serve` prints as `control at unix:PATH`. \
Without it the variable MILLRACE_CONTROL names the socket; without both, the first daemon that has \
one is asked, in ./millrace-data, the working directory, $XDG_RUNTIME_DIR/millrace or \
/run/millrace.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    request: Request,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, Subcommand)]
enum Request {
    /// Grow a volume to the current size of its drives, while clients use it
    Resize(resize::Resize),
    /// Change settings of a volume or a group while clients use it
    Set(set::SetArgs),
    /// Show the settings that `set` changes
    Get(get::GetArgs),
    /// Explain what I/Os of a volume wait for, group by group
    Why(why::WhyArgs),
    /// Clear the warning that an earlier daemon died with unwritten data in a volume's cache
    Acknowledge(acknowledge::Acknowledge),
    /// Show connected clients: number, export, group, requests, peer
    Clients(clients::ClientsArgs),
    /// End the connection of a client
    Disconnect(clients::Disconnect),
    /// Load the configuration file again, without a restart
    #[command(after_help = reload::EXAMPLES)]
    Reload(views::Reload),
    /// Add a drive, volume, export or group to what is served
    Add(edit::AddArgs),
    /// Remove a drive, volume, export or group from what is served
    #[command(after_help = edit::REMOVE_EXAMPLES)]
    Remove(views::RemoveSection),
    /// Write the daemon's present configuration to its file
    Save(save::SaveArgs),
    /// Show or change how much the daemon logs
    LogLevel(log_level::LogLevel),
    /// Print the versions of this program and of the daemon
    Version(version::VersionArgs),
}

#[derive(Debug, clap::Args)]
struct Daemon {
    #[command(flatten)]
    connect: Connect,
    /// Print one line of JSON, also for an error
    #[arg(long, global = true)]
    json: bool,
}

impl Daemon {
    fn ask<Q: Serialize, A: DeserializeOwned>(&self, verb: &Verb<Q, A>, asked: &Q) -> Result<A> {
        self.connect.client()?.ask(verb, asked)
    }

    fn print(&self, answer: &impl Serialize, text: impl FnOnce() -> String) -> Result<ExitCode> {
        say(&if self.json { format!("{}\n", json!(answer)) } else { text() });
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns all verbs of the control socket, in the order in which the daemon's greeting lists them.
pub fn control_verbs() -> Vec<ControlVerb<LiveDaemon>> {
    use ControlVerb as Row;
    vec![
        Row::new(VERSION, |_, _| Ok(greeting())),
        Row::new(STATS, |daemon, query| Ok(daemon.report(*query))),
        Row::new(HISTORY, |daemon, range| Ok(daemon.history(range))),
        Row::new(TRACE_START, |daemon, start| {
            daemon.recording.start(&daemon.volumes(), start).map(nothing)
        }),
        Row::new(TRACE_STATUS, |daemon, _| daemon.recording.status()),
        Row::new(TRACE_STOP, |daemon, _| daemon.recording.stop()),
        Row::new(LOCKS_START, |daemon, _| {
            daemon.lock_statistics.start(&daemon.volumes()).map(nothing)
        }),
        Row::new(LOCKS_STATUS, |daemon, _| daemon.lock_statistics.status()),
        Row::new(LOCKS_STOP, |daemon, _| daemon.lock_statistics.stop()),
        Row::new(resize::RESIZE, resize::answer),
        Row::new(SET, LiveDaemon::set_volume),
        Row::new(SET_GROUP, LiveDaemon::set_group),
        Row::new(acknowledge::ACKNOWLEDGE, acknowledge::answer),
        Row::new(log_level::LOG_LEVEL, log_level::answer),
        Row::new(clients::CLIENTS, |daemon, _| Ok(clients::of(daemon))),
        Row::new(clients::DISCONNECT, clients::answer_disconnect),
        Row::new(RELOAD, |daemon, asked| daemon.reloader.reload(daemon, asked)),
        Row::new(ADD, |daemon, asked| daemon.reloader.add(daemon, asked)),
        Row::new(REMOVE, |daemon, asked| daemon.reloader.remove(daemon, asked)),
        Row::new(CONFIGURATION, |daemon, _| daemon.reloader.configuration(daemon)),
        Row::new(UNSAVED, |daemon, _| Ok(daemon.reloader.unsaved(daemon))),
    ]
}

fn greeting() -> Value {
    views::greeting(&views::names(&control_verbs()))
}

fn nothing((): ()) -> NoAnswer {
    NoAnswer::new()
}

pub struct AnsweringDaemon {
    daemon: Arc<LiveDaemon>,
    verbs: Vec<ControlVerb<LiveDaemon>>,
}

impl AnsweringDaemon {
    pub fn new(daemon: &Arc<LiveDaemon>) -> AnsweringDaemon {
        AnsweringDaemon { daemon: Arc::clone(daemon), verbs: control_verbs() }
    }
}

impl Answers for AnsweringDaemon {
    fn greeting(&self) -> Value {
        greeting()
    }

    fn ask(&self, verb: &str, arguments: Map<String, Value>) -> Result<Question, Refusal> {
        views::ask(&self.verbs, &self.daemon, (verb, arguments))
    }

    fn metrics(&self, query: StatsQuery) -> String {
        views::prometheus(&self.daemon.report(query))
    }

    fn problems(&self) -> Vec<String> {
        self.daemon.problems()
    }
}

fn pair(text: &str, example: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => bail!("{text:?}: write KEY=VALUE, as in {example}"),
    }
}

pub fn run(Args { request, daemon }: &Args) -> Result<ExitCode> {
    let done = match request {
        Request::Resize(args) => resize::run(daemon, args),
        Request::Set(args) => set::run(daemon, args),
        Request::Get(args) => get::run(daemon, args),
        Request::Why(args) => why::run(daemon, args),
        Request::Acknowledge(args) => acknowledge::run(daemon, args),
        Request::Clients(args) => clients::show(daemon, args),
        Request::Disconnect(args) => clients::disconnect(daemon, args),
        Request::Reload(args) => reload::run(daemon, args),
        Request::Add(args) => edit::add(daemon, args),
        Request::Remove(args) => edit::remove(daemon, args),
        Request::Save(args) => save::run(daemon, args),
        Request::LogLevel(args) => log_level::run(daemon, args),
        Request::Version(args) => version::run(daemon, args),
    };
    match done {
        Err(error) if daemon.json => {
            say(&format!("{}\n", failure(&error)));
            Ok(ExitCode::from(ERROR))
        }
        done => done,
    }
}

fn failure(error: &anyhow::Error) -> Value {
    let (kind, message) = match error.downcast_ref::<DaemonRefusal>() {
        Some(refusal) => (refusal.kind.as_str(), refusal.message.clone()),
        None => ("failed", format!("{error:#}")),
    };
    json!({ "error": { "kind": kind, "message": message } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::Access;

    const CONTROL_MD: &str = include_str!("../../../../docs/control.md");

    #[test]
    fn document_and_greeting_name_all_verbs() {
        let clients = |access: Access| match access {
            Access::Everybody => "everybody",
            Access::EverybodyToRead => "everybody to read, admins to change",
            Access::Admins => "admins",
        };
        let verbs = control_verbs();
        let row = |verb: &ControlVerb<_>| {
            format!("| `{}` | {} | {} |\n", verb.name, clients(verb.access), verb.summary)
        };
        let table: String = verbs.iter().map(row).collect();
        assert!(
            CONTROL_MD.contains(&format!("|---|---|---|\n{table}\n")),
            "docs/control.md: the table of verbs is\n{table}"
        );
        let list = format!("\"verbs\":{}", json!(views::names(&verbs)));
        assert!(CONTROL_MD.contains(&list), "docs/control.md: the greeting has {list}");
    }
}
