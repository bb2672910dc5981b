//! `FaultControl`: what a `fault` drive does wrong, and when: set at the start or at run time.
//!
//! Shared by the drive's queues, which ask for a verdict on every request, and by whoever holds the
//! control: a test, or a server that was sent a signal. A global list names the controls of all
//! living fault drives. Lock order: the list, then a drive's rules; the cache's lock is taken
//! alone. Randomness comes from the seed only, so a run can be repeated.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use millrace_block::{DriverData, Op, Sector, Status};
use millrace_random::SplitMix64;

use super::cache::Cache;

/// How often a rule strikes among the requests that it matches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Chance {
    /// Always.
    Always,
    /// The Nth of every N; N is 1 or more.
    Every(u64),
    /// Each with this probability, 0 to 1.
    Rate(f64),
}

/// What a rule does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It fails with this status and does not reach the drive.
    Fail(Status),
    /// It completes this many nanoseconds after it came, or later.
    Delay(u64),
    /// It reaches the drive and does not complete until it is released.
    Stick,
}

/// One thing that goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultRule {
    /// Requests of this operation only; any if none.
    pub op: Option<Op>,
    /// Requests that touch these sectors; any if none. Flushes touch no sector.
    pub sectors: Option<Range<Sector>>,
    /// How often.
    pub chance: Chance,
    /// What happens.
    pub effect: Effect,
}

impl FaultRule {
    /// A rule for all requests.
    #[must_use]
    pub fn always(effect: Effect) -> FaultRule {
        FaultRule { op: None, sectors: None, chance: Chance::Always, effect }
    }

    /// Restricts the rule to one operation.
    #[must_use]
    pub fn on(mut self, op: Op) -> FaultRule {
        self.op = Some(op);
        self
    }

    /// Restricts the rule to requests that touch these sectors.
    #[must_use]
    pub fn within(mut self, sectors: Range<Sector>) -> FaultRule {
        self.sectors = Some(sectors);
        self
    }

    /// Has the rule strike as often as `chance` says.
    #[must_use]
    pub fn with_chance(mut self, chance: Chance) -> FaultRule {
        self.chance = chance;
        self
    }

    fn matches(&self, op: Op, sectors: &Range<Sector>) -> bool {
        let touches = |mine: &Range<Sector>| sectors.start < mine.end && mine.start < sectors.end;
        self.op.is_none_or(|mine| mine == op) && self.sectors.as_ref().is_none_or(touches)
    }
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    pub(crate) fails: Option<Status>,
    pub(crate) delay_ns: u64,
    pub(crate) sticks: bool,
}

impl Verdict {
    /// In words, for traces; the first that counts.
    pub(crate) fn data(&self) -> DriverData {
        match (self.fails, self.sticks) {
            (Some(status), _) => DriverData::text(format_args!("fail {}", -status.errno())),
            (None, true) => DriverData::text(format_args!("stick")),
            (None, false) => DriverData::text(format_args!("delay {} ns", self.delay_ns)),
        }
    }
}

struct Rules {
    /// Each with the number of requests that it has matched.
    list: Vec<(FaultRule, u64)>,
    random: SplitMix64,
}

/// State of a fault drive.
pub(crate) struct State {
    name: Mutex<String>,
    rules: Mutex<Rules>,
    is_dead: AtomicBool,
    /// Raised by each release: what stuck at a lower number may go.
    releases: AtomicU64,
    pub(crate) cache: Option<Cache>,
    struck: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static CONTROLS: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

/// The controls of all fault drives that are alive, by their names.
#[must_use]
pub fn fault_controls() -> Vec<(String, FaultControl)> {
    let mut controls = lock(&CONTROLS);
    controls.retain(|state| state.strong_count() > 0);
    let named = |state: Arc<State>| {
        let name = lock(&state.name).clone();
        (name, FaultControl { state })
    };
    controls.iter().filter_map(Weak::upgrade).map(named).collect()
}

/// A hand on a fault drive; cheap to clone.
#[derive(Clone)]
pub struct FaultControl {
    pub(crate) state: Arc<State>,
}

impl FaultControl {
    pub(crate) fn new(name: &str, seed: u64, cache: Option<Cache>) -> FaultControl {
        let state = Arc::new(State {
            name: Mutex::new(name.into()),
            rules: Mutex::new(Rules { list: Vec::new(), random: SplitMix64::new(seed) }),
            is_dead: AtomicBool::new(false),
            releases: AtomicU64::new(0),
            cache,
            struck: AtomicU64::new(0),
        });
        lock(&CONTROLS).push(Arc::downgrade(&state));
        FaultControl { state }
    }

