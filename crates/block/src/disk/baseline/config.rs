//! `BaselineConfig`: the setting that makes a disk follow another design than the multi-queue one.
//!
//! Other designs exist for comparison: the laboratory sets this option, the daemon never does.
//! `Disk::new` creates the design that the setting names (baseline.rs). `RequestLock` is the lock
//! around the request queue of the `sq` stack: each disk has its own lock, or several disks share
//! one as in old kernels (the OLS 2002 paper). sq.rs takes the shared lock before the disk's own.
//! Kernel counterpart: `io_request_lock` of 2.4, `queue_lock` since 2.5.

use alloc::sync::Arc;
use core::time::Duration;

use millrace_machine::{Lock, Machine, debug_fields, nanoseconds};

use crate::queue::LockGuard;

/// The design of the block layer that a disk follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stack {
    /// Multi-queue: two levels of queues (Bjorling et al., SYSTOR 2013).
    #[default]
    Mq,
    /// Single queue: one request queue under one lock, as in Linux before multi-queue (2013).
    Sq,
    /// No queues in the block layer: each bio goes straight to the driver's queue.
    Raw,
}

/// The number of threads that may serve a hardware queue of the `mq` stack at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// One thread at a time serves the queue; a thread that finds it busy leaves its work there.
    One {
        /// Time for which a submitter waits for the queue to be free, before it leaves its batch
        /// to the serving thread; 0 for no wait. The wait is worth its time: serving usually takes
        /// less than 2 us, and threads are faster if each serves its own batch.
        wait: Duration,
    },
    /// All threads that have work for the queue serve it at the same time, as in the kernel. The
    /// threads share the queue's tags and its bitmap of software queues, and each calls the driver
    /// itself. This setting exists for comparison. It requires a drive that completes at once
    /// ([`Driver::is_immediate`](crate::Driver::is_immediate)), and excludes schedulers and
    /// workers.
    Each,
}

impl Inside {
    /// Only one thread at a time serves the queue. A submitter that finds the queue busy waits up
    /// to 2 us, before it leaves its batch to the serving thread.
    pub const ONE: Inside = Inside::One { wait: Duration::from_micros(2) };

    #[inline]
    pub(crate) fn wait_ns(self) -> u64 {
        if let Inside::One { wait } = self { nanoseconds(wait) } else { 0 }
    }
}

impl Default for Inside {
    fn default() -> Self {
        Inside::ONE
    }
}

/// The design that a disk follows, and its settings. The default is the multi-queue design.
#[derive(Debug, Clone)]
pub struct BaselineConfig<M: Machine> {
    /// Design of the block layer.
    pub stack: Stack,
    /// Limit on the threads that serve a hardware queue at once, in the multi-queue (`mq`) design.
    pub inside: Inside,
    /// Lock around the request queue of the `sq` (single-queue) design; no effect on other designs.
    pub request_lock: RequestLock<M>,
}

impl<M: Machine> Default for BaselineConfig<M> {
    fn default() -> Self {
        Stack::Mq.into()
    }
}

impl<M: Machine> From<Stack> for BaselineConfig<M> {
    fn from(stack: Stack) -> Self {
        BaselineConfig { stack, inside: Inside::ONE, request_lock: RequestLock::default() }
    }
}

/// The lock around the request queue of the `sq` stack, and the place where that stack keeps
/// plugged bios.
///
/// The setting is for comparison with Linux 2.4 (the OLS 2002 paper). Other stacks ignore it.
pub struct RequestLock<M: Machine> {
    /// Lock that several disks share and take before their own locks, if there is one.
    pub(crate) shared: Option<Arc<M::Lock<()>>>,
    pub(crate) plug: QueuePlug,
}

debug_fields!(RequestLock<M: Machine>, plug);

impl<M: Machine> RequestLock<M> {
    /// Creates a `RequestLock` with a new lock. Its clones share that lock, so all disks that get a
    /// clone use the same lock.
    #[must_use]
    pub fn shared() -> Self {
        let lock = Arc::new(M::Lock::new("io-request", ()));
        RequestLock { shared: Some(lock), plug: QueuePlug::Task }
    }

    /// Takes the shared lock, if any. Drivers that must work under the same lock call this.
    #[track_caller]
    #[must_use]
    pub fn hold(&self) -> Option<LockGuard<'_, M, ()>> {
        // No `map` with a closure here: lock statistics would name the closure as the caller.
        let shared = self.shared.as_ref()?;
        Some(shared.lock())
    }

    /// Sets where bios wait until the end of their batch: in a plug or in the request queue.
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
