//! Clients of NBD and virtual machines, on the control socket.
//!
//! The servers report group numbers (`ClientReport`); this module adds the names. `ctl clients` and
//! `ctl disconnect` read it; docs/control.md describes it.

use millrace::ServedGroups;
use millrace_exports::ClientReport;
use serde::{Deserialize, Serialize};

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
    /// Process and user, or address, of the client, with the name in its certificate if it has one.
    pub peer: String,
    /// Name of the client's export; empty while it negotiates.
    pub export: String,
    pub group: String,
    pub connected_ns: u64,
    /// Number of requests received. For a virtual machine, number of requests answered.
    pub requests: u64,
    pub bytes: u64,
    pub in_flight: u32,
    /// Reason why the client's next request waits; empty if it does not wait.
    pub waits_for: String,
}

impl ConnectedClient {
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
