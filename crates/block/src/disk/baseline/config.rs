//! `BaselineConfig`: the setting that makes a disk follow another design than the multi-queue one.
//!
//! For comparison: the laboratory sets it, the daemon never does. `Disk::new` makes the design that
//! it names (baseline.rs).

use millrace_machine::Machine;

use crate::disk::baseline::request_lock::RequestLock;

/// The design of the block layer that a disk follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stack {
    /// Multi-queue: two levels of queues (\[MQ\]).
    #[default]
    Mq,
    /// Single queue: one request queue under one lock, as before 2013.
    Sq,
    /// No queues: bios go straight to the driver's queue.
    Raw,
}

/// The number of threads that may serve a hardware queue of the `mq` stack at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// One thread at a time; a thread that comes too late leaves its work to the one inside.
    One {
        /// Nanoseconds that a submitter waits before it leaves its batch; 0 for not at all. Serving
        /// takes less than 2 us as a rule, and two threads that take turns get more done than one
        /// that serves for both.
        wait_ns: u64,
    },
    /// Every thread with work for the queue, as in the kernel: the threads share the queue's tags
    /// and its bitmap of software queues, and each calls the driver by itself. For comparison. Only
    /// for drives that complete at once ([`Driver::is_immediate`](crate::Driver::is_immediate)),
    /// without scheduler or worker.
    Each,
}

impl Inside {
    /// One thread at a time; a submitter waits up to 2 us for it.
    pub const ONE: Inside = Inside::One { wait_ns: 2_000 };

    /// Returns the nanoseconds that a submitter waits for the serving thread.
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
#[derive(Clone)]
pub struct BaselineConfig<M: Machine> {
    /// Design of the block layer.
    pub stack: Stack,
    /// Threads that may serve a hardware queue of the `mq` stack at once.
    pub inside: Inside,
    /// The request lock of the `sq` stack.
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
