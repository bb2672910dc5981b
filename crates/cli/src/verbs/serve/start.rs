//! From a command line to a daemon that serves: text, drives, threads, signals, report.
//!
//! Opens and makes what `check` has looked at. Uses `check` and, for its end, `live`.

pub mod drives;
pub mod images;
pub mod report;
pub mod signals;
pub mod source;
pub mod startup;
pub mod thread_count;
pub mod tls_host;
