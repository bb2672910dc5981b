//! Claiming of hardware queues by threads, for drives whose queues belong to threads.
//!
//! I/O thread number N of a server opens queue N (`Disk::bring_up`). A program's thread has no
//! number and claims the last queue without an owner. Called by the context of an I/O thread before
//! it opens a channel, and by channels. Kernel counterpart: none; a queue there belongs to CPUs.

use alloc::format;

use millrace_machine::Machine;

use crate::bio::error::{Error, ErrorKind};
use crate::disk::Disk;
use crate::queue::driver::QueueKind;
use crate::queue::io_thread::IoThread;

/// Returns true if the drive's queues open quickly, without waiting for another thread. A thread
/// may then open its channel only at its first I/O to the drive.
#[must_use]
pub fn may_open_late<M: Machine>(disk: &Disk<M>) -> bool {
    disk.kind == QueueKind::AnyThread || disk.driver.may_open_late()
}

/// Returns true if no thread has used the disk yet, so that all its counters are 0.
#[must_use]
pub fn is_unused<M: Machine>(disk: &Disk<M>) -> bool {
    disk.accounts.is_unused()
}

impl<M: Machine> Disk<M> {
    /// Makes the calling thread the owner of a hardware queue, and opens the queue. Takes the
    /// highest-numbered queue without an owner. Does nothing if the thread owns a queue already, or
    /// if any thread may run the queues.
    ///
    /// # Errors
    /// `Busy` if other threads own all queues, or the driver's error if it cannot open the queue.
    pub fn claim(&self, thread: &IoThread<M>) -> Result<(), Error> {
        if self.kind == QueueKind::AnyThread || self.queue_of(thread.owner).is_some() {
            return Ok(());
        }
        let queues = self.owned_queues();
        // The search goes from the last queue to the first: the first queues are for a server's I/O
        // threads.
        for hctx in (0..queues).rev() {
            match self.own(hctx as u16, thread) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                claimed => return claimed,
            }
        }
        let text = format!(
            "drive {}: each of its {queues} queues belongs to another thread; open the drive for \
             as many I/O threads as use it at a time (io_threads)",
            self.name()
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    pub(crate) fn queue_of(&self, owner: u64) -> Option<u16> {
        let hctxs = &self.queues.get()?.hctxs;
        let queues = hctxs.iter().take(self.owned_queues());
        queues.zip(0..).find(|(hctx, _)| hctx.is_owned_by(owner)).map(|(_, number)| number)
    }
}
