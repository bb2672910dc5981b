//! Queues that belong to I/O threads: how many there are, and the thread that opens one.
//!
//! What file, NBD and Ceph drives have in common as drivers; owns nothing.

use std::fmt::Display;

use millrace_block::{Error, ErrorKind, HwQueues, QueueKind, TagScope};
use millrace_runtime::Current;

/// A queue of `depth` tags for each of `count` I/O threads, at least one.
pub(crate) fn hw_queues(count: u16, depth: u32) -> HwQueues {
    let (kind, tags) = (QueueKind::OwnerOnly, TagScope::PerQueue);
    HwQueues { count: count.max(1), depth, kind, tags }
}

/// The I/O thread that calls, on which queue `index` of the drive on `store` is being opened.
///
/// # Errors
/// `NotSupported` if the calling thread is no I/O thread.
pub(crate) fn opener(store: impl Display, index: u16) -> Result<Current, Error> {
    millrace_runtime::current().ok_or_else(|| {
        let text = format!("{store}: queue {index} opened on a thread that is no I/O thread");
        Error::new(ErrorKind::NotSupported, text)
    })
}
