//! Clients for any NBD or vhost-user-blk server, for measurements and tests.
//!
//! This crate owns the client's side of both protocols, on a thread of the caller. It uses the
//! constants and formats of `millrace-exports`, as the servers there do. `millrace-lab bench` and
//! tests call it; no server needs it.

pub mod nbd;
pub mod vhost;
