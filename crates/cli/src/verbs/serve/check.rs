//! Checks that everything a configuration needs is available, without changing anything: for
//! `--check`, and before a start.
//!
//! This module finds the drives, sockets and files that a start would refuse, and access that a
//! configuration opens to others. The module depends on `live` for the marks of dirty caches;
//! `start` depends on this module.

pub mod exposure;
pub mod findings;
pub mod lost_file;
pub mod probe;
pub mod running;
pub mod start_error;
pub mod view_sockets;
pub mod warnings;
