//! `FaultControl`: the faults of a `fault` drive, set at the start or at run time.
//!
//! For every request, a queue of the drive asks the control which faults to inject. A global list
//! holds the controls of all existing fault drives. Lock order: that list, then a drive's rules.
//! The lock of the simulated write cache (cache.rs) is never held together with another lock. All
//! randomness comes from the seed, so a run can be repeated.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use millrace_block::{DriverData, Op, Sector, Status};
use millrace_machine::{debug_fields, lock_unpoisoned, nanoseconds};
use millrace_random::SplitMix64;

use super::cache::SimulatedCache;

/// Frequency with which a rule applies to the requests that it matches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Chance {
    /// The rule applies to every matching request.
    Always,
    /// The rule applies to each Nth matching request; N is 1 or more.
    Every(u64),
    /// The rule applies to each matching request with this probability, 0 to 1.
    Rate(f64),
}

/// Effect of a rule on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The request fails with this status and does not reach the drive.
    Fail(Status),
    /// The request completes at least this long after it was submitted.
    Delay(Duration),
    /// The request reaches the drive, and does not complete until it is released.
    Stick,
}

/// One rule for injecting faults.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultRule {
    /// Operation that the rule applies to; `None` for all.
    pub op: Option<Op>,
    /// Sectors that a request must touch; `None` for any. Flushes touch no sector.
    pub sectors: Option<Range<Sector>>,
    /// Frequency with which the rule applies to matching requests.
    pub chance: Chance,
    /// Effect on the request.
    pub effect: Effect,
}

impl FaultRule {
    /// Creates a rule that applies to all requests.
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

    /// Sets how often the rule applies.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FaultVerdict {
    pub(crate) fails: Option<Status>,
    pub(crate) delay_ns: u64,
    pub(crate) sticks: bool,
}

impl FaultVerdict {
    pub(crate) fn data(&self) -> DriverData {
        match (self.fails, self.sticks) {
            (Some(status), _) => DriverData::text(format_args!("fail {}", -status.errno())),
            (None, true) => DriverData::text(format_args!("stick")),
            (None, false) => DriverData::text(format_args!("delay {} ns", self.delay_ns)),
        }
    }
}

struct RuleSet {
    /// Each rule, with the number of requests that it has matched.
    list: Vec<(FaultRule, u64)>,
    random: SplitMix64,
}

pub(crate) struct FaultState {
    name: Mutex<String>,
    rules: Mutex<RuleSet>,
    is_dead: AtomicBool,
    /// Number of calls of `release_stuck`. Each call releases the requests that are stuck at that
    /// time.
    releases: AtomicU64,
    pub(crate) cache: Option<SimulatedCache>,
    struck: AtomicU64,
}

static CONTROLS: Mutex<Vec<Weak<FaultState>>> = Mutex::new(Vec::new());

/// Returns the controls of all existing fault drives, with their names.
#[must_use]
pub fn fault_controls() -> Vec<(String, FaultControl)> {
    let mut controls = lock_unpoisoned(&CONTROLS);
    controls.retain(|state| state.strong_count() > 0);
    let named = |state: Arc<FaultState>| {
        let name = lock_unpoisoned(&state.name).clone();
        (name, FaultControl { state })
    };
    controls.iter().filter_map(Weak::upgrade).map(named).collect()
}

/// Handle that controls a fault drive. Cheap to clone.
#[derive(Clone)]
pub struct FaultControl {
    pub(crate) state: Arc<FaultState>,
}

debug_fields!(FaultControl);

impl FaultControl {
    pub(crate) fn new(name: &str, seed: u64, cache: Option<SimulatedCache>) -> FaultControl {
        let state = Arc::new(FaultState {
            name: Mutex::new(name.into()),
            rules: Mutex::new(RuleSet { list: Vec::new(), random: SplitMix64::new(seed) }),
            is_dead: AtomicBool::new(false),
            releases: AtomicU64::new(0),
            cache,
            struck: AtomicU64::new(0),
        });
        lock_unpoisoned(&CONTROLS).push(Arc::downgrade(&state));
        FaultControl { state }
    }

    /// Sets the drive's name in [`fault_controls`].
    pub fn set_name(&self, name: &str) {
        *lock_unpoisoned(&self.state.name) = name.into();
    }

    /// Adds a rule for requests from now on. If several rules fail a request, the first one
    /// decides; delays add up.
    pub fn add_rule(&self, rule: FaultRule) {
        lock_unpoisoned(&self.state.rules).list.push((rule, 0));
    }

    /// Removes all rules. Stuck requests stay stuck until they are released.
    pub fn clear_rules(&self) {
        lock_unpoisoned(&self.state.rules).list.clear();
    }

    /// Makes all requests fail with `Offline` from now on, including those in flight, delayed or
    /// stuck.
    pub fn die_now(&self) {
        self.state.is_dead.store(true, Ordering::SeqCst);
    }

    /// Ends the effect of `die_now`.
    pub fn revive(&self) {
        self.state.is_dead.store(false, Ordering::SeqCst);
    }

    /// Releases all stuck requests: each completes at the next poll of its queue.
    pub fn release_stuck(&self) {
        self.state.releases.fetch_add(1, Ordering::SeqCst);
    }

    /// Cuts the power. A random subset (by `seed`) of the sectors that were written and not flushed
    /// survives. Requests in flight fail with `IoError`. Does nothing without a volatile cache.
    /// Returns the number of sectors lost.
    ///
    /// A program that keeps running sees a drive that has crashed and lost data. A flush after the
    /// cut does not make writes durable that completed before the cut.
    pub fn power_cut(&self, seed: u64) -> u64 {
        self.state.cache.as_ref().map_or(0, |cache| cache.power_cut(&mut SplitMix64::new(seed)))
    }

    /// Returns true if the drive has a volatile cache, which a power cut loses.
    #[must_use]
    pub fn has_volatile_cache(&self) -> bool {
        self.state.cache.is_some()
    }

    /// Returns the number of requests so far that a rule has failed, delayed or made stuck.
    #[must_use]
    pub fn struck(&self) -> u64 {
        // Relaxed: no other memory access depends on this statistic.
        self.state.struck.load(Ordering::Relaxed)
    }
}

impl FaultState {
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    pub(crate) fn may_strike(&self) -> bool {
        self.is_dead() || !lock_unpoisoned(&self.rules).list.is_empty()
    }

    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::SeqCst)
    }

    pub(crate) fn verdict(&self, op: Op, sectors: Range<Sector>) -> FaultVerdict {
        let mut verdict = FaultVerdict::default();
        let RuleSet { list, random } = &mut *lock_unpoisoned(&self.rules);
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
                Effect::Delay(delay) => {
                    verdict.delay_ns = verdict.delay_ns.saturating_add(nanoseconds(delay));
                }
                Effect::Stick => verdict.sticks = true,
            }
        }
        if verdict != FaultVerdict::default() {
            // Relaxed: no other memory access depends on this statistic.
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
