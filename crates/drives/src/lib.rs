//! Drivers: the storage behind drives, and the I/O threads that file drives need.
//!
//! `null`, `ram` and `model` also run on simulated machines; the others need an operating system. A
//! spec of the form `driver:key=value,...` describes a drive. The driver's row in the table
//! `DRIVERS` parses the spec. All data I/O of the project goes through this crate, and through the
//! reactor below it. The `millrace` binary, the exports and the laboratory call it.

#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod common;
mod controller;
mod fault;
mod file;
mod model;
mod nbd;
mod null;
mod open;
mod open_on;
mod ram;
mod rbd;
mod spec;

pub use common::cancel::Cancel;
pub use common::dry_run::DryRun;
pub use common::payload::{copy_from_request, copy_to_request};
pub use common::place::DataPlace;
pub use common::procfs::{
    Holder, flock_holder, marked_process, may_lock_memory, memory_bytes, process_mark,
};
pub use common::store_file::open_store;
pub use common::units::{
    count, count_text, duration, duration_or_seconds, duration_text, rate_bytes_per_s, size_bytes,
    size_text,
};
pub use common::words::{Words, nearest, unknown_word};
pub use controller::{controller_config, controller_of};
pub use fault::{
    Chance, Effect, FaultCache, FaultConfig, FaultControl, FaultDriver, FaultRule, fault_controls,
};
pub use file::{Advice, Aio, Direct, FileAccess, FileConfig, FileCounters, FileDriver};
pub use model::{
    ModelConfig, ModelContents, ModelController, ModelDisk, ModelDriver, ModelPreset, ModelTiming,
    UsualTimes, model_presets, usual_times,
};
pub use nbd::{ClientFiles, NbdConfig, NbdDriver, NbdTls, OnServerRestart, TlsIdentity};
pub use null::NullDriver;
pub use open::{OpenOptions, Opened, check, file_place, open, open_with};
pub use open_on::open_on;
pub use ram::{RamConfig, RamDriver};
pub use rbd::{ImageName, RbdConfig, RbdDriver};
pub use spec::{Spec, SpecError, drivers, known_keys};

/// All drivers, in the order in which messages list them. Each has a `mod` above and a row here.
const DRIVERS: &[&open::DriverRow] =
    &[&null::ROW, &ram::ROW, &model::ROW, &file::ROW, &nbd::ROW, &rbd::ROW, &fault::ROW];

fn driver(name: &str) -> Option<&'static open::DriverRow> {
    DRIVERS.iter().copied().find(|row| row.name == name)
}
