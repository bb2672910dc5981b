//! Errors of the vhost-user client. Each has the operation that failed, the server's path and a
//! remedy.
//!
//! The kinds can be matched and carry their context. The client and its queues create them;
//! programs print them.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::layout::LayoutError;
use super::ring::RingError;

/// Error in communication between the vhost-user client and a server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No server listens on the socket.
    #[error(
        "no vhost-user server at {}: {source}; start one with this socket, or correct the path",
        path.display()
    )]
    Connect {
        /// Path of the server's socket.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A server accepted the connection but does not answer, or sends an invalid answer.
    #[error(
        "{}: no answer to the first vhost-user message ({source}); is it a vhost-user server, \
         and free? Most serve one client at a time",
        path.display()
    )]
    Silent {
        /// Path of the server's socket.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A message of the set-up failed.
    #[error("{}: the vhost-user server failed at {step}: {source}; see its log", path.display())]
    Protocol {
        /// Path of the server's socket.
        path: PathBuf,
        /// Name of the message that failed.
        step: &'static str,
        /// Error of the `vhost` crate.
        source: vhost::Error,
    },
    /// The server lacks what the client needs.
    #[error("{}: the vhost-user server does not offer {feature}; {remedy}", path.display())]
    Feature {
        /// Path of the server's socket.
        path: PathBuf,
        /// Name of the missing feature.
        feature: &'static str,
        /// Advice to the user on how to get the feature, or how to do without it.
        remedy: &'static str,
    },
    /// The server has fewer queues than the client requested.
    #[error(
        "{}: {asked} queues asked for, the vhost-user server has {offered}; use {offered} jobs \
         at most, or give the server more queues",
        path.display()
    )]
    Queues {
        /// Path of the server's socket.
        path: PathBuf,
        /// Number of queues that the client requested.
        asked: u16,
        /// Number of queues that the server has.
        offered: u64,
    },
    /// The ring options contradict each other.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// The system refused memory, eventfds or another resource.
    #[error("{what} for the queues: {source}")]
    System {
        /// Name of the resource or operation that failed.
        what: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// The device violated the rules of the ring.
    #[error("{}, queue {queue}: {source}; this is a bug in the server", path.display())]
    Ring {
        /// Path of the server's socket.
        path: PathBuf,
        /// Number of the queue.
        queue: u16,
        /// Violation of the ring's rules.
        source: RingError,
    },
    /// The server closed the connection while requests were in flight.
    #[error(
        "{}, queue {queue}: the server closed the connection with {in_flight} requests in flight",
        path.display()
    )]
    Gone {
        /// Path of the server's socket.
        path: PathBuf,
        /// Number of the queue.
        queue: u16,
        /// Number of requests that were not answered.
        in_flight: u16,
    },
    /// No request completed for a long time.
    #[error(
        "{}, queue {queue}: none of {in_flight} requests in flight completed within {seconds} s; \
         the server hangs, or lost a kick or an interrupt",
        path.display()
    )]
    Stuck {
        /// Path of the server's socket.
        path: PathBuf,
        /// Number of the queue.
        queue: u16,
        /// Number of requests that were not answered.
        in_flight: u16,
        /// Time without a completion, in seconds.
        seconds: u64,
    },
}