    /// Its name in [`fault_controls`].
    pub fn set_name(&self, name: &str) {
        *lock(&self.state.name) = name.into();
    }

    /// Adds a rule for requests from now on. Of several failing rules the first decides; delays
    /// add up.
    pub fn add_rule(&self, rule: FaultRule) {
        lock(&self.state.rules).list.push((rule, 0));
    }

    /// Takes all rules away; what sticks stays stuck until it is released.
    pub fn clear_rules(&self) {
        lock(&self.state.rules).list.clear();
    }

    /// Everything fails with `Offline` from now on, also what is held back or comes back later.
    pub fn die_now(&self) {
        self.state.is_dead.store(true, Ordering::SeqCst);
    }

    /// The end of that.
    pub fn revive(&self) {
        self.state.is_dead.store(false, Ordering::SeqCst);
    }

    /// Lets all requests complete that stick at this moment, at the next polls of their queues.
    pub fn release_stuck(&self) {
        self.state.releases.fetch_add(1, Ordering::SeqCst);
    }

    /// Cuts the power: of what was written and not flushed, a random subset of sectors survives,
    /// as `seed` says; what is on its way fails with `IoError`. Does nothing without a volatile
    /// cache. Returns how many sectors were lost. To a program that goes on it is as a crash: a
    /// flush after the cut does not cover writes acknowledged before it.
    pub fn power_cut(&self, seed: u64) -> u64 {
        self.state.cache.as_ref().map_or(0, |cache| cache.power_cut(&mut SplitMix64::new(seed)))
    }

    /// Requests that failed, were delayed or got stuck by a rule so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        // Relaxed: a statistic.
        self.state.struck.load(Ordering::Relaxed)
    }
}

impl State {
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Whether it is dead or has a rule, for whatever requests.
    pub(crate) fn may_strike(&self) -> bool {
        self.is_dead() || !lock(&self.rules).list.is_empty()
    }

    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }

    /// Asks every rule about a request.
    pub(crate) fn verdict(&self, op: Op, sectors: Range<Sector>) -> Verdict {
        let mut verdict = Verdict::default();
        let Rules { list, random } = &mut *lock(&self.rules);
        for (rule, matched) in list.iter_mut().filter(|(rule, _)| rule.matches(op, &sectors)) {
            *matched += 1;
            let strikes = match rule.chance {
                Chance::Always => true,
                Chance::Every(n) => matched.is_multiple_of(n.max(1)),
                Chance::Rate(rate) => random.fraction() < rate,
            };
            match rule.effect {
                _ if !strikes => {}
                Effect::Fail(status) => verdict.fails = verdict.fails.or(Some(status)),
                Effect::Delay(ns) => verdict.delay_ns = verdict.delay_ns.saturating_add(ns),
                Effect::Stick => verdict.sticks = true,
            }
        }
        if verdict != Verdict::default() {
            // Relaxed: a statistic.
            self.struck.fetch_add(1, Ordering::Relaxed);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_matching_request_is_struck() {
        let control = FaultControl::new("t", 0, None);
        let rule = FaultRule::always(Effect::Fail(Status::IoError)).on(Op::Read).within(8..16);
        control.add_rule(rule.with_chance(Chance::Every(3)));
        let fails = |op, sectors| control.state.verdict(op, sectors).fails.is_some();
        let struck: Vec<bool> = (0..6).map(|_| fails(Op::Read, 15..17)).collect();
        assert_eq!(struck, [false, false, true, false, false, true]);
        assert!(!(0..9).any(|_| fails(Op::Write, 8..9) || fails(Op::Read, 16..17)));
        assert_eq!(control.struck(), 2);
    }

    #[test]
    fn rate_strikes_about_that_often_and_the_same_for_the_same_seed() {
        let count = |seed| {
            let control = FaultControl::new("t", seed, None);
            control.add_rule(FaultRule::always(Effect::Stick).with_chance(Chance::Rate(0.25)));
            (0..1000).filter(|_| control.state.verdict(Op::Flush, 0..0).sticks).count()
        };
        assert_eq!(count(7), count(7));
        assert!((150..350).contains(&count(7)));
    }

    #[test]
    fn controls_of_living_drives_are_found_by_name() {
        let control = FaultControl::new("old-name", 0, None);
        control.set_name("drive-of-this-test");
        let here = || fault_controls().iter().any(|(name, _)| name == "drive-of-this-test");
        assert!(here());
        drop(control);
        assert!(!here());
    }
}
