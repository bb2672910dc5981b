//! `RequestLock`: the lock around the request queue of the `sq` stack, with a choice of its scope.
//!
//! A setting of the disk: one lock for each disk, or one that several disks share, as in old
//! kernels. sq.rs takes the shared lock first. For comparison only (\[OLS\]). Kernel counterpart:
//! `io_request_lock` of 2.4, `queue_lock` since 2.5.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine};

/// The lock around the request queue of the `sq` stack, and where that stack keeps plugged bios.
///
/// For comparison with Linux 2.4, \[OLS\]. Other stacks ignore it.
pub struct RequestLock<M: Machine> {
    /// Lock that all disks with a clone of it take around their own lock; `None` if each disk has
    /// only its own.
    pub(crate) shared: Option<Arc<M::Lock<()>>>,
    pub(crate) plug: QueuePlug,
}

impl<M: Machine> RequestLock<M> {
    /// Creates a lock that every disk with a clone of it takes.
    #[must_use]
    pub fn shared() -> Self {
        let lock = Arc::new(M::Lock::new("io-request", ()));
        RequestLock { shared: Some(lock), plug: QueuePlug::Task }
    }

    /// Takes the shared lock, if there is one, for a driver that works under it, too.
    #[track_caller]
    #[must_use]
    pub fn hold(&self) -> Option<LockGuard<'_, M, ()>> {
        // This code uses no closure, so that lock statistics show the caller's location.
        let shared = self.shared.as_ref()?;
        Some(shared.lock())
    }

    /// Sets where the bios of a batch wait for its end.
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
    fn default() -> Self {
        RequestLock { shared: None, plug: QueuePlug::Task }
    }
}

/// The place where the bios of a batch wait for the batch's end in the `sq` stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueuePlug {
    /// In the submitter's plug, as since Linux 2.6.39: a bio that follows the last one is merged
    /// without the queue's lock.
    #[default]
    Task,
    /// In the queue, as before: each bio takes the lock, is merged with the last request or becomes
    /// one, and the end of the batch runs the queue.
    Queue,
}

pub(crate) type LockGuard<'a, M, T> = <<M as Machine>::Lock<T> as Lock<T>>::Guard<'a>;
