//! Looks at what a plan needs, and changes nothing: for `--check`, and before a start.
//!
//! Says which drives, sockets and files a start would refuse, and what a plan leaves open to
//! others. Stands on `live` for the marks of dirty caches; `start` stands on it.

pub mod exposure;
pub mod findings;
pub mod lost_file;
pub mod probe;
pub mod running;
pub mod start_error;
pub mod view_sockets;
pub mod warnings;
