//! `clients` and `disconnect`: who is connected, and the end of one of them.
//!
//! Arguments, the daemon's part, and `millrace ctl clients` and `disconnect`. Named in the table of
//! ctl.rs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use millrace_console::{say, visible};
use millrace_exports::nbd::Observer;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Daemon;
use crate::config::words::bytes_for_people;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::clients::{Clients, ConnectedClient};
use crate::views::requests::NoArguments;
use crate::views::{Access, Refusal, Verb};

/// The verb that lists clients.
pub const CLIENTS: Verb<NoArguments, Clients> =
    Verb::new("clients", Access::Everybody, "clients, by number");
/// The verb that ends one.
pub const DISCONNECT: Verb<Disconnect, ConnectedClient> =
    Verb::new("disconnect", Access::Admins, "ends the connection of a client");

const CLIENTS_EXAMPLES: &str = "\
Examples:
  millrace ctl clients
  millrace ctl clients vol0           clients of the export vol0 only
  millrace ctl clients --json

Clients are those of NBD; `millrace stat --guests` shows virtual machines. A client's number is the \
one in the log, in `stat --clients` and in traces; another client has it later.
";

const DISCONNECT_EXAMPLES: &str = "\
Examples:
  millrace ctl clients                shows the numbers
  millrace ctl disconnect 1001        ends the connection of client 1001

Its requests in flight are answered first, unless it is asked for again. Many clients connect again at once; to keep one out, see \
allow-users of [[listener]], or tls-allow of [[export]].
Exit status: 0 if it is disconnected, 2 if there is no such client.
";

/// The client that is to be disconnected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    /// Its number.
    pub client: u16,
}

/// Arguments of `ctl clients`.
#[derive(Debug, clap::Args)]
#[command(after_help = CLIENTS_EXAMPLES)]
pub struct ClientsArgs {
    /// Only clients of this export
    export: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
}

/// Arguments of `ctl disconnect`.
#[derive(Debug, clap::Args)]
#[command(after_help = DISCONNECT_EXAMPLES)]
pub struct DisconnectArgs {
    /// The client's number
    client: u16,
    #[command(flatten)]
    daemon: Daemon,
}

/// The clients of a daemon.
pub fn of(daemon: &LiveDaemon) -> Clients {
    let servers = &daemon.lists().servers;
    let clients = servers.nbd.as_ref().map(Observer::clients).unwrap_or_default();
    let named = clients.into_iter().map(|one| ConnectedClient::new(one, &servers.groups));
    Clients { clients: named.collect() }
}

/// Disconnects a client of a daemon.
///
/// # Errors
/// `not-found` if there is none of that number.
pub fn answer_disconnect(
    daemon: &LiveDaemon,
    asked: &Disconnect,
) -> Result<ConnectedClient, Refusal> {
    let servers = &daemon.lists().servers;
    let number = asked.client;
    let gone = servers.nbd.as_ref().and_then(|nbd| nbd.disconnect(number));
    let gone = gone.map(|client| ConnectedClient::new(client, &servers.groups));
    gone.ok_or_else(|| {
        let text = format!("there is no client {number}; `millrace ctl clients` shows them");
        Refusal::new("not-found", text)
    })
}

/// Shows the clients.
///
/// # Errors
/// If the daemon is not there.
pub fn show(args: &ClientsArgs) -> Result<ExitCode> {
    let mut clients = args.daemon.connect.client()?.ask(&CLIENTS, &NoArguments {})?;
    if let Some(export) = &args.export {
        clients.clients.retain(|client| client.export == *export);
    }
    say(&match args.daemon.json {
        true => format!("{}\n", json!(clients)),
        false if clients.clients.is_empty() => match &args.export {
            Some(export) => format!("no client of an export {} is connected\n", visible(export)),
            None => "no client is connected\n".to_owned(),
        },
        false => table(&clients),
    });
    Ok(ExitCode::SUCCESS)
}

/// Disconnects one.
///
/// # Errors
/// If the daemon is not there, or has no such client.
pub fn disconnect(args: &DisconnectArgs) -> Result<ExitCode> {
    let asked = Disconnect { client: args.client };
    let client = args.daemon.connect.client()?.ask(&DISCONNECT, &asked)?;
    say(&match args.daemon.json {
        true => format!("{}\n", json!(client)),
        false => {
            let after = match client.in_flight {
                0 => String::new(),
                count => format!(
                    " when its {count} requests in flight are answered; the same command again \
                     does not wait for them"
                ),
            };
            let (number, peer) = (client.client, visible(&client.peer));
            let export = or_dash(&client.export);
            format!("client {number} ({peer}) of export {export} is disconnected{after}\n")
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn table(clients: &Clients) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "client",
        "export",
        "group",
        "connected",
        "requests",
        "bytes",
        "in flight",
        "peer",
        "waits for",
    ]);
    for column in [0, 3, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for client in &clients.clients {
        table.add_row(row(client));
    }
    format!("{}\n", table.trim_fmt())
}

fn row(client: &ConnectedClient) -> [String; 9] {
    [
        client.client.to_string(),
        or_dash(&client.export),
        or_dash(&client.group),
        clock(Duration::from_nanos(client.connected_ns)),
        client.requests.to_string(),
        bytes_for_people(client.bytes),
        client.in_flight.to_string(),
        or_dash(&client.peer),
        or_dash(&client.waits_for),
    ]
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { visible(text).into_owned() }
}

/// A time as days, hours, minutes and seconds, as far as there are some: `2d 03:04:05`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let rest = format!("{hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    if days > 0 { format!("{days}d {rest}") } else { rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_negotiates_has_dashes_and_control_characters_are_shown() {
        let seconds = |s| Duration::from_secs(s).as_nanos() as u64;
        let clients = Clients {
            clients: vec![
                ConnectedClient {
                    client: 1,
                    export: "vol0".into(),
                    group: "gold".into(),
                    peer: "process 12, user 0".into(),
                    connected_ns: seconds(93_784),
                    requests: 1500,
                    bytes: 3 << 20,
                    in_flight: 2,
                    waits_for: "memory".into(),
                },
                ConnectedClient { client: 1001, peer: "a\u{1b}b".into(), ..Default::default() },
            ],
        };
        let text = table(&clients);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(
            rows[1],
            [
                "1",
                "vol0",
                "gold",
                "1d 02:03:04",
                "1500",
                "3 MiB",
                "2",
                "process 12, user 0",
                "memory"
            ]
        );
        assert_eq!(rows[2][..4], ["1001", "-", "-", "00:00:00"]);
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
