//! Clients for any NBD or vhost-user-blk server, for measurements and tests.
//!
//! This crate owns the client's side of both protocols. The caller's threads run the clients. The
//! constants and formats are those of `millrace-exports`. Used by the `millrace-lab` binary and by
//! tests; the servers do not depend on this crate.

pub mod nbd;
pub mod vhost;
