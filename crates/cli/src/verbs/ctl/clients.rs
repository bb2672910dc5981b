//! `clients` and `disconnect`: list the connected clients, and disconnect one.
//!
//! This file has the arguments, the daemon's part, and `millrace ctl clients` and `disconnect`.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use millrace::ServedGroups;
use millrace_console::{Side, TextGrid, visible};
use millrace_exports::ClientReport;
use millrace_machine::nanoseconds;
use serde::{Deserialize, Serialize};

use super::Daemon;
use crate::config::words::bytes_for_people;
use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::requests::NoArguments;
use crate::views::{Access, Refusal, Verb};

pub const CLIENTS: Verb<NoArguments, Clients> =
    Verb::new("clients", Access::Everybody, "clients, by number");
pub const DISCONNECT: Verb<Disconnect, ConnectedClient> =
    Verb::new("disconnect", Access::Admins, "disconnects a client");

const CLIENTS_EXAMPLES: &str = "\
Examples:
  millrace ctl clients
  millrace ctl clients vol0           clients of the export vol0 only
  millrace ctl clients --json

Clients come via NBD or, as virtual machines (vm), via vhost-user-blk; `millrace stat --guests` shows \
the queues of these. A client has the same number in the log, in `stat --clients` and in traces. \
After it leaves, another client may get its number. Virtual machines of an export have the same \
number one after another.
";

const DISCONNECT_EXAMPLES: &str = "\
Examples:
  millrace ctl clients                shows the numbers
  millrace ctl disconnect 1001        ends the connection of client 1001

Its requests in flight are answered first. The same command again does not wait for them. Many \
clients reconnect at once; to keep one out, see allow-users of [[listener]], or tls-allow of \
[[export]]. QEMU reconnects only if its chardev has reconnect-ms: without it, the disk of that \
virtual machine hangs until \
the machine is restarted.
Exit status: 0 if it is disconnected, 2 if there is no such client.
";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clients {
    pub clients: Vec<ConnectedClient>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectedClient {
    /// Number of the client, as in the log, in `stat --clients` and in traces.
    pub client: u16,
    /// Protocol: `nbd` or `vhost-user-blk`.
    pub protocol: String,
    /// Client's process and user, or its address; then the name in its certificate, if any.
    pub peer: String,
    /// Name of the client's export; empty while the client negotiates.
    pub export: String,
    pub group: String,
    pub connected_ns: u64,
    /// Number of requests received. For a virtual machine, number of requests answered.
    pub requests: u64,
    pub bytes: u64,
    pub in_flight: u32,
    /// Reason why the client's next request waits; empty if no request waits.
    pub waits_for: String,
}

impl ConnectedClient {
    fn new(report: ClientReport, groups: &ServedGroups) -> ConnectedClient {
        let group = groups.table().config(report.group).filter(|_| !report.export.is_empty());
        ConnectedClient {
            client: report.number,
            protocol: report.protocol.to_owned(),
            peer: report.peer,
            export: report.export,
            group: group.map(|group| group.name).unwrap_or_default(),
            connected_ns: nanoseconds(report.connected),
            requests: report.requests,
            bytes: report.bytes,
            in_flight: report.in_flight,
            waits_for: report.waits_for.to_owned(),
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = CLIENTS_EXAMPLES)]
pub struct ClientsArgs {
    /// Show only clients of this export
    export: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields)]
#[command(after_help = DISCONNECT_EXAMPLES)]
pub struct Disconnect {
    /// Number of the client
    client: u16,
}

pub fn of(daemon: &LiveDaemon) -> Clients {
    let servers = &daemon.lists().servers;
    let named = |one| ConnectedClient::new(one, &servers.groups);
    Clients { clients: servers.clients().into_iter().map(named).collect() }
}

pub fn answer_disconnect(
    daemon: &LiveDaemon,
    asked: &Disconnect,
) -> Result<ConnectedClient, Refusal> {
    let servers = &daemon.lists().servers;
    let number = asked.client;
    let gone = servers.disconnect(number).ok_or_else(|| {
        let text = format!("there is no client {number}; `millrace ctl clients` shows them");
        Refusal::new("not-found", text)
    })?;
    Ok(ConnectedClient::new(gone, &servers.groups))
}

