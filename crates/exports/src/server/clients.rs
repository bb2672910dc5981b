//! What clients do, for the log: they connect, are granted an export, break rules, and leave.
//!
//! Events of `tracing` at level debug; the program shows them with `-v`. A client's number is that
//! of its I/O thread and, behind a dot, of the connection on that thread. Called by the worker and
//! the request path where a connection changes its state; nothing on the way of a request comes
//! here.

use std::fmt;

use super::connection::Connection;
use crate::nbd::ReplyStyle;

/// A client's number in the log.
struct Client {
    thread: usize,
    serial: u64,
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.thread, self.serial)
    }
}

fn client(thread: usize, conn: &Connection) -> Client {
    Client { thread, serial: conn.serial }
}

/// It connected to the listener of this address.
#[cold]
pub(crate) fn connected(thread: usize, conn: &Connection, address: &str) {
    let client = client(thread, conn);
    tracing::debug!(%client, address, "client {client} connected to {address}");
}

/// It may use an export.
#[cold]
pub(crate) fn granted(thread: usize, conn: &Connection, export: &str, style: ReplyStyle) {
    let (client, replies) = (client(thread, conn), format!("{style:?}").to_lowercase());
    tracing::debug!(%client, export, "client {client} uses export {export:?}, {replies} replies");
}

/// The server closes its connection, for this reason.
#[cold]
pub(crate) fn ended(thread: usize, conn: &Connection, why: impl fmt::Display) {
    let client = client(thread, conn);
    tracing::debug!(%client, %why, "client {client} is disconnected: {why}");
}

/// Its connection is closed.
#[cold]
pub(crate) fn left(thread: usize, conn: &Connection) {
    let client = client(thread, conn);
    tracing::debug!(%client, "client {client} is gone");
}
