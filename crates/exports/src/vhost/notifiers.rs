//! Descriptors by which a frontend and a queue notify each other.
//!
//! The frontend makes these eventfds and hands them over ring by ring (device/messages.rs); a queue
//! has them while it is served. Kick and call are said anew for every start of a ring, the one for
//! errors once and for all: QEMU does so where it makes its rings, and firmware and system of a
//! guest start and stop them many times after.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The descriptors of one ring.
#[derive(Debug, Default)]
pub(crate) struct Notifiers {
    /// Written by the guest.
    pub(crate) kick: Option<OwnedFd>,
    /// Interrupts the guest.
    pub(crate) call: Option<OwnedFd>,
    /// Tells the frontend that the ring is broken.
    pub(crate) error: Option<Arc<OwnedFd>>,
}

impl Notifiers {
    /// For a queue that starts.
    pub(crate) fn take(&mut self) -> Notifiers {
        Notifiers { kick: self.kick.take(), call: self.call.take(), error: self.error.clone() }
    }

    /// Lets go of what a ring that stops needs no more.
    pub(crate) fn forget(&mut self) {
        (self.kick, self.call) = (None, None);
    }
}

/// Adds one to an eventfd. One that is full or gone is the frontend's own affair.
pub(crate) fn signal(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    let _ = rustix::io::write(fd, &one);
}
