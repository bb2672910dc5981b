//! Code that several drivers share. Nothing here depends on a particular driver.

pub(crate) mod cancel;
pub(crate) mod dry_run;
pub(crate) mod extents;
pub(crate) mod mapping;
pub(crate) mod outcomes;
pub(crate) mod owner_queues;
pub(crate) mod payload;
pub(crate) mod pieces;
pub(crate) mod place;
pub(crate) mod procfs;
pub(crate) mod store;
pub(crate) mod store_file;
pub(crate) mod thread_bound;
pub(crate) mod units;
pub(crate) mod words;
