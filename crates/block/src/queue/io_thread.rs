//! `IoThread`: describes an I/O thread to the channels and workers that run on it.
//!
//! The code that runs the thread (a reactor's context, a worker's thread, a test) passes an
//! `IoThread` when it opens the channel or makes the worker. The block layer makes no system call,
//! so it calls a function pointer (`turn`) to wait for the thread's drives.

use alloc::sync::Arc;

use millrace_machine::{Doorbell, Machine};

use crate::bio::error::Error;

/// Nanoseconds that a dropped channel or worker waits for its I/O before it leaks the memory.
pub(crate) const DRAIN_NS: u64 = 5_000_000_000;
/// Pause in nanoseconds between two checks while a dropped channel or worker waits for its I/O.
pub(crate) const DRAIN_LOOK_NS: u64 = 100_000;

/// An I/O thread that owns hardware queues.
#[derive(Debug)]
pub struct IoThread<M: Machine> {
    /// Number of the thread, from 0; the thread owns the hardware queue of the same number.
    pub number: u16,
    /// Identity of the thread, above 0 and unique in the process.
    pub owner: u64,
    /// Doorbell that wakes the thread.
    pub bell: Arc<Doorbell<M>>,
    /// Function that starts the I/O of the thread's drives and waits for completions; `None` if the
    /// drives wake the thread by ringing its doorbell when requests complete.
    pub turn: Option<ThreadTurn<M>>,
}

/// A function that starts the I/O handed to an I/O thread's drives, sleeps, and collects
/// completions. The sleep ends when there is work, the doorbell rings or the deadline has come. The
/// function does not sleep if `has_work`, called after arming the doorbell, returns true.
///
/// # Errors
/// If the thread's ring (such as its io_uring) fails.
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
