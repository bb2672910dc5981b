//! Hardware queues that belong to I/O threads: the number per drive, and the thread that opens
//! each.
//!
//! The file, NBD and Ceph drivers share this code.

use std::fmt::Display;
use std::os::fd::OwnedFd;

use millrace_block::{Error, ErrorKind, HwQueues, QueueKind, TagScope};
use millrace_runtime::Current;

/// Returns a layout with `count` queues of `depth` tags each, one queue for each I/O thread. If
/// `count` is 0, the layout has one queue.
pub(crate) fn hw_queues(count: u16, depth: u32) -> HwQueues {
    let (kind, tags) = (QueueKind::OwnerOnly, TagScope::PerQueue);
    HwQueues { count: count.max(1), depth, kind, tags }
}

/// Returns the calling I/O thread, which opens queue `index` of a drive. Returns an error if the
/// calling thread is not an I/O thread. `store` names the drive in the error.
pub(crate) fn opener(store: impl Display, index: u16) -> Result<Current, Error> {
    millrace_runtime::current().ok_or_else(|| {
        let text =
            format!("{store}: queue {index} was opened on a thread that is not an I/O thread");
        Error::new(ErrorKind::NotSupported, text)
    })
}

pub(crate) fn wake_up(wake: &OwnedFd) {
    // A write to the thread's eventfd fails only if the eventfd's counter is full. Then an earlier
    // write has woken the thread already.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}
