//! Other exports and listeners for a server that runs, without a word to the clients of the rest.
//!
//! [`Server::prepare`] does all that can fail: it checks the new lists against each other and binds
//! sockets that are new. [`Server::apply`] cannot fail: the I/O threads take the new list when they
//! are rung, thread 0 accepts on the new sockets and no longer on those that go, and clients of
//! exports that go are disconnected when their requests are answered. A change that is dropped
//! instead closes its sockets and changes nothing. Called by whoever owns the server, one change at
//! a time.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_block::{Error, ErrorKind};

use super::Server;
use super::config::{ExportConfig, ListenConfig};
use super::exports::{Exports, ServedVolume};
use super::listen::{Listen, Listener};
use super::renewal::Renewal;
use crate::mailbox::lock;

/// How long I/O threads may take to serve other exports: one may hang in a drive.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at whether they do.
const LOOK: Duration = Duration::from_micros(200);

/// Exports and listeners that a running server is to have from now on.
pub struct ExportChange {
    exports: Arc<Exports>,
    renewal: Option<Renewal>,
    /// Addresses in the order of the configuration.
    listens: Vec<Listen>,
    /// By the numbers of the listeners; those that stay have none here.
    bound: Vec<(usize, Listener)>,
}

impl fmt::Debug for ExportChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportChange").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl ExportChange {
    /// The address of a socket that was bound for this change, with its real port.
    #[must_use]
    pub fn address(&self, listen: &Listen) -> Option<Listen> {
        let number = self.exports.number_of(listen)?;
        let bound = self.bound.iter().find(|(bound, _)| *bound == number);
        bound.map(|(_, listener)| listener.address())
    }
}

impl Server {
    /// Looks whether the server can have these exports and listeners instead of its own, and binds
    /// the sockets of listeners that are new. An export goes on with its clients if it has the
    /// name, the volume and the access of one of now; a listener if it has the address of one.
    ///
    /// # Errors
    /// As [`Server::start`]; nothing has changed then.
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
        let renewal = Renewal::start(listeners)?;
        let listens = listeners.iter().map(|one| one.listen.clone()).collect();
        Ok(ExportChange { exports: Arc::new(exports), renewal, listens, bound })
    }

    /// Makes a change that was prepared. Returns when all I/O threads serve the new exports, or
    /// when one hangs for too long; requests of clients that are disconnected may be in flight
    /// then.
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
        // No thread accepts there any more.
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
}

impl Server {
    /// Has all I/O threads serve other exports, and waits until they do.
    pub(super) fn replace(&self, exports: Arc<Exports>) {
        let version = self.shared.served.replace(exports);
        self.shared.note_change();
        self.shared.mailboxes.iter().for_each(|mailbox| mailbox.ring());
        let deadline = Instant::now() + FOLLOW_TIMEOUT;
        while !self.shared.served.is_served(version) && Instant::now() < deadline && !self.failed()
        {
            std::thread::sleep(LOOK);
        }
    }
}

impl Server {
    /// Adds an export that is on no listener's list: clients get it by
    /// [`ExportRequest::grant`](super::ExportRequest::grant).
    ///
    /// # Errors
    /// `InvalidSetting` for a bad name or a volume too large for the protocol.
    pub fn add_on_demand(&mut self, export: ExportConfig) -> Result<(), Error> {
        let threads = self.shared.mailboxes.len() as u16;
        let exports = self.shared.exports().with(export, threads)?;
        self.replace(Arc::new(exports));
        Ok(())
    }

    /// Returns true if a client has an export of this name, or is about to get it.
    #[must_use]
    pub fn is_used_on_demand(&self, name: &str) -> bool {
        self.shared.exports().on_demand(name).is_some_and(|export| export.served.is_in_use())
    }

    /// Returns true if a client was granted an export of this name and used it.
    #[must_use]
    pub fn was_used_on_demand(&self, name: &str) -> bool {
        self.shared.exports().on_demand(name).is_some_and(|export| export.served.was_used())
    }

    /// Takes an export away that was added by [`Server::add_on_demand`] and that nobody uses. Its
    /// volume is flushed by whoever closes it.
    pub fn remove_on_demand(&mut self, name: &str) {
        let exports = self.shared.exports().without(name);
        self.replace(Arc::new(exports));
    }
}

/// Volumes that a change took away. The server does not flush them any more: whoever closes them
/// does that first.
pub struct RemovedVolumes(Vec<Arc<ServedVolume>>);

impl RemovedVolumes {
    /// Returns true if no I/O thread has a client, a request or a queue of these volumes any more.
    #[must_use]
    pub fn are_unused(&self) -> bool {
        !self.0.iter().any(|served| served.has_lanes())
    }
}
