//! Checks that everything a configuration needs is available, without changing anything. The checks
//! run before each start of the daemon, and alone with the option `--check`.
//!
//! The checks find drives, sockets and files with which a start would fail. They also find settings
//! that give other users or hosts access. The module `start` calls these checks. The module `live`
//! tells them which caches are marked as dirty.

pub mod exposure;
pub mod findings;
pub mod lost_file;
pub mod probe;
pub mod running;
pub mod start_error;
pub mod view_sockets;
pub mod warnings;