pub fn show(daemon: &Daemon, args: &ClientsArgs) -> Result<ExitCode> {
    let mut clients = daemon.ask(&CLIENTS, &NoArguments {})?;
    if let Some(export) = &args.export {
        clients.clients.retain(|client| client.export == *export);
    }
    daemon.print(&clients, || match &args.export {
        _ if !clients.clients.is_empty() => table(&clients),
        Some(export) => format!("export {} has no connected clients\n", visible(export)),
        None => "no client is connected\n".to_owned(),
    })
}

pub fn disconnect(daemon: &Daemon, asked: &Disconnect) -> Result<ExitCode> {
    let client = daemon.ask(&DISCONNECT, asked)?;
    daemon.print(&client, || {
        let after = match client.in_flight {
            0 => String::new(),
            count => format!(
                " when its {count} requests in flight are answered; the same command again does \
                 not wait for them"
            ),
        };
        let (number, peer) = (client.client, visible(&client.peer));
        let export = or_dash(&client.export);
        format!("client {number} ({peer}) of export {export} is disconnected{after}\n")
    })
}

fn table(clients: &Clients) -> String {
    let left = |head| (head, Side::Left);
    let right = |head| (head, Side::Right);
    let mut grid = TextGrid::new([
        right("client"),
        left("export"),
        left("group"),
        left("via"),
        right("connected"),
        right("requests"),
        right("bytes"),
        right("in flight"),
        left("peer"),
    ]);
    clients.clients.iter().for_each(|client| grid.row(row(client)));
    let mut text = format!("{}\n", grid.text());
    for client in clients.clients.iter().filter(|client| !client.waits_for.is_empty()) {
        let (number, reason) = (client.client, visible(&client.waits_for));
        let _ = writeln!(text, "client {number} waits for {reason}");
    }
    text
}

fn row(client: &ConnectedClient) -> [String; 9] {
    let is_guest = client.protocol == "vhost-user-blk";
    [
        client.client.to_string(),
        or_dash(&client.export),
        or_dash(&client.group),
        if is_guest { "vm" } else { "nbd" }.to_owned(),
        clock(Duration::from_nanos(client.connected_ns)),
        client.requests.to_string(),
        bytes_for_people(client.bytes),
        client.in_flight.to_string(),
        or_dash(&client.peer),
    ]
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { visible(text).into_owned() }
}

/// Formats a time as `hh:mm:ss`, and a time of a day or more as `2d 03:04`.
fn clock(time: Duration) -> String {
    let (seconds, minutes) = (time.as_secs(), time.as_secs() / 60);
    match (minutes / 1440, minutes / 60 % 24, minutes % 60) {
        (0, hours, minutes) => format!("{hours:02}:{minutes:02}:{:02}", seconds % 60),
        (days, hours, minutes) => format!("{days}d {hours:02}:{minutes:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_names_with_dashes_and_controls_are_shown() {
        let seconds = |s| Duration::from_secs(s).as_nanos() as u64;
        let clients = Clients {
            clients: vec![
                ConnectedClient {
                    client: 1,
                    protocol: "nbd".into(),
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
                ConnectedClient {
                    client: 50_000,
                    protocol: "vhost-user-blk".into(),
                    export: "vm-disk-7".into(),
                    group: "gold".into(),
                    peer: "process 123456, user 64055".into(),
                    connected_ns: seconds(93_784),
                    requests: 12_345_678,
                    bytes: 1023 << 40,
                    in_flight: 256,
                    ..Default::default()
                },
            ],
        };
        let text = table(&clients);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        let usual =
            ["1", "vol0", "gold", "nbd", "1d 02:03", "1500", "3 MiB", "2", "process 12, user 0"];
        assert_eq!(rows[1], usual);
        assert_eq!(rows[2][..5], ["1001", "-", "-", "nbd", "00:00:00"]);
        assert_eq!(rows[3][..4], ["50000", "vm-disk-7", "gold", "vm"]);
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(100), "{text}");
        assert_eq!(text.lines().last(), Some("client 1 waits for memory"));
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
