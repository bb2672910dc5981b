//! The load generator: workloads, the loops that run them, and the rows that they give.
//!
//! `workload` is a job's work in fio's words, `job` its loop, `verify` its pattern; `channel` is a
//! volume as a job's target, `client` a server. `bench` runs a row of jobs on a volume, `nbd`,
//! `vhost` and `virtqueue` run one against a server, `row` is the result. `jobfile` runs fio's job
//! files, `contention` clients unlike each other at the same drives, `calibration` measures a drive
//! for schedulers that share its time. `sleeper` is how threads wait, `drain_barrier` ends the
//! threads of a run, `overwrite` refuses to write over data. Called by the binary's verbs, by
//! papers and by tests.

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
mod verify;
pub(crate) mod vhost;
pub(crate) mod virtqueue;
pub(crate) mod workload;
