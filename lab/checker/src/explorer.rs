//! `Explorer`: runs a model with all thread schedules and loaded values within its bounds, and
//! reports the result.
//!
//! Called by tests. `Explorer` owns one session and one pool of stacks for an exploration, and all
//! executions use them. After a failure, the choices of the failed execution are repeated with a
//! log. Invariant: exceeding the limit on executions is an error, never a pass.

use core::cell::RefCell;
use core::fmt;
use std::collections::BTreeSet;
use std::format;
use std::string::{String, ToString};
use std::time::{Duration, Instant};
use std::vec::Vec;

use millrace_random::SplitMix64;

use super::execute::{CoroutinePool, hook_panics};
use super::session::{Bounds, EnteredSession, Session};
use super::trail::{ChoiceMode, Trail};

/// Explores models. See [`Explorer::check`].
#[derive(Debug, Clone, Copy)]
pub struct Explorer {
    bounds: Bounds,
    executions_max: u64,
    random: Option<(u64, u64)>,
}

/// Statistics of an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Number of executions that were run.
    pub executions: u64,
    /// Number of steps of the longest execution.
    pub steps_max: u32,
    /// Real time that the exploration took.
    pub elapsed: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, seconds) = (self.executions, self.elapsed.as_secs_f64());
        let rate = count as f64 / seconds.max(1e-9) / 1000.0;
        write!(f, "{count} executions in {seconds:.2} s ({rate:.0} k/s)")
    }
}

/// An execution that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Description of the failure.
    pub reason: String,
    /// Encoded choices of the execution, for [`Explorer::replay`].
    pub trail: String,
    /// Steps of the execution, as text.
    pub log: Vec<String>,
    /// Number of executions until the failure.
    pub executions: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.log {
            writeln!(f, "{line}")?;
        }
        let Failure { reason, trail, executions, .. } = self;
        write!(f, "execution {executions} fails: {reason}\nreplay(\"{trail}\") runs it again")
    }
}

impl Default for Explorer {
    fn default() -> Self {
        Explorer::new()
    }
}

impl Explorer {
    /// Creates an explorer with the default bounds:
    /// - At most 3 preemptions and 10,000 steps in each execution.
    /// - At most 10 million executions.
    /// - At most 500 consecutive steps of a thread.
    /// - No deadline passes, so no wait times out.
    /// - The machine has one CPU.
    #[must_use]
    pub fn new() -> Self {
        Explorer {
            bounds: Bounds { preemptions: 3, steps: 10_000, deadlines: 0, patience: 500, cpus: 1 },
            executions_max: 10_000_000,
            random: None,
        }
    }

    /// Sets the maximum number of preemptions in one execution. A preemption takes the CPU from a
    /// thread that could continue.
    #[must_use]
    pub fn preemptions(mut self, count: u32) -> Self {
        self.bounds.preemptions = count;
        self
    }

    /// Removes the limit on preemptions.
    #[must_use]
    pub fn exhaustive(self) -> Self {
        self.preemptions(u32::MAX)
    }

    /// Sets the maximum number of executions. An exploration that needs more ends with an error.
    #[must_use]
    pub fn max_executions(mut self, count: u64) -> Self {
        self.executions_max = count;
        self
    }

    /// Sets the maximum number of steps of one execution. An execution with more steps is a
    /// failure.
    #[must_use]
    pub fn max_steps(mut self, count: u32) -> Self {
        self.bounds.steps = count;
        self
    }

    /// Sets the number of consecutive steps after which a thread must let another thread run. Such
    /// a switch does not count as a preemption. Models with their own wait loops need this limit,
    /// or a waiting thread could run forever.
    #[must_use]
    pub fn patience(mut self, steps: u32) -> Self {
        self.bounds.patience = steps;
        self
    }

    /// Sets the maximum number of deadlines that pass in one execution. With 0, no wait times out,
    /// so a lost wake-up shows as a deadlock.
    #[must_use]
    pub fn deadlines(mut self, count: u32) -> Self {
        self.bounds.deadlines = count;
        self
    }

    /// Sets the number of CPUs of the machine, at least 1.
    #[must_use]
    pub fn cpus(mut self, count: u32) -> Self {
        self.bounds.cpus = count.max(1);
        self
    }

