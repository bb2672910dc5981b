//! `IoThread`: what a channel or a worker must know of the thread that it runs on.
//!
//! Given by whoever runs the thread (a reactor's context, a worker's thread, a test) when the
//! channel is opened or the worker made. How the thread waits for its drives is a function of its
//! own, since this layer makes no system call.

use alloc::sync::Arc;

use millrace_machine::{Doorbell, Machine};

use crate::bio::error::Error;

/// How long a dropped channel or worker waits for its I/O before it gives memory up for lost.
pub(crate) const DRAIN_NS: u64 = 5_000_000_000;
/// Pause between two looks while it waits.
pub(crate) const DRAIN_LOOK_NS: u64 = 100_000;

/// An I/O thread that owns hardware queues.
pub struct IoThread<M: Machine> {
    /// Its number, from 0: the hardware queue of that number is its own.
    pub number: u16,
    /// Its identity, above 0 and unique in the process.
    pub owner: u64,
    /// Wakes it.
    pub bell: Arc<Doorbell<M>>,
    /// How it drives its drives; none: whatever they complete rings the bell.
    pub turn: Option<Turn<M>>,
}

/// Starts what was handed to the drives of an I/O thread and collects what they have completed.
/// Sleeps until there is something, the bell rings, or the deadline comes, unless `has_work`, asked
/// after the bell was armed, says that there is something to do.
///
/// # Errors
/// If the thread's ring itself fails.
pub type Turn<M> = fn(
    bell: &Doorbell<M>,
    deadline_ns: Option<u64>,
    has_work: &dyn Fn() -> bool,
) -> Result<(), Error>;

impl<M: Machine> Clone for IoThread<M> {
    fn clone(&self) -> Self {
        IoThread {
            number: self.number,
            owner: self.owner,
            bell: Arc::clone(&self.bell),
            turn: self.turn,
        }
    }
}
