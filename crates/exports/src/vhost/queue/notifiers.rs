//! Eventfds by which a frontend and a queue notify each other.
//!
//! The frontend sends the eventfds for kicks and interrupts at each start of a ring. But QEMU sends
//! the eventfd for errors only once, so it must survive when a guest's firmware or kernel stops and
//! starts the ring.

use std::os::fd::OwnedFd;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct QueueNotifiers {
    /// Eventfd that the guest writes to announce requests.
    pub(crate) kick: Option<OwnedFd>,
    /// Eventfd that the server writes to interrupt the guest.
    pub(crate) call: Option<OwnedFd>,
    /// Eventfd that the server writes to report a broken ring to the frontend.
    pub(crate) error: Option<Arc<OwnedFd>>,
}

impl QueueNotifiers {
    /// Takes the eventfds for kicks and interrupts for a queue that starts, and copies the one for
    /// errors.
    pub(crate) fn take(&mut self) -> QueueNotifiers {
        QueueNotifiers { kick: self.kick.take(), call: self.call.take(), error: self.error.clone() }
    }

    /// Closes the eventfds for kicks and interrupts of a ring that stops.
    pub(crate) fn forget(&mut self) {
        (self.kick, self.call) = (None, None);
    }
}

/// Adds one to an eventfd. Errors are ignored, because only the frontend can have filled or closed
/// it.
pub(crate) fn signal(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    let _ = rustix::io::write(fd, &one);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use super::*;

    #[test]
    fn ring_start_or_stop_keeps_only_the_error_descriptor() {
        let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let has =
            |one: &QueueNotifiers| [one.kick.is_some(), one.call.is_some(), one.error.is_some()];
        let all = || {
            let (kick, call) = (Some(event()), Some(event()));
            QueueNotifiers { kick, call, error: Some(Arc::new(event())) }
        };
        let (mut first, mut second) = (all(), all());
        first.forget();
        assert_eq!(has(&first), [false, false, true]);
        assert_eq!(has(&second.take()), [true; 3]);
        assert_eq!(has(&second), [false, false, true]);
    }
}
