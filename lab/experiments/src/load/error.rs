//! `BenchError`: the reason why a benchmark, a replay or an experiment has no result.
//!
//! The error texts include advice where there is any. The load generator and the modules above it
//! return these errors; the binary's verbs print them.

use millrace_block::ErrorKind;
use millrace_drives::{Spec, SpecError};

/// Reason why a benchmark, a replay or an experiment has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A drive, queue or ring failed, or its setup failed.
    #[error("{0}")]
    Block(#[from] millrace_block::Error),
    /// The workload does not fit the device.
    #[error("{0}")]
    Workload(String),
    /// A server could not be reached, went away or broke the protocol.
    #[error("NBD server at {address}: {source}{}", remedy(source))]
    Server {
        /// Address of the server.
        address: millrace_nbd::client::Address,
        /// Error of the connection or of the protocol.
        source: std::io::Error,
    },
    /// A vhost-user server could not be reached, lacks a required feature, went away or broke the
    /// protocol.
    #[error("{0}")]
    Vhost(#[from] millrace_clients::vhost::ClientError),
    /// The machine to simulate is invalid, or its simulation did not end.
    #[error("{text}")]
    Machine {
        /// Description of the error.
        text: String,
    },
    /// A trace could not be written or read.
    #[error("trace: {text}")]
    Trace {
        /// Description of the error, with the trace's name.
        text: String,
    },
    /// A job panicked.
    #[error("a job panicked: see above")]
    Panicked,
}

impl BenchError {
    pub(crate) fn drive(spec: &Spec, source: &SpecError) -> BenchError {
        let text = match source {
            SpecError::Open(error) if error.kind() == ErrorKind::InvalidSetting => {
                error.to_string()
            }
            other => other.to_string(),
        };
        BenchError::Workload(format!("drive {spec}: {text}"))
    }
}

fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    match error.kind() {
        ConnectionRefused | NotFound => {
            "; no server listens there: start one, or name another address"
        }
        _ => "",
    }
}
