//! `Explorer`: runs a model under all choices within its bounds, and tells what it found.
//!
//! Called by tests. Owns one session and one pool of stacks for the length of an exploration, and
//! reaches the executions through them. A failure is run a second time, with a log, from its trail.
//! Invariant: exceeding the number of executions is an error, never a pass.

use core::cell::RefCell;
use core::fmt;
use std::collections::BTreeSet;
use std::format;
use std::string::{String, ToString};
use std::time::{Duration, Instant};
use std::vec::Vec;

use millrace_random::SplitMix64;

use super::execute::{Pool, hook_panics};
use super::session::{Bounds, Entered, Session};
use super::trail::{Mode, Trail};

/// Explores models; see [`Explorer::check`].
#[derive(Debug, Clone, Copy)]
pub struct Explorer {
    bounds: Bounds,
    executions_max: u64,
    random: Option<(u64, u64)>,
}

/// What an exploration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// How many executions there are within the bounds, or were drawn.
    pub executions: u64,
    /// Steps of the longest of them.
    pub steps_max: u32,
    /// How long it took.
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
    /// What went wrong.
    pub reason: String,
    /// Replays this execution: [`Explorer::replay`] of the same explorer.
    pub trail: String,
    /// What happened in it, step by step.
    pub log: Vec<String>,
    /// How many executions it took to find.
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
    /// At most 3 preemptions, 10 million executions of 10,000 steps, 500 of them in a row;
    /// deadlines never pass; one CPU.
    #[must_use]
    pub fn new() -> Self {
        Explorer {
            bounds: Bounds { preemptions: 3, steps: 10_000, deadlines: 0, patience: 500, cpus: 1 },
            executions_max: 10_000_000,
            random: None,
        }
    }

    /// How often a thread that could go on may lose its turn in one execution.
    #[must_use]
    pub fn preemptions(mut self, count: u32) -> Self {
        self.bounds.preemptions = count;
        self
    }

    /// No bound on preemptions.
    #[must_use]
    pub fn exhaustive(self) -> Self {
        self.preemptions(u32::MAX)
    }

    /// More executions than this are an error.
    #[must_use]
    pub fn max_executions(mut self, count: u64) -> Self {
        self.executions_max = count;
        self
    }

    /// More steps than this in one execution are a failure.
    #[must_use]
    pub fn max_steps(mut self, count: u32) -> Self {
        self.bounds.steps = count;
        self
    }

    /// How many steps a thread makes in a row before it must let another go on, which costs no
    /// preemption: for loops that wait for another thread without `spin_until`.
    #[must_use]
    pub fn patience(mut self, steps: u32) -> Self {
        self.bounds.patience = steps;
        self
    }

    /// How many deadlines may pass in one execution. With none, a lost wake-up cannot hide behind
    /// a timeout.
    #[must_use]
    pub fn deadlines(mut self, count: u32) -> Self {
        self.bounds.deadlines = count;
        self
    }

    /// CPUs of the machine, 1 or more.
    #[must_use]
    pub fn cpus(mut self, count: u32) -> Self {
        self.bounds.cpus = count.max(1);
        self
    }

    /// Draws this many executions instead of visiting all, for models that are too large.
    #[must_use]
    pub fn random(mut self, seed: u64, executions: u64) -> Self {
        self.random = Some((seed, executions));
        self
    }

    /// Runs `body` under every choice within the bounds.
    ///
    /// # Panics
    /// With the first failure; if there are more executions than allowed; if `body` does not do
    /// the same thing under the same choices.
    pub fn check(&self, body: impl Fn()) -> Report {
        self.explore(&body).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// The first failure of `body`, or None if it has none within the bounds.
    ///
    /// # Panics
    /// Explores like [`Explorer::check`], and returns a failure instead of panicking.
    pub fn find(&self, body: impl Fn()) -> Option<Failure> {
        self.explore(&body).err()
    }

    /// Everything that `body` may return.
    ///
    /// # Panics
    /// As [`Explorer::check`].
    pub fn outcomes<T: Ord>(&self, body: impl Fn() -> T) -> (BTreeSet<T>, Report) {
        let seen = RefCell::new(BTreeSet::new());
        let report = self.check(|| {
            let outcome = body();
            seen.borrow_mut().insert(outcome);
        });
        (seen.into_inner(), report)
    }

    /// Runs the one execution that a failure named.
    ///
    /// # Errors
    /// The failure, if it fails again.
    pub fn replay(&self, trail: &str, body: impl Fn()) -> Result<(), Failure> {
        hook_panics();
        let mut session = Session::new(self.bounds, Mode::Replay);
        session.trail = Trail::decode(trail);
        let mut pool = Pool::default();
        match self.logged(&mut session, &mut pool, &body, 1) {
            failure if failure.reason.is_empty() => Ok(()),
            failure => Err(failure),
        }
    }

    fn explore(&self, body: &dyn Fn()) -> Result<Report, Failure> {
        hook_panics();
        let start = Instant::now();
        let mode = match self.random {
            // The generator must not start at 0; neighbouring seeds must not start alike.
            Some((seed, _)) => Mode::Random(seed.wrapping_mul(SplitMix64::STEP) | 1),
            None => Mode::DepthFirst,
        };
        let mut session = Session::new(self.bounds, mode);
        let (mut pool, mut executions, mut steps_max) = (Pool::default(), 0, 0);
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
            assert!(executions < max, "not finished after {max} executions: raise a bound");
        }
    }

    /// One execution; whether it failed.
    fn execute(session: &mut Session, pool: &mut Pool, body: &dyn Fn()) -> bool {
        session.trail.rewind();
        let entered = Entered::new(session);
        super::session::with(Session::reset);
        pool.execute(body);
        drop(entered);
        if session.memory.exhausted && session.failure.is_none() {
            session.failure = Some("timestamps have run out: too many stores".to_string());
        }
        session.failure.is_some()
    }

    /// The last execution once more, with a log.
    fn logged(
        &self,
        session: &mut Session,
        pool: &mut Pool,
        body: &dyn Fn(),
        executions: u64,
    ) -> Failure {
        session.log = Some(Vec::new());
        Self::execute(session, pool, body);
        let (trail, log) = (session.trail.encode(), session.log.take().unwrap_or_default());
        let mut reason = session.failure.take().unwrap_or_default();
        if session.trail.diverged {
            reason = format!("not deterministic when run again; {reason}");
        }
        Failure { reason, trail, log, executions }
    }
}
