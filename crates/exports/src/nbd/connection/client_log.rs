//! Log events of clients: connecting, being granted an export, breaking rules, leaving.
//!
//! These are `tracing` events, most at level debug, never for single requests.

use std::fmt;

use super::Connection;
use crate::client_report::process_words;
use crate::nbd::ring::{peer_of, process_of};
use millrace_nbd::ReplyStyle;

/// Returns the client's address as a suffix for log lines; empty if the socket has no address.
fn whence(conn: &Connection) -> String {
    peer_of(conn.fd).map_or_else(String::new, |peer| format!(" from {peer}"))
}

/// Returns the client's address, or the process ID of a client on this machine.
fn named(conn: &Connection) -> String {
    let from = whence(conn);
    match process_of(conn.fd).filter(|_| from.is_empty()) {
        Some((pid, _)) => format!(" (process {pid})"),
        None => from,
    }
}

pub(crate) fn peer(conn: &Connection) -> String {
    match (peer_of(conn.fd), process_of(conn.fd)) {
        (Some(address), _) => address.to_string(),
        (None, Some((pid, uid))) => process_words(pid, uid),
        (None, None) => "unknown".to_owned(),
    }
}

#[cold]
pub(crate) fn connected(conn: &Connection, address: &str) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let (client, from) = (conn.history.number, whence(conn));
    tracing::debug!(%client, address, "client {client}{from} connected to {address}");
}

#[cold]
pub(crate) fn granted(conn: &Connection, export: &str, style: ReplyStyle) {
    let (client, replies) = (conn.history.number, format!("{style:?}").to_lowercase());
    tracing::debug!(
        %client, export, "client {client} uses export {export:?}; reply format: {replies}"
    );
}

#[cold]
pub(crate) fn secured(conn: &Connection, how: &str, who: Option<&str>) {
    let (client, who) = (conn.history.number, who.unwrap_or("nobody in particular"));
    tracing::debug!(%client, who, "client {client} is {who}, encrypted with {how}");
}

#[cold]
pub(crate) fn refused(conn: &Connection, address: &str, why: impl fmt::Display) {
    let (client, from) = (conn.history.number, whence(conn));
    tracing::warn!(%client, address, "{address}: client {client}{from} is refused: {why}");
}

#[cold]
pub(crate) fn not_allowed(conn: &Connection, why: &str) {
    let (client, from) = (conn.history.number, whence(conn));
    tracing::warn!(%client, "client {client}{from}: {why}");
}

#[cold]
pub(crate) fn broken(conn: &Connection, why: impl fmt::Display) {
    let (client, from) = (conn.history.number, whence(conn));
    tracing::warn!(%client, "client {client}{from} is disconnected: {why}");
}

#[cold]
pub(crate) fn unread(conn: &Connection) {
    let (client, from) = (conn.history.number, named(conn));
    tracing::warn!(
        %client,
        "client {client}{from} does not read its replies and is disconnected, as the daemon stops; its \
         requests are done, and nothing is lost"
    );
}

#[cold]
pub(crate) fn ended(conn: &Connection, why: impl fmt::Display) {
    let client = conn.history.number;
    tracing::debug!(%client, %why, "client {client} is disconnected: {why}");
}

#[cold]
pub(crate) fn left(conn: &Connection) {
    let client = conn.history.number;
    tracing::debug!(%client, "client {client} is gone");
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt::Write;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::mailbox::lock;
    use crate::nbd::tests::connection;

    /// Subscriber that collects the text of log events, for tests.
    struct Log(Arc<Mutex<String>>);

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Message<'a>(&'a mut String);
            impl Visit for Message<'_> {
                fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                    if field.name() == "message" {
                        writeln!(self.0, "{value:?}").expect("memory for a line");
                    }
                }
            }
            event.record(&mut Message(&mut lock(&self.0)));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Returns the messages that the calling thread logs while `run` runs, one on each line.
    pub(crate) fn logged(run: impl FnOnce()) -> String {
        let log = Arc::new(Mutex::new(String::new()));
        tracing::subscriber::with_default(Log(Arc::clone(&log)), run);
        std::mem::take(&mut *lock(&log))
    }

    #[test]
    fn the_log_says_what_clients_do() {
        let log = logged(|| {
            let (mut conn, _sockets) = connection(7);
            conn.history.number = 3001;
            connected(&conn, "unix:/s");
            granted(&conn, "x", ReplyStyle::Extended);
            ended(&conn, "it is bad");
            left(&conn);
        });
        let expected = "client 3001 connected to unix:/s\nclient 3001 uses export \"x\"; \
                        reply format: extended\nclient 3001 is disconnected: it is bad\n\
                        client 3001 is gone\n";
        assert_eq!(log, expected);
    }
}
