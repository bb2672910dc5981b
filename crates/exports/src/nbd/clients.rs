//! Reports on the connected NBD clients for operators, and disconnects a client on request.
//!
//! Each I/O thread reports on its own clients between two iterations of its event loop. So a report
//! does not slow requests down.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use millrace_block::GroupId;
use millrace_machine::{Machine, Native};

use super::Observer;
use super::connection::{Connection, ConnectionPhase, client_log};
use super::memory::waiting_line::MemoryWait;
use super::server_state::ThreadMessage;
use super::worker::Worker;
use crate::ClientReport;

/// Time limit for I/O threads to answer. A thread may exceed the limit if a drive blocks it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

impl Observer {
    /// Returns reports of all NBD clients, sorted by client number. Clients of threads that hang
    /// are left out.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientReport> {
        let mut clients = self.ask(ThreadMessage::Report);
        clients.sort_by_key(|client| client.number);
        clients
    }

    /// Disconnects client `number` once its requests in flight are answered. A second call, or a
    /// call during the negotiation, disconnects the client at once. Returns the client's report, or
    /// `None` if there is no such client.
    #[must_use]
    pub fn disconnect(&self, number: u16) -> Option<ClientReport> {
        self.ask(|to| ThreadMessage::Disconnect(number, to)).pop()
    }

    fn ask(&self, message: impl Fn(Sender<ClientReport>) -> ThreadMessage) -> Vec<ClientReport> {
        let (to, from): (_, Receiver<ClientReport>) = channel();
        self.0.mailboxes.iter().for_each(|mailbox| mailbox.put(message(to.clone())));
        drop(to);
        let mut reports = Vec::new();
        // The loop ends when every thread has dropped its sender.
        while let Ok(report) = from.recv_timeout(ANSWER_TIMEOUT) {
            reports.push(report);
        }
        reports
    }
}

pub(crate) fn report(worker: &Worker, to: &Sender<ClientReport>) {
    for conn in worker.conns.iter().flatten().filter(|conn| conn.phase != ConnectionPhase::Dead) {
        // `send` fails if the caller of `Observer::clients` has stopped waiting, which is no error
        // here.
        let _ = to.send(report_of(conn));
    }
}

pub(crate) fn disconnect(worker: &mut Worker, number: u16, to: &Sender<ClientReport>) {
    let is_it = |conn: &&mut Box<Connection>| conn.history.number == number;
    let Some(conn) = worker.conns.iter_mut().flatten().find(is_it) else { return };
    let _ = to.send(report_of(conn));
    client_log::ended(conn, "an operator disconnects it");
    match conn.phase {
        // The session is already ending, so this call cuts the client off at once.
        ConnectionPhase::Draining => worker.core.kill(conn),
        _ => worker.core.end_session(conn),
    }
}

fn report_of(conn: &Connection) -> ClientReport {
    let (export, group) = match (&conn.history.export, &conn.granted) {
        (Some((export, _)), Some(granted)) => (export.name.clone(), granted.group),
        _ => (String::new(), GroupId::DEFAULT),
    };
    let name = conn.tls.as_ref().and_then(|tls| tls.session.peer()).map(ToString::to_string);
    let peer = client_log::peer(conn);
    ClientReport {
        number: conn.history.number,
        protocol: "nbd",
        peer: name.map_or_else(|| peer.clone(), |name| format!("{peer}, {name}")),
        export,
        connected: Duration::from_nanos(Native::now().saturating_sub(conn.history.connected_ns)),
        requests: conn.history.requests,
        bytes: conn.history.bytes,
        in_flight: conn.in_flight,
        group,
        waits_for: waits_for(conn),
    }
}

/// Returns the reason why the server takes no requests from the client now, or an empty string.
fn waits_for(conn: &Connection) -> &'static str {
    match conn.memory_wait {
        _ if conn.phase == ConnectionPhase::Draining => "its last replies to leave",
        MemoryWait::None if conn.waits_to_send() => "the client to read its replies",
        MemoryWait::None if conn.history.stopped_ns != 0 => "earlier requests",
        MemoryWait::None => "",
        MemoryWait::Buffers => "the memory of earlier requests",
        MemoryWait::Queued => "memory",
    }
}
