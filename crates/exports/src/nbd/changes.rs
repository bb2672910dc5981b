//! Replaces exports and listeners of a running server. Clients of kept exports notice nothing.
//!
//! [`Server::prepare`] does everything that can fail: it validates the new lists and binds new
//! sockets. [`Server::apply`] cannot fail. Clients of removed exports are disconnected once their
//! requests are answered. Dropping a prepared change closes its sockets and changes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Error, ErrorKind};

use super::Server;
use super::config::{ExportConfig, ListenConfig};
use super::exports::{ExportTable, ServedVolume};
use super::listen::{Listen, Listener};
use super::renewal::CertificateWatcher;
use crate::mailbox::lock;
use millrace_machine::debug_fields;

/// Time limit for the I/O threads to switch to the new exports. A thread may exceed the limit if a
/// drive blocks it.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_micros(200);

/// A prepared change of a running server's exports and listeners.
pub struct ExportChange {
    exports: Arc<ExportTable>,
    renewal: Option<CertificateWatcher>,
    listens: Vec<Listen>,
    /// Sockets of new listeners, with their listener numbers.
    bound: Vec<(usize, Listener)>,
}

debug_fields!(ExportChange, bound);

impl ExportChange {
    /// Returns the address of a socket that was bound for this change, with its assigned port.
    #[must_use]
    pub fn address(&self, listen: &Listen) -> Option<Listen> {
        let number = self.exports.number_of(listen)?;
        let bound = self.bound.iter().find(|(bound, _)| *bound == number);
        bound.map(|(_, listener)| listener.address())
    }
}

impl Server {
    /// Validates new lists of exports and listeners, and binds the sockets of new listeners. An
    /// export keeps its clients if name, volume and access are unchanged; a listener stays if its
    /// address is unchanged.
    ///
    /// # Errors
    /// The errors of [`Server::start`]. Nothing changes on an error.
    pub fn prepare(
        &self,
        exports: Vec<ExportConfig>,
        listeners: &[ListenConfig],
    ) -> Result<ExportChange, Error> {
        let threads = self.shared.mailboxes.len() as u16;
        let now = self.shared.exports();
        let exports = now.followed_by(exports, listeners, threads)?;
        let mut bound = Vec::new();
        for one in listeners {
            let number = exports.number_of(&one.listen).expect("each listener has a number");
            match now.catalog(number) {
                Some(catalog) if catalog.access.has_same_file(&one.access) => {}
                Some(_) => {
                    let text = format!(
                        "{}: mode, owner and group of a socket cannot change while it is open; \
                         remove the listener, reload, and add it again",
                        one.listen
                    );
                    return Err(Error::new(ErrorKind::NotSupported, text));
                }
                None => bound.push((number, Listener::bind(&one.listen, &one.access)?)),
            }
        }
        let renewal = CertificateWatcher::start(listeners)?;
        let listens = listeners.iter().map(|one| one.listen.clone()).collect();
        Ok(ExportChange { exports: Arc::new(exports), renewal, listens, bound })
    }

    /// Applies a prepared change, and waits a limited time until all I/O threads serve the new
    /// exports. Clients of removed exports are disconnected, but their requests may still be in
    /// flight.
    pub fn apply(&mut self, change: ExportChange) -> RemovedVolumes {
        let ExportChange { exports, renewal, listens, bound } = change;
        self._renewal = renewal;
        let before = self.shared.exports();
        let mut sockets = lock(&self.shared.sockets);
        for (number, listener) in bound {
            if sockets.len() <= number {
                sockets.resize_with(number + 1, || None);
            }
            sockets[number] = Some(listener);
        }
        drop(sockets);
        self.replace(Arc::clone(&exports));
        // No thread accepts on removed sockets any more.
        let mut sockets = lock(&self.shared.sockets);
        for (number, socket) in sockets.iter_mut().enumerate() {
            if exports.catalog(number).is_none() {
                *socket = None;
            }
        }
        let address = |listen: &Listen| {
            let socket = exports.number_of(listen).and_then(|number| sockets.get(number)?.as_ref());
            socket.map_or_else(|| listen.clone(), Listener::address)
        };
        self.addresses = listens.iter().map(address).collect();
        let kept: HashSet<_> = exports.volumes.iter().map(Arc::as_ptr).collect();
        let is_gone = |one: &&Arc<ServedVolume>| !kept.contains(&Arc::as_ptr(one));
        RemovedVolumes(before.volumes.iter().filter(is_gone).cloned().collect())
    }

    /// Hands new exports to all I/O threads, and waits for a limited time until they are served.
    pub(super) fn replace(&self, exports: Arc<ExportTable>) {
        let version = self.shared.served.replace(exports);
        self.shared.note_change();
        self.shared.mailboxes.iter().for_each(|mailbox| mailbox.ring());
        let deadline = Instant::now() + FOLLOW_TIMEOUT;
        while !self.shared.served.is_served(version)
            && Instant::now() < deadline
            && !self.has_failed()
        {
            std::thread::sleep(LOOK);
        }
    }

    /// Adds an export that no listener lists. A client gets the export by
    /// [`ExportRequest::grant`](super::ExportRequest::grant).
    ///
    /// # Errors
    /// `InvalidSetting` for an invalid name, or a volume too large for the protocol.
    pub fn add_on_demand(&mut self, export: ExportConfig) -> Result<(), Error> {
        let threads = self.shared.mailboxes.len() as u16;
        let exports = self.shared.exports().with(export, threads)?;
        self.replace(Arc::new(exports));
        Ok(())
    }

    /// Returns true if a client uses the on-demand export `name` or was granted the export.
    #[must_use]
    pub fn is_used_on_demand(&self, name: &str) -> bool {
        self.shared.exports().on_demand(name).is_some_and(|export| export.served.is_in_use())
    }

    /// Returns true if a client has used the on-demand export `name` at any time.
    #[must_use]
    pub fn was_used_on_demand(&self, name: &str) -> bool {
        self.shared.exports().on_demand(name).is_some_and(|export| export.served.was_used())
    }

    /// Removes an unused export that [`Server::add_on_demand`] added. The caller must flush the
    /// volume of the export before closing the volume.
    pub fn remove_on_demand(&mut self, name: &str) {
        let exports = self.shared.exports().without(name);
        self.replace(Arc::new(exports));
    }
}

/// Volumes that a change removed from the server. The caller must flush them before closing them.
pub struct RemovedVolumes(Vec<Arc<ServedVolume>>);

debug_fields!(RemovedVolumes);

impl RemovedVolumes {
    /// Returns true if no I/O thread has a client, a request or a queue of these volumes any more.
    #[must_use]
    pub fn are_unused(&self) -> bool {
        !self.0.iter().any(|served| served.is_in_use())
    }
}
