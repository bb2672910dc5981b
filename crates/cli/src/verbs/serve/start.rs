//! Starts a daemon: reads the configuration, opens drives, starts threads and signal handling, and
//! prints a report.
//!
//! This module opens and creates the drives, sockets and files that `check` has examined. It calls
//! `check`, and `live` (the running daemon) at the end of the start.

pub mod drives;
pub mod images;
pub mod report;
pub mod signals;
pub mod source;
pub mod startup;
pub mod thread_count;
pub mod tls_host;
