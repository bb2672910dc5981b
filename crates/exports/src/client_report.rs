//! Report of one client for operators: an NBD client, or the frontend of a virtual machine.
//!
//! nbd/clients.rs and vhost/frontends.rs create the reports for the owner of the servers.

use std::time::Duration;

use millrace_block::GroupId;

/// State of one client at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    /// Number of the client, with which the block layer marks the client's I/Os (tenant number).
    /// Virtual machines that use an export one after another have the same number.
    pub number: u16,
    /// `nbd` or `vhost-user-blk`.
    pub protocol: &'static str,
    /// Client's process and user, or its address; then the name in its certificate, if it has one.
    pub peer: String,
    /// Name of the client's export; empty during the negotiation.
    pub export: String,
    /// Time since the client connected.
    pub connected: Duration,
    /// Number of requests that the client sent. For a virtual machine, number of requests that
    /// completed.
    pub requests: u64,
    /// Bytes read and written by the client.
    pub bytes: u64,
    /// Number of requests that are not answered yet.
    pub in_flight: u32,
    /// I/O group of the client.
    pub group: GroupId,
    /// Reason why the client's next request waits; empty if it does not wait.
    pub waits_for: &'static str,
}

pub(crate) fn process_words(pid: i32, uid: u32) -> String {
    format!("process {pid}, user {uid}")
}
