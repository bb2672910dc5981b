//! Write-back: sends dirty pages from memory to the volume below.

pub(crate) mod flusher;
pub(crate) mod write_queues;
pub(crate) mod writeout;
