//! The simulated machine against costs computed by hand.
//!
//! All on `Model::plain` with the jitter off and the clock free, so that every number in here is a
//! sum of the model's round numbers.
#![allow(missing_docs)]

mod costs;
mod ends;
#[cfg(feature = "serde")]
mod files;
mod locks;
mod repeat;
mod siblings;
mod threads;

use std::sync::{Arc, Mutex};

use millrace_machine::{CpuId, Machine, Thread};
use millrace_simulator::{Model, Report, SimError, Simulated, Simulation};

pub type SimWord = <Simulated as Machine>::Word;
pub type SimLock<T> = <Simulated as Machine>::Lock<T>;
pub type SimParker = <Simulated as Machine>::Parker;
pub type SimThread = <Simulated as Machine>::Thread;

/// Round numbers, no jitter, and a clock that costs nothing to read.
pub fn exact(sockets: u32, cores: u32) -> Model {
    let mut model = Model::plain(sockets, cores);
    model.work.jitter.share = 0.0;
    model.cpu.clock_read.ns = 0.0;
    model
}

/// Runs to the end.
pub fn run(model: &Model, main: impl FnOnce() + Send + 'static) -> Report {
    try_run(model, main).unwrap_or_else(|error| panic!("{error}"))
}

pub fn try_run(model: &Model, main: impl FnOnce() + Send + 'static) -> Result<Report, SimError> {
    Simulation::new(model, 1)
        .expect("the model must be valid")
        .time_limit_ns(10_000_000_000)
        .run(main)
}

pub fn spawn(name: &str, cpu: u32, body: impl FnOnce() + Send + 'static) -> SimThread {
    Simulated::spawn(name, Some(CpuId(cpu)), Box::new(body))
}

/// Runs something on a CPU, to its end.
pub fn on(cpu: u32, body: impl FnOnce() + Send + 'static) {
    assert!(spawn("on", cpu, body).join());
}

/// Returns the time in ns that `body` takes on the calling CPU.
pub fn time_of<R>(body: impl FnOnce() -> R) -> u64 {
    let start_ns = Simulated::now();
    body();
    Simulated::now() - start_ns
}

/// Notes that threads leave for the test.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<u64>>>);

impl Notes {
    pub fn add(&self, note: u64) {
        self.0.lock().expect("the simulation must not panic").push(note);
    }
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().expect("the simulation must not panic"))
    }
}
