//! Checks that everything a configuration needs is available, without changing anything. All checks
//! run with the option `--check`. Some of them also run at each start and reload of the daemon.
//!
//! The checks find drives, sockets and files with which a start would fail, and settings that give
//! other users or hosts access. `serve` and the modules `start` and `reload` call the checks. The
//! module `live` tells the checks which caches are marked as dirty.

pub mod exposure;
pub mod findings;
pub mod lost_file;
pub mod probe;
pub mod running;
pub mod start_error;
pub mod view_sockets;
pub mod warnings;
