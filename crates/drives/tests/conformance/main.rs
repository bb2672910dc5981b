//! The conformance suite of drives: every drive, on every stack, on both reactor back ends.
//!
//! Each test builds its rigs from `harness.rs`, submits through a channel on an I/O thread, and
//! demands the exact outcome. `basic` is what each drive must do; `random` runs operations against
//! a memory image; `faults` breaks drives; `grow` makes them larger; `holes` asks where nothing is;
//! `lent` has memory that drives were told of; `nbd` breaks servers, `nbd_restart` starts them
//! anew; `threads` shares drives; `crash` cuts power; `trace` looks at the order of events.
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
