//! Workloads, experiments and reports that measure millrace; production does not need this crate.
//!
//! Folders are layers, and each layer uses only the layers before it. `filter` has drivers that
//! wrap another driver. `page` renders figures, tables and checks as HTML and text. `load` is the
//! load generator: jobs, fio's job files and results. `trace` reads and writes traces of block I/O.
//! `simulation` runs benchmarks on simulated machines, `programs` runs servers and utilities there,
//! and `vm` a virtual machine. `replay` repeats the I/Os of a trace. `papers` repeats experiments
//! of papers. `explorer` looks for bugs by simulation. The verbs of the `millrace-lab` binary and
//! tests call this crate.
//!
//! Fuzz targets are built without the modules that parse nothing, which cuts the build time to a
//! third.

#![allow(missing_debug_implementations)] // The types are for this workspace only.
#![cfg_attr(fuzzing, allow(unused))]

#[cfg(not(fuzzing))]
pub mod explorer;
mod filter;
pub mod load;
pub mod page;
#[cfg(not(fuzzing))]
pub mod papers;
#[cfg(not(fuzzing))]
pub mod programs;
#[cfg(not(fuzzing))]
pub mod replay;
#[cfg(not(fuzzing))]
pub mod simulation;
pub mod trace;
#[cfg(not(fuzzing))]
pub mod vm;

pub use load::bench::{BenchError, Interrupt, Plan, Progress, run_row};
pub use load::nbd::run_nbd_row;
pub use load::overwrite::{DiskContents, check_drives, check_nbd, check_vhost};
pub use load::row::{
    Cost, DriveStates, LatencyNs, Linux24Row, MachineRow, Notifications, Outcome, Queues, Row,
    StackStages,
};
pub use load::vhost::run_vhost_row;
pub use load::virtqueue::run_virtqueue_row;
pub use load::workload::{Offsets, Rw, Workload};
#[cfg(not(fuzzing))]
pub use papers::{Mechanism, PartSelection, Step};
