//! `BaselineConfig`: the setting that makes a disk follow another design than the multi-queue one.
//!
//! Other designs exist for comparison: the laboratory sets this option, the daemon never does.
//! `Disk::new` creates the design that the setting names (baseline.rs).

use millrace_machine::Machine;

use crate::disk::baseline::request_lock::RequestLock;

/// The design of the block layer that a disk follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stack {
    /// Multi-queue: two levels of queues (Bjorling et al., SYSTOR 2013).
    #[default]
    Mq,
    /// Single queue: one request queue under one lock, as in Linux before multi-queue (2013).
    Sq,
    /// No queues: bios go straight to the driver's queue.
    Raw,
}

/// The number of threads that may serve a hardware queue of the `mq` stack at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// Only one thread at a time serves the queue. A thread that finds the queue busy leaves its
    /// work to the serving thread.
    One {
        /// Nanoseconds that a submitter waits for the queue to be free, before it leaves its batch
        /// to the serving thread; 0 for no wait. The wait is worth its time: serving usually takes
        /// less than 2 us, and threads are faster if each serves its own batch.
        wait_ns: u64,
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
    pub const ONE: Inside = Inside::One { wait_ns: 2_000 };

    #[inline]
    pub(crate) fn wait_ns(self) -> u64 {
        if let Inside::One { wait_ns } = self { wait_ns } else { 0 }
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
