//! `MetricsListener`: the TCP socket of the metrics page, which a reload may replace.
//!
//! A reload replaces or removes the socket, and then wakes the thread that accepts clients of the
//! metrics page. That thread then closes the former socket.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use millrace_machine::lock_unpoisoned;
use rustix::event::{EventfdFlags, eventfd};

pub struct MetricsListener {
    bound: Mutex<Option<BoundAddress>>,
    /// Eventfd that becomes readable when a reload has replaced or removed the socket.
    changed: OwnedFd,
}

/// Listening socket with its configured address, whose port may be 0.
#[derive(Clone)]
pub struct BoundAddress {
    address: SocketAddr,
    socket: Arc<TcpListener>,
}

impl BoundAddress {
    pub fn bind(address: SocketAddr) -> io::Result<BoundAddress> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(BoundAddress { address, socket: Arc::new(socket) })
    }

    /// Returns the actual address of the socket, with the port that the system chose.
    pub fn real(&self) -> SocketAddr {
        self.socket.local_addr().unwrap_or(self.address)
    }
}

impl MetricsListener {
    pub fn new(bound: Option<BoundAddress>) -> io::Result<MetricsListener> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(MetricsListener { bound: Mutex::new(bound), changed })
    }

    fn bound(&self) -> MutexGuard<'_, Option<BoundAddress>> {
        lock_unpoisoned(&self.bound)
    }

    pub fn socket(&self) -> Option<Arc<TcpListener>> {
        self.bound().as_ref().map(|bound| Arc::clone(&bound.socket))
    }

    pub fn address(&self) -> Option<SocketAddr> {
        self.bound().as_ref().map(|bound| bound.address)
    }

    pub fn replace(&self, bound: Option<BoundAddress>) {
        *self.bound() = bound;
        // A write to an eventfd fails only if its counter would overflow. The metrics thread resets
        // the counter, by reading it, long before that.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    pub(super) fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    pub(super) fn take_change(&self) {
        let _ = rustix::io::read(&self.changed, &mut [0u8; 8]);
    }
}