    /// Runs this many random executions instead of all executions, for models that are too large.
    #[must_use]
    pub fn random(mut self, seed: u64, executions: u64) -> Self {
        self.random = Some((seed, executions));
        self
    }

    /// Runs `body` once for each combination of choices within the bounds. Choices are, for
    /// example, the thread that continues, or the store that a load reads.
    ///
    /// # Panics
    /// Panics with the first failure; if more executions are needed than allowed; or if `body`
    /// behaves differently under the same choices.
    pub fn check(&self, body: impl Fn()) -> Report {
        self.explore(&body).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Returns the first failure of `body`, or `None` if there is none within the bounds.
    ///
    /// # Panics
    /// Panics like [`Explorer::check`], except that a failure is returned.
    pub fn find(&self, body: impl Fn()) -> Option<Failure> {
        self.explore(&body).err()
    }

    /// Returns every value that `body` can return, and the statistics.
    ///
    /// # Panics
    /// Panics like [`Explorer::check`].
    pub fn outcomes<T: Ord>(&self, body: impl Fn() -> T) -> (BTreeSet<T>, Report) {
        let seen = RefCell::new(BTreeSet::new());
        let report = self.check(|| {
            let outcome = body();
            seen.borrow_mut().insert(outcome);
        });
        (seen.into_inner(), report)
    }

    /// Repeats a single execution. `trail` is the string in a [`Failure`] that lists the choices of
    /// the failed execution.
    ///
    /// # Errors
    /// Returns the failure if it occurs again.
    pub fn replay(&self, trail: &str, body: impl Fn()) -> Result<(), Failure> {
        hook_panics();
        let mut session = Session::new(self.bounds, ChoiceMode::Replay);
        session.trail = Trail::decode(trail);
        let mut pool = CoroutinePool::default();
        match self.logged(&mut session, &mut pool, &body, 1) {
            failure if failure.reason.is_empty() => Ok(()),
            failure => Err(failure),
        }
    }

    fn explore(&self, body: &dyn Fn()) -> Result<Report, Failure> {
        hook_panics();
        let start = Instant::now();
        let mode = match self.random {
            // The generator's state must not be 0, and similar seeds must not lead to similar
            // sequences.
            Some((seed, _)) => ChoiceMode::Random(seed.wrapping_mul(SplitMix64::STEP) | 1),
            None => ChoiceMode::DepthFirst,
        };
        let mut session = Session::new(self.bounds, mode);
        let (mut pool, mut executions, mut steps_max) = (CoroutinePool::default(), 0, 0);
        loop {
            executions += 1;
            let failed = Self::execute(&mut session, &mut pool, body);
            assert!(!session.trail.diverged, "the model is not deterministic: {:?}", session.trail);
            if failed {
                return Err(self.logged(&mut session, &mut pool, body, executions));
            }
            steps_max = steps_max.max(session.spent.steps);
            let drawn = self.random.is_some_and(|(_, count)| executions >= count);
            if drawn || !session.trail.advance() {
                return Ok(Report { executions, steps_max, elapsed: start.elapsed() });
            }
            let max = self.executions_max;
            assert!(
                executions < max,
                "not finished after {max} executions: raise max_executions or lower a bound"
            );
        }
    }

    fn execute(session: &mut Session, pool: &mut CoroutinePool, body: &dyn Fn()) -> bool {
        session.trail.rewind();
        let entered = EnteredSession::new(session);
        super::session::with(Session::reset);
        pool.execute(body);
        drop(entered);
        if session.memory.exhausted && session.failure.is_none() {
            session.failure = Some(
                "the model has too many stores: the checker has run out of timestamps".to_string(),
            );
        }
        session.failure.is_some()
    }

    fn logged(
        &self,
        session: &mut Session,
        pool: &mut CoroutinePool,
        body: &dyn Fn(),
        executions: u64,
    ) -> Failure {
        session.log = Some(Vec::new());
        Self::execute(session, pool, body);
        let (trail, log) = (session.trail.encode(), session.log.take().unwrap_or_default());
        let mut reason = session.failure.take().unwrap_or_default();
        if session.trail.diverged {
            reason = format!("the model is not deterministic when run again: {reason}");
        }
        Failure { reason, trail, log, executions }
    }
}
