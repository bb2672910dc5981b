//! The cache as a drive: its driver, its queues, and each kind of request that a queue answers.

pub(crate) mod driver;
pub(crate) mod jobs;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod sync;
pub(crate) mod write;
