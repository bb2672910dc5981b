//! The conformance suite of drives: every drive, on every stack, on both reactor back ends.
//!
//! Each test builds its rigs from `harness.rs`, submits through a channel on an I/O thread, and
//! demands the exact outcome. `basic` covers the duties of each drive; `random` compares random
//! operations with a memory image; `faults` injects faults; `grow` enlarges drives; `holes` queries
//! extents; `lent` uses registered memory; `nbd` breaks servers and `nbd_restart` restarts them;
//! `threads` and `workers` share drives; `crash` cuts power; `trace` checks the order of events.
#![allow(unsafe_code, missing_docs)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod basic;
mod crash;
mod faults;
mod grow;
mod harness;
mod holes;
mod lent;
mod nbd;
mod nbd_restart;
mod nbd_server;
mod random;
mod threads;
mod trace;
mod workers;
