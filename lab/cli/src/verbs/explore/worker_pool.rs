//! Runs many seeds on many workers, and sums the outcomes.
//!
//! A thread per worker takes the next few seeds until there are none left, the time is over or,
//! with `--fail-fast`, a violation was found. Called by the verb, which shows the progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_experiments::Interrupt;
use millrace_experiments::explorer::{ScenarioOutcome, Violation};

use super::args::WorkerTask;
use super::worker::Worker;

const TAKEN_MAX: u64 = 16;

pub struct SeedRange {
    pub first: u64,
    pub count: u64,
    pub time: Option<Duration>,
    pub fail_fast: bool,
    pub interrupt: Interrupt,
}

#[derive(Debug, Default)]
pub struct SeedTotals {
    pub seeds: u64,
    pub seconds: f64,
    /// Number of bios that completed.
    pub ios: u64,
    pub virtual_ns: u64,
    pub events: u64,
    pub digest: u64,
    /// Seeds with violations, in order.
    pub found: Vec<(u64, Violation)>,
}

impl SeedTotals {
    pub fn add(&mut self, seed: u64, outcome: ScenarioOutcome) {
        self.seeds += 1;
        self.ios += outcome.ios;
        self.virtual_ns += outcome.virtual_ns;
        self.events += outcome.events;
        // The digests (hashes of each run's events) are added, because a sum does not depend on the
        // order in which the seeds run.
        self.digest = self.digest.wrapping_add(outcome.digest ^ seed.rotate_left(32));
        if let Some(violation) = outcome.violation {
            self.found.push((seed, violation));
        }
    }
}

struct PoolState {
    next: AtomicU64,
    end: u64,
    taken: u64,
    deadline: Option<Instant>,
    stop: AtomicBool,
}

/// Runs seeds on `jobs` workers. Calls `progress` repeatedly with the totals and the fraction done.
pub fn run(
    seeds: &SeedRange,
    jobs: u16,
    subject: WorkerTask<'_>,
    progress: &mut dyn FnMut(&SeedTotals, f64),
) -> Result<SeedTotals> {
    let start = Instant::now();
    let shared = PoolState {
        next: AtomicU64::new(seeds.first),
        end: seeds.first.saturating_add(seeds.count),
        taken: (seeds.count / (u64::from(jobs) * 4)).clamp(1, TAKEN_MAX),
        deadline: seeds.time.map(|time| start + time),
        stop: AtomicBool::new(false),
    };
    let mut sums = SeedTotals::default();
    let (sender, results) = channel();
    let mut error = None;
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, shared) = (sender.clone(), &shared);
            scope.spawn(move || work(shared, subject, &sender));
        }
        drop(sender);
        loop {
            match results.recv_timeout(Duration::from_millis(100)) {
                Ok(Ok((seed, outcome))) => {
                    let outcome: ScenarioOutcome = outcome;
                    let found = outcome.violation.is_some();
                    sums.add(seed, outcome);
                    if found && seeds.fail_fast {
                        shared.stop.store(true, Ordering::Relaxed);
                    }
                }
                Ok(Err(wrong)) => {
                    shared.stop.store(true, Ordering::Relaxed);
                    error = Some(wrong);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let part = match seeds.time {
                Some(time) => start.elapsed().as_secs_f64() / time.as_secs_f64(),
                None => sums.seeds as f64 / seeds.count.max(1) as f64,
            };
            progress(&sums, part.min(1.0));
            if seeds.interrupt.is_set() {
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
    });
    sums.seconds = start.elapsed().as_secs_f64();
    sums.found.sort_by_key(|(seed, _)| *seed);
    error.map_or(Ok(sums), Err)
}

fn work(
    shared: &PoolState,
    subject: WorkerTask<'_>,
    sender: &Sender<Result<(u64, ScenarioOutcome)>>,
) {
    let mut worker = Worker::new(subject);
    loop {
        let late = shared.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late || shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let first = shared.next.fetch_add(shared.taken, Ordering::Relaxed);
        if first >= shared.end {
            return;
        }
        let ran = worker.run_seeds(first, shared.taken.min(shared.end - first), |seed, outcome| {
            sender.send(Ok((seed, outcome))).is_ok() && !shared.stop.load(Ordering::Relaxed)
        });
        if let Err(error) = ran {
            let _ = sender.send(Err(error));
            return;
        }
    }
}
