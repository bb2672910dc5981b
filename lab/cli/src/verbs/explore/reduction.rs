//! Shrinking of a scenario: searches for a smaller scenario that has the same kind of violation.
//!
//! Each step continues with the first smaller scenario that has such a violation. The search ends
//! if no smaller scenario has one, or when the time is up. The verb calls this file for the first
//! violation of each kind.

use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_experiments::explorer::{Scenario, Violation, smaller};

use super::args::WorkerTask;
use super::worker::Worker;

const TIME: Duration = Duration::from_secs(20);

/// Returns the smallest scenario found that has the same kind of violation, and its violation.
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
