//! Clients of NBD, and virtual machines, as the control socket tells them.
//!
//! The servers have the numbers (`ClientReport`); here groups have their names. Read by `ctl
//! clients` and `ctl disconnect`; described in docs/control.md.

use millrace::ServedGroups;
use millrace_exports::ClientReport;
use serde::{Deserialize, Serialize};

/// The clients at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// By number.
    pub clients: Vec<ConnectedClient>,
}

/// A client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectedClient {
    /// Its number, as in the log, in `stat --clients` and in traces.
    pub client: u16,
    /// `nbd` or `vhost-user-blk`.
    pub protocol: String,
    /// Where it is: its process and user, or its address; with its name by certificate.
    pub peer: String,
    /// Its export; empty while it negotiates.
    pub export: String,
    /// Its group; empty while it negotiates.
    pub group: String,
    /// Time since it connected, in nanoseconds.
    pub connected_ns: u64,
    /// Requests that it has sent; of a virtual machine, those that are answered.
    pub requests: u64,
    /// Bytes that it has read and written.
    pub bytes: u64,
    /// Requests that are not answered yet.
    pub in_flight: u32,
    /// Reason for which its next request waits; empty if it does not wait.
    pub waits_for: String,
}

impl ConnectedClient {
    /// A client of the server, whose groups these are.
    pub fn new(report: ClientReport, groups: &ServedGroups) -> ConnectedClient {
        let group = groups.table().config(report.group).filter(|_| !report.export.is_empty());
        ConnectedClient {
            client: report.number,
            protocol: report.protocol.to_owned(),
            peer: report.peer,
            export: report.export,
            group: group.map(|group| group.name).unwrap_or_default(),
            connected_ns: report.connected_ns,
            requests: report.requests,
            bytes: report.bytes,
            in_flight: report.in_flight,
            waits_for: report.waits_for.to_owned(),
        }
    }
}
