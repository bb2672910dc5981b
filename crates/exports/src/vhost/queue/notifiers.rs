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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use super::*;

    #[test]
    fn a_ring_that_starts_or_stops_leaves_only_where_to_tell_of_errors() {
        let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let has = |one: &Notifiers| [one.kick.is_some(), one.call.is_some(), one.error.is_some()];
        let all = || {
            let (kick, call) = (Some(event()), Some(event()));
            Notifiers { kick, call, error: Some(Arc::new(event())) }
        };
        let (mut first, mut second) = (all(), all());
        first.forget();
        assert_eq!(has(&first), [false, false, true]);
        assert_eq!(has(&second.take()), [true; 3]);
        assert_eq!(has(&second), [false, false, true]);
    }
}
