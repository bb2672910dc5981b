//! Errors of the vhost-user client. Each has the operation that failed, the server's path and a
//! remedy.
//!
//! The kinds can be matched and carry their context. Created by the client and its queues, and
//! printed by programs.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::layout::LayoutError;
use super::ring::RingError;

/// Error in communication between the vhost-user client and a server.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ClientError {
    /// No server listens on the socket.
    #[error(
        "no vhost-user server at {}: {source}; start one with this socket, or correct the path",
        path.display()
    )]
    Connect { path: PathBuf, source: io::Error },
    /// A server accepted the connection but does not answer, or sends an invalid answer.
    #[error(
        "{}: no answer to the first vhost-user message ({source}); is it a vhost-user server, \
         and free? Most serve one client at a time",
        path.display()
    )]
    Silent { path: PathBuf, source: io::Error },
    /// The exchange of a vhost-user message (`step`) failed while the connection was set up.
    #[error("{}: the vhost-user server failed at {step}: {source}; see its log", path.display())]
    Protocol { path: PathBuf, step: &'static str, source: vhost::Error },
    /// The server lacks what the client needs.
    #[error("{}: the vhost-user server does not offer {feature}; {remedy}", path.display())]
    Feature { path: PathBuf, feature: &'static str, remedy: &'static str },
    /// The server has fewer queues than the client requested.
    #[error(
        "{}: {asked} queues asked for, the vhost-user server has {offered}; use {offered} jobs \
         at most, or give the server more queues",
        path.display()
    )]
    Queues { path: PathBuf, asked: u16, offered: u64 },
    /// The ring options contradict each other.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The system refused memory, eventfds or another resource.
    #[error("{what} for the queues: {source}")]
    System { what: &'static str, source: io::Error },
    /// The device violated the rules of the ring.
    #[error("{}, queue {queue}: {source}; this is a bug in the server", path.display())]
    Ring { path: PathBuf, queue: u16, source: RingError },
    /// The server closed the connection while requests were in flight.
    #[error(
        "{}, queue {queue}: the server closed the connection with {in_flight} requests in flight",
        path.display()
    )]
    Gone { path: PathBuf, queue: u16, in_flight: u16 },
    /// No request completed for a long time.
    #[error(
        "{}, queue {queue}: none of {in_flight} requests in flight completed within {seconds} s; \
         the server hangs, or lost a kick or an interrupt",
        path.display()
    )]
    Stuck { path: PathBuf, queue: u16, in_flight: u16, seconds: u64 },
}
