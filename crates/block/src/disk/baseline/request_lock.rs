//! `RequestLock`: the lock around the request queue of the `sq` stack, as wide as it once was.
//!
//! A setting of the disk: alone, or with other disks under a lock that all share. Taken by sq.rs,
//! the shared lock first. Kept to be measured against (\[OLS\]).
//! Kernel counterpart: `io_request_lock` of 2.4, `queue_lock` since 2.5.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine};

/// The lock around the request queue of the `sq` stack, and when requests leave it.
///
/// Kept to be measured against: how Linux 2.4 had it, \[OLS\]. No other stack looks at it.
pub struct RequestLock<M: Machine> {
    /// Taken around the disk's own lock by all disks that share it; none: each disk has its own.
    pub(crate) shared: Option<Arc<M::Lock<()>>>,
    pub(crate) plug: QueuePlug,
}

impl<M: Machine> RequestLock<M> {
    /// A lock that every disk with a clone of this takes.
    #[must_use]
    pub fn shared() -> Self {
        let lock = Arc::new(M::Lock::new("io-request", ()));
        RequestLock { shared: Some(lock), plug: QueuePlug::Task }
    }

    /// Takes the shared lock, if there is one, for a driver that works under it, too.
    #[track_caller]
    #[must_use]
    pub fn hold(&self) -> Option<Guard<'_, M, ()>> {
        // No closure: the place in the code is the caller's.
        let shared = self.shared.as_ref()?;
        Some(shared.lock())
    }

    /// Where bios wait for their batch to end.
    #[must_use]
    pub fn with_plug(self, plug: QueuePlug) -> Self {
        RequestLock { plug, ..self }
    }
}

impl<M: Machine> Clone for RequestLock<M> {
    fn clone(&self) -> Self {
        RequestLock { shared: self.shared.clone(), plug: self.plug }
    }
}

impl<M: Machine> Default for RequestLock<M> {
    /// A lock for each disk.
    fn default() -> Self {
        RequestLock { shared: None, plug: QueuePlug::Task }
    }
}

/// Where the bios of a batch wait for its end in the `sq` stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueuePlug {
    /// With the submitter, as since Linux 2.6.39: a bio that goes on where the last one ended is
    /// merged without the queue's lock.
    #[default]
    Task,
    /// In the queue, as before: each bio takes the lock, is merged with the last request or becomes
    /// one, and the batch's end has the queue run.
    Queue,
}

/// Holds a lock of the machine.
pub(crate) type Guard<'a, M, T> = <<M as Machine>::Lock<T> as Lock<T>>::Guard<'a>;
