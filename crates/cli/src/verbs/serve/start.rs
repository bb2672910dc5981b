//! Starts a daemon: configuration text, drives, threads, signals, and the report.
//!
//! `start` opens and creates the objects that `check` has examined. It uses `check`, and `live` at
//! the end of the start.

pub mod drives;
pub mod images;
pub mod report;
pub mod signals;
pub mod source;
pub mod startup;
pub mod thread_count;
pub mod tls_host;
