//! vhost-user-blk: volumes served to virtual machines.
//!
//! Called by `serve`; calls the block layer. The protocol and guest memory are those of the crates
//! vhost and vm-memory; virtqueues and the device are written here.

pub mod pace;
pub mod polling;
