//! Drivers: what a drive's data is kept in, and the I/O threads that file drives need.
//!
//! `null` and `model` are generic over the machine; `ram`, `file`, `nbd` and `fault` complete the
//! set. Drives are named by specs, `driver:key=value,...`. All data I/O of the project goes through
//! here and through the reactor below. Called by the `millrace` binary, exports and the lab.

#![doc = include_str!("../README.md")]

mod cancel;
mod controller;
mod fault;
mod file;
mod mapping;
pub use mapping::advise_huge_pages;
mod model;
mod nbd;
mod null;
mod open;
mod outcomes;
mod owned;
mod payload;
mod pieces;
mod place;
mod ram;
mod rbd;
mod spec;
mod store;
mod store_file;
mod system;
mod thread_bound;
mod value;
mod words;

pub use cancel::Cancel;
pub use controller::{controller_config, controller_of};
pub use fault::{
    Chance, Effect, FaultCache, FaultConfig, FaultControl, FaultDriver, FaultRule, fault_controls,
};
pub use file::{
    Advice, Aio, Direct, FileAccess, FileConfig, FileCounters, FileDriver, lock_refusal,
};
pub use model::{
    ModelConfig, ModelContents, ModelController, ModelDisk, ModelDriver, ModelIo, ModelIoKind,
    ModelPreset, ModelTiming, Timing, UsualTimes, model_presets, usual_times,
};
pub use nbd::{NbdConfig, NbdDriver, NbdTls, OnServerRestart, TlsIdentity};
pub use null::NullDriver;
pub use open::{Measured, Opened, check, file_place, measure, open, open_on, open_with};
pub use payload::{copy_from_request, copy_to_request};
pub use place::Place;
pub use ram::{RamConfig, RamDriver};
pub use rbd::{ImageName, RbdConfig, RbdDriver};
pub use spec::{Spec, SpecError, drivers, known_keys};
pub use store_file::open_store;
pub use system::{Holder, flock_holder, may_lock_memory, memory_bytes};
pub use value::{size_bytes, size_text, time_ns};
pub use words::{Words, nearest};
