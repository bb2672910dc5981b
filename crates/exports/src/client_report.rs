//! A client as operators see it: a client of NBD, or the frontend of a virtual machine.
//!
//! Made by nbd/clients.rs and vhost/frontends.rs for whoever owns the servers.

use millrace_block::GroupId;

/// One client, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    /// Its number, which is the tenant of its I/Os. Virtual machines of one export have one number,
    /// one after the other.
    pub number: u16,
    /// `nbd` or `vhost-user-blk`.
    pub protocol: &'static str,
    /// Where it is: process and user, or address; with the name in its certificate if it has one.
    pub peer: String,
    /// The name of its export; empty while it negotiates.
    pub export: String,
    /// Time since it connected, in nanoseconds.
    pub connected_ns: u64,
    /// Requests it has sent; of a virtual machine, those that are answered.
    pub requests: u64,
    /// Bytes that it read and wrote.
    pub bytes: u64,
    /// Requests that are not answered yet.
    pub in_flight: u32,
    /// Its group.
    pub group: GroupId,
    /// Reason for which its next request waits; empty if it does not wait.
    pub waits_for: &'static str,
}

/// A process of this machine and its user, as [`ClientReport::peer`] has them.
pub(crate) fn process_words(pid: i32, uid: u32) -> String {
    format!("process {pid}, user {uid}")
}
