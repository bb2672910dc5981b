//! Helpers for threads: running the threads of a measurement, joining, locking, and running a
//! simulation.
//!
//! `simulate` returns the result of the simulation's main thread. So volumes in the result are
//! dropped after the simulation, outside of virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millrace_machine::{CpuId, Machine, Thread, lock_unpoisoned};
use millrace_simulator::{Model, Report, Simulation};

use crate::load::error::BenchError;

/// Waits for the end of all threads. Fails if one of them has panicked.
pub(crate) fn join_all<T: Thread>(threads: impl IntoIterator<Item = T>) -> Result<(), BenchError> {
    let whole = threads.into_iter().fold(true, |whole, thread| thread.join() & whole);
    if whole { Ok(()) } else { Err(BenchError::Panicked) }
}

/// Returns the CPU of thread `number`. The threads use the CPUs in `cpus` in turn. If `cpus` is
/// empty, returns `None`, for any CPU.
pub(crate) fn cpu_of(cpus: &[u32], number: u32) -> Option<u32> {
    cpus.get(number as usize % cpus.len().max(1)).copied()
}

/// Threads of a measurement, numbered from 0.
pub(crate) struct ThreadGroup<'a> {
    pub(crate) name: &'a str,
    pub(crate) count: u32,
    /// Returns the CPU of the thread with this number; `None` for any CPU.
    pub(crate) cpu_of: &'a dyn Fn(u32) -> Option<u32>,
}

impl ThreadGroup<'_> {
    /// Runs `body(number)` on each thread, and `meanwhile` on the calling thread. Waits for the
    /// threads. Returns their results in the order of their numbers, and the result of `meanwhile`.
    pub(crate) fn run<M: Machine, T: Send + 'static, R>(
        &self,
        body: impl Fn(u32) -> T + Send + Sync + 'static,
        meanwhile: impl FnOnce() -> R,
    ) -> Result<(Vec<T>, R), BenchError> {
        let (body, results) = (Arc::new(body), Arc::new(Mutex::new(BTreeMap::new())));
        let start = |number: u32| {
            let (body, results) = (Arc::clone(&body), Arc::clone(&results));
            let main = move || {
                let result = body(number);
                lock_unpoisoned(&results).insert(number, result);
            };
            let cpu = (self.cpu_of)(number).map(CpuId);
            M::spawn(&format!("{}-{number}", self.name), cpu, Box::new(main))
        };
        let threads: Vec<M::Thread> = (0..self.count).map(start).collect();
        let done = meanwhile();
        join_all(threads)?;
        let results = std::mem::take(&mut *lock_unpoisoned(&results));
        Ok((results.into_values().collect(), done))
    }
}

/// Runs `body` as the first thread of a simulation, on CPU `cpu`. The simulation fails after
/// `limit_ns` of virtual time.
pub(crate) fn simulate<T: Send + 'static>(
    (model, seed): (&Model, u64),
    (cpu, limit_ns): (u32, u64),
    body: impl FnOnce() -> Result<T, BenchError> + Send + 'static,
) -> Result<(T, Report), BenchError> {
    let failed = |text: String| BenchError::Machine { text };
    let simulation = Simulation::new(model, seed).map_err(|error| failed(error.to_string()))?;
    let slot = Arc::new(Mutex::new(None));
    let result = Arc::clone(&slot);
    let main = move || *lock_unpoisoned(&result) = Some(body());
    let report = simulation.first_cpu(cpu).time_limit_ns(limit_ns).run(main);
    let report = report.map_err(|error| failed(error.to_string()))?;
    let ran = lock_unpoisoned(&slot).take();
    Ok((ran.ok_or(BenchError::Panicked)??, report))
}
