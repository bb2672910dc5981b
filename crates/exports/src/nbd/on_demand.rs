//! Exports that are opened when a client asks for them.
//!
//! An I/O thread that finds the name of such an export in a negotiation puts an [`ExportRequest`]
//! into the queue and lets the client wait. The owner of the server takes the request from
//! [`ExportRequests`] on another thread, since opening a file may take long, adds the export and
//! answers. Requests for the list of export names are answered in the same way.
//!
//! Invariants: a request is answered exactly once, at the latest when it is dropped. A granted
//! export counts as used until its client's I/O thread has opened the volume, or the client has
//! left.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use millrace_machine::debug_fields;
use millrace_tls::PeerNames;

use super::Server;
use super::exports::Export;
use super::listen::Listen;
use super::server_state::{ServerState, ThreadMessage};
use crate::mailbox::lock;

/// Queue of requests for exports that are not open. Clones share the queue.
#[derive(Clone, Default)]
pub struct ExportRequests(Arc<RequestQueue>);

#[derive(Default)]
struct RequestQueue {
    waiting: Mutex<VecDeque<ExportRequest>>,
    came: Condvar,
}

impl ExportRequests {
    /// Takes the oldest request, waiting for one up to `timeout`.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Option<ExportRequest> {
        let waiting = lock(&self.0.waiting);
        let next = self.0.came.wait_timeout_while(waiting, timeout, |all| all.is_empty());
        next.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }

    pub(crate) fn clear(&self) {
        let refused = std::mem::take(&mut *lock(&self.0.waiting));
        drop(refused);
    }

    pub(crate) fn put(&self, request: ExportRequest) {
        lock(&self.0.waiting).push_back(request);
        self.0.came.notify_one();
    }
}

debug_fields!(ExportRequests);

/// Export or list that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedExport {
    /// The client asks for the export of this name.
    Named(String),
    /// The client asks for the names of all exports.
    All,
}

/// A client that waits for an export or for a list of exports. Dropping this value refuses the
/// client.
pub struct ExportRequest {
    /// Address that the client connected to.
    pub listen: Listen,
    /// Export or list that the client asks for.
    pub wanted: RequestedExport,
    /// Names in the client's certificate, if it sent one.
    pub peer: Option<PeerNames>,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) thread: usize,
    pub(crate) connection: usize,
    pub(crate) serial: u64,
    pub(crate) waits: Weak<()>,
    pub(crate) is_answered: bool,
}

#[derive(Debug, Default)]
pub(crate) enum OnDemandState {
    #[default]
    None,
    /// The client waits for the answer. `_alive` is dropped when the client stops waiting.
    Waiting {
        _alive: Arc<()>,
    },
    ExportSession(String, GrantedExport),
    /// Name of an export that the client does not get, and the reason. Without a reason, no such
    /// export exists.
    Refused(String, Option<String>),
    Listed(Arc<Vec<String>>),
}

debug_fields!(ExportRequest, listen, wanted, peer);

impl ExportRequest {
    /// Grants the server's export `export` to the client, under the name that the client requested.
    pub fn grant(mut self, server: &Server, export: &str) {
        match server.shared.exports().on_demand(export) {
            Some(export) => {
                let name = self.name();
                self.answer(OnDemandState::ExportSession(name, GrantedExport::new(export)));
            }
            None => self.refuse(format!("export {export} is gone")),
        }
    }

    /// Refuses an export that exists but cannot be served, and tells the client the reason.
    pub fn refuse(mut self, why: impl Into<String>) {
        let name = self.name();
        self.answer(OnDemandState::Refused(name, Some(why.into())));
    }

    /// Tells the client that there is no such export.
    pub fn refuse_unknown(mut self) {
        let name = self.name();
        self.answer(OnDemandState::Refused(name, None));
    }

    /// Sends the names of on-demand exports to a client that lists exports. If the client requested
    /// a single export, refuses that export.
    pub fn list(mut self, names: Arc<Vec<String>>) {
        if self.wanted == RequestedExport::All {
            self.answer(OnDemandState::Listed(names));
        }
    }

    /// Returns true if the client has disconnected while it waited.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.waits.strong_count() == 0
    }

    fn name(&self) -> String {
        match &self.wanted {
            RequestedExport::Named(name) => name.clone(),
            RequestedExport::All => String::new(),
        }
    }

    fn answer(&mut self, demand: OnDemandState) {
        self.is_answered = true;
        let (connection, serial) = (self.connection, self.serial);
        let answer = ThreadMessage::Answer { connection, serial, demand };
        self.shared.mailboxes[self.thread].put(answer);
    }
}

impl Drop for ExportRequest {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let why = "the server opens no files now".to_owned();
        let demand = match self.wanted {
            RequestedExport::Named(_) => OnDemandState::Refused(self.name(), Some(why)),
            RequestedExport::All => OnDemandState::Listed(Arc::default()),
        };
        self.answer(demand);
    }
}

/// An export that was opened for a client. The export counts as used until this value is dropped.
#[derive(Debug)]
pub(crate) struct GrantedExport(pub(crate) Arc<Export>);

impl GrantedExport {
    fn new(export: Arc<Export>) -> GrantedExport {
        export.served.enter();
        GrantedExport(export)
    }

    /// Returns the index by which the negotiation refers to the export, different from the indices
    /// of all listed exports.
    pub(crate) fn index(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Drop for GrantedExport {
    fn drop(&mut self) {
        self.0.served.leave();
    }
}
