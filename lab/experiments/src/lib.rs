//! Workloads, experiments and reports: what measures millrace, and nothing that production needs.
//!
//! Owns the words of a workload (fio's), the loop of one job, the rows of a result and the
//! comparison that `millrace-lab bench` runs by default; `simulation`, the same on simulated
//! machines; `load`, clients unlike each other at the same drives; `schedulers`, what each of them
//! gets under which scheduler; `systor13`, `atc17`, `msst15` and `ols02`, papers' experiments
//! there, and `walk`, one here; `programs`, servers and utilities; `vm`, a virtual machine there;
//! `calibrate`, what a drive does in a second; `page`, what an experiment found and how it is
//! shown; `trace`, what traces say; `replay`, their I/Os sent again; `overwrite`, what none of them
//! writes to unasked; and `explorer`, which looks for bugs by simulation. Called by the binary's
//! verbs and by tests.

pub mod explorer;
mod filter;
pub mod load;
pub mod page;
pub mod papers;
pub mod programs;
pub mod replay;
pub mod simulation;
pub mod trace;
pub mod vm;

pub use load::bench::{BenchError, Interrupt, Plan, Progress, run_row};
pub use load::nbd::run_nbd_row;
pub use load::overwrite::{DiskContents, check_drives, check_nbd, check_vhost};
pub use load::row::{
    Cost, DriveStates, HistoryRow, LatencyNs, MachineRow, Notifications, Outcome, Queues, Row,
    StackStages,
};
pub use load::vhost::run_vhost_row;
pub use load::virtqueue::run_virtqueue_row;
pub use load::workload::{Offsets, Rw, Workload};
pub use papers::{Mechanism, Step, Wanted};
