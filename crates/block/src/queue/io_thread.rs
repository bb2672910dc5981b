//! `IoThread`: the properties of an I/O thread that a channel or worker running on it needs.
//!
//! The code that runs the thread (a reactor's context, a worker's thread, a test) passes an
//! `IoThread` when it opens the channel or makes the worker. This layer makes no system call, so a
//! function pointer lets the thread wait for its drives.

use alloc::sync::Arc;

use millrace_machine::{Doorbell, Machine};

use crate::bio::error::Error;

/// Time in nanoseconds that a dropped channel or worker waits for its I/O before it leaks the
/// memory.
pub(crate) const DRAIN_NS: u64 = 5_000_000_000;
/// Pause in nanoseconds between two checks during that wait.
pub(crate) const DRAIN_LOOK_NS: u64 = 100_000;

/// An I/O thread that owns hardware queues.
pub struct IoThread<M: Machine> {
    /// Number of the thread, from 0; the thread owns the hardware queue of the same number.
    pub number: u16,
    /// Identity of the thread, above 0 and unique in the process.
    pub owner: u64,
    /// Doorbell that wakes the thread.
    pub bell: Arc<Doorbell<M>>,
    /// Function that submits to the thread's drives and waits for them; `None` if their completions
    /// ring the doorbell.
    pub turn: Option<ThreadTurn<M>>,
}

/// Starts the I/O that was handed to an I/O thread's drives, and collects completions. Sleeps until
/// there is work, the doorbell rings or the deadline has come. Does not sleep if `has_work`, which
/// is called after the doorbell was armed, returns true.
///
/// # Errors
/// If the thread's ring itself fails.
pub type ThreadTurn<M> = fn(
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
