//! The load generator: workloads, the loops that run them, and rows (measured configurations).
//!
//! `workload` has the settings of a job in fio's terms, `job` has the loop of a job, and `verify`
//! has the pattern for verification. The target of a job is a volume (`channel`) or a server
//! (`client`). `bench` runs a row of jobs on a volume; `nbd`, `vhost` and `virtqueue` run a row
//! against a server; `row` is the result. `jobfile` runs fio's job files, `contention` runs clients
//! with different workloads on the same drives, and `calibration` measures a drive for schedulers
//! that share its time. `sleeper` lets threads wait for completions, `drain_barrier` ends the
//! threads of a run together, and `overwrite` protects existing data.

pub(crate) mod bench;
pub mod calibration;
mod channel;
pub(crate) mod client;
pub mod contention;
pub(crate) mod drain_barrier;
mod error;
mod job;
pub mod jobfile;
pub(crate) mod nbd;
pub(crate) mod overwrite;
pub(crate) mod row;
pub(crate) mod sleeper;
pub(crate) mod threads;
mod verify;
pub(crate) mod vhost;
pub(crate) mod virtqueue;
pub(crate) mod workload;
