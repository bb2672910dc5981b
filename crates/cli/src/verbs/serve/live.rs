//! The running daemon: its answers on the control socket, and its checks once per second.
//!
//! This module owns the daemon's state other than the servers: the file that lists dirty caches,
//! latency targets, a trace recording, lock statistics. It depends on `config` and `views`; `check`
//! and `start` depend on it.

pub mod daemon;
pub mod dirty_data;
pub mod dirty_marks;
mod failed_requests;
pub mod groups;
pub mod heap_trim;
pub mod huge_pages;
pub mod latency_targets;
pub mod lock_statistics;
pub mod open_files;
pub mod processor_time;
mod sample_ring;
mod sampler;
pub mod served_lists;
pub mod shown_volumes;
pub mod trace_recording;
pub mod volume_settings;
pub mod watch;
