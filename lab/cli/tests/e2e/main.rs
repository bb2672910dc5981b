//! The program `millrace-lab` from outside, beside the daemon and clients of others.
//!
//! All modules are one program, because linking a test program takes longer than most of them run.
//!
//! Cargo builds `millrace-lab` for this target, so the end-to-end tests find it.

#![allow(missing_docs, clippy::unwrap_used)]

mod bench_connect;
mod bench_drives;
mod bench_jobfile;
mod bench_locks;
mod bench_rows;
mod bench_trace;
mod program;
mod programs;
mod replay;
mod trace_damage;
mod trace_formats;
mod trace_report;
mod vhost_client;
