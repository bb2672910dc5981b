//! Clients of NBD and vhost-user-blk servers, any server's: for measuring and for tests.
//!
//! Owns a client's side of both protocols, on a thread of the caller's. Speaks with numbers and
//! formats of `millrace-exports`, which the servers there use, too. Called by `millrace-lab bench`
//! and by tests; no server needs it.

pub mod nbd;
pub mod vhost;
