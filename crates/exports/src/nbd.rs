//! NBD: the [`server`] around the protocol core, which is `millrace-nbd`.

pub mod server;
