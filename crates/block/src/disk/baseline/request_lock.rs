//! `RequestLock`: the lock around the request queue of the `sq` stack, with a choice of its scope.
//!
//! The setting of a disk says whether each disk has its own lock, or several disks share one as in
//! old kernels. sq.rs takes the shared lock before the disk's own. The setting is for comparison
//! only (the OLS 2002 paper). Kernel counterpart: `io_request_lock` of 2.4, `queue_lock` since 2.5.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, debug_fields};

/// The lock around the request queue of the `sq` stack, and the place where that stack keeps
/// plugged bios.
///
/// The setting is for comparison with Linux 2.4 (the OLS 2002 paper). Other stacks ignore it.
pub struct RequestLock<M: Machine> {
    /// Lock that several disks share and take before their own locks; `None` if the disk shares
    /// none.
    pub(crate) shared: Option<Arc<M::Lock<()>>>,
    pub(crate) plug: QueuePlug,
}

debug_fields!(RequestLock<M: Machine>, plug);

impl<M: Machine> RequestLock<M> {
    /// Creates a lock that all disks with a clone of the returned value share.
    #[must_use]
    pub fn shared() -> Self {
        let lock = Arc::new(M::Lock::new("io-request", ()));
        RequestLock { shared: Some(lock), plug: QueuePlug::Task }
    }

    /// Takes the shared lock, if there is one. Drivers that must work under the same lock call this
    /// function.
    #[track_caller]
    #[must_use]
    pub fn hold(&self) -> Option<LockGuard<'_, M, ()>> {
        // No `map` with a closure here: lock statistics would name the closure as the caller.
        let shared = self.shared.as_ref()?;
        Some(shared.lock())
    }

    /// Sets the place where bios wait until the end of their batch: the submitter's plug or the
    /// request queue.
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

/// List in which the single-queue design (`sq`) keeps the bios of a batch until the batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QueuePlug {
    /// Bios wait in the submitter's plug, as in Linux since 2.6.39. A bio that is adjacent to the
    /// last one is merged without the queue's lock.
    #[default]
    Task,
    /// Bios wait in the request queue, as in Linux before version 2.6.39. Under the queue's lock,
    /// each bio is merged with the last request or gets a request of its own. At the end of the
    /// batch, the submitter runs the queue.
    Queue,
}

pub(crate) type LockGuard<'a, M, T> = <<M as Machine>::Lock<T> as Lock<T>>::Guard<'a>;
