//! `MetricsListener`: the TCP socket of the metrics page, which may change while it is served.
//!
//! Shared by the views' thread, which accepts its clients, and by a reload, which puts another
//! socket there, or none. The thread is woken then, and closes the former socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// The socket of the moment.
pub struct MetricsListener {
    bound: Mutex<Option<BoundAddress>>,
    /// Readable once the socket has changed.
    changed: OwnedFd,
}

/// A socket that listens, and its address as it was configured, where a port may be 0.
#[derive(Clone)]
pub struct BoundAddress {
    address: SocketAddr,
    socket: Arc<TcpListener>,
}

impl BoundAddress {
    /// Listens at an address.
    ///
    /// # Errors
    /// If it is in use, or the system refuses it.
    pub fn bind(address: SocketAddr) -> io::Result<BoundAddress> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(BoundAddress { address, socket: Arc::new(socket) })
    }

    /// The address of the socket, with the port that the system chose.
    pub fn real(&self) -> SocketAddr {
        self.socket.local_addr().unwrap_or(self.address)
    }
}

impl MetricsListener {
    /// A page at this address, or nowhere.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(bound: Option<BoundAddress>) -> io::Result<MetricsListener> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(MetricsListener { bound: Mutex::new(bound), changed })
    }

    fn bound(&self) -> MutexGuard<'_, Option<BoundAddress>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket of now.
    pub fn socket(&self) -> Option<Arc<TcpListener>> {
        self.bound().as_ref().map(|bound| Arc::clone(&bound.socket))
    }

    /// The configured address of now.
    pub fn address(&self) -> Option<SocketAddr> {
        self.bound().as_ref().map(|bound| bound.address)
    }

    /// Serves the page elsewhere from now on, or nowhere.
    pub fn replace(&self, bound: Option<BoundAddress>) {
        *self.bound() = bound;
        // The counter cannot be full: the thread reads it.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// The descriptor that is readable once the socket has changed.
    pub(super) fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Makes [`MetricsListener::changed`] wait for the next change.
    pub(super) fn take_change(&self) {
        let _ = rustix::io::read(&self.changed, &mut [0u8; 8]);
    }
}
