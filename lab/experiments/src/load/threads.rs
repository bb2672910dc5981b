//! Helpers for threads: joining, locking, and running a simulation.
//!
//! `simulate` returns the result of the simulation's main thread. So volumes in the result are
//! dropped after the simulation, outside of virtual time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_machine::Thread;
use millrace_simulator::{Model, Report, Simulation};

use crate::load::error::BenchError;

/// Locks a mutex, even if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the end of all threads. Fails if one of them has panicked.
pub(crate) fn join_all<T: Thread>(threads: impl IntoIterator<Item = T>) -> Result<(), BenchError> {
    let whole = threads.into_iter().fold(true, |whole, thread| thread.join() & whole);
    if whole { Ok(()) } else { Err(BenchError::Panicked) }
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
    let main = move || *lock(&result) = Some(body());
    let report = simulation.first_cpu(cpu).time_limit_ns(limit_ns).run(main);
    let report = report.map_err(|error| failed(error.to_string()))?;
    let ran = lock(&slot).take();
    Ok((ran.ok_or(BenchError::Panicked)??, report))
}
