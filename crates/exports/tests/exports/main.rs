//! NBD servers and vhost-user devices, with clients made for tests: one program, because linking a
//! test program takes longer than most of these tests run.

#![allow(clippy::print_stderr, clippy::unwrap_used, missing_docs, unsafe_code)]

mod server_bounds;
mod server_changes;
mod server_commands;
mod server_holes;
mod server_hostile;
mod server_memory_wait;
mod server_orders;
mod server_support;
mod server_unaligned;
mod vhost_behaviour;
mod vhost_foreign;
mod vhost_inflight;
mod vhost_memory;
mod vhost_placement;
mod vhost_protocol;
mod vhost_rings;
mod vhost_support;
