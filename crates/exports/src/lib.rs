//! Servers that make the disks of this process reachable from outside.
//!
//! Owns the wire protocols and, for each, the translation of its requests into block requests and
//! of their outcomes into its replies. A protocol core is sans-I/O (bytes in, bytes out), so the
//! same code is driven by sockets in production, by the simulator in tests and by the fuzzer.

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

pub use self::access::{Allow, SocketAccess};
pub use self::client_groups::{ClientGroup, GroupSeats, Seat};
pub use self::client_report::ClientReport;
pub use self::faults::ExportErrors;
pub use self::last_flush::flush_volume;
pub use self::unix_socket::{UnixSocket, remove_socket_files, socket_holder};
