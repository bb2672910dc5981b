//! Clients for any NBD or vhost-user-blk server, for measurements and tests.
//!
//! This crate owns the client's side of both protocols, on a thread of the caller. The constants
//! and formats are those of `millrace-exports`. Used by `millrace-lab bench` and by tests; no
//! server needs the clients.

pub mod nbd;
pub mod vhost;
