//! Front end of the cache: its driver, its queues, and the handling of each kind of request.

pub(crate) mod driver;
pub(crate) mod jobs;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod sync;
pub(crate) mod write;
