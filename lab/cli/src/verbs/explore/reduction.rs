//! Making what was found smaller: the first smaller scenario that goes wrong alike is kept.
//!
//! Called by the verb for the first violation of each kind, for a bounded time.

use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_experiments::explorer::{Scenario, Violation, smaller};

use super::args::WorkerTask;
use super::worker::Worker;

/// Real time spent on one violation.
const TIME: Duration = Duration::from_secs(20);

/// A smaller scenario that goes wrong in the same way, and how; this one if there is none.
///
/// # Errors
/// If there is no worker to be had.
pub fn shrink(
    found: (Scenario, Violation),
    subject: WorkerTask<'_>,
) -> Result<(Scenario, Violation)> {
    let (start, mut worker) = (Instant::now(), Worker::new(subject));
    let (mut best, mut how) = found;
    'smaller: loop {
        for candidate in smaller(&best) {
            if start.elapsed() > TIME {
                return Ok((best, how));
            }
            let outcome = worker.run(&candidate)?;
            if let Some(violation) = outcome.violation.filter(|found| found.kind == how.kind) {
                (best, how) = (candidate, violation);
                continue 'smaller;
            }
        }
        return Ok((best, how));
    }
}
