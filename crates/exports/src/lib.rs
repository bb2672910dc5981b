//! Servers that export the volumes of this process over NBD and vhost-user-blk.
//!
//! Each server owns its wire protocol and the translation between its requests and block requests.
//! The protocol code is sans-I/O (bytes in, bytes out), so that sockets, the simulator and the
//! fuzzer all drive the same code.

#![doc = include_str!("../README.md")]

mod access;
mod client_groups;
mod client_report;
mod counters;
mod descriptors;
mod faults;
mod io_threads;
mod last_flush;
mod mailbox;
pub mod nbd;
mod stop;
mod unix_socket;
pub mod vhost;
pub mod virtio;

pub use self::access::{AllowedPeers, SocketAccess};
pub use self::client_groups::{ClientGroup, GroupMembership, PerClientGroups};
pub use self::client_report::ClientReport;
pub use self::counters::{CounterRow, CounterTable};
pub use self::faults::ExportErrors;
pub use self::last_flush::flush_volume;
pub use self::unix_socket::{UnixSocket, remove_socket_files, socket_holder, socket_refusal};
