//! The explorer itself: that it repeats, that scenarios survive being printed, and a short run.

use millrace_experiments::explorer::{Disturbance, DisturbanceKind, Scenario, run, smaller};

#[test]
fn scenario_survives_being_printed() {
    for seed in 0..200 {
        let scenario = Scenario::of_seed(seed);
        let line = scenario.line();
        assert!(!line.contains('\n') && !line.contains('\''));
        assert_eq!(serde_json::from_str::<Scenario>(&line).expect("its own line"), scenario);
    }
}

#[test]
fn a_seed_runs_the_same_again() {
    for seed in 0..40 {
        let scenario = Scenario::of_seed(seed);
        let first = run(&scenario).expect("a derived scenario is valid");
        assert_eq!(run(&scenario).as_ref(), Ok(&first), "seed {seed}");
    }
}

#[test]
fn some_seeds_run_without_a_violation() {
    for seed in 0..300 {
        let outcome = run(&Scenario::of_seed(seed)).expect("a derived scenario is valid");
        assert_eq!(outcome.violation, None, "seed {seed}: {}", Scenario::of_seed(seed).line());
    }
}

#[test]
fn some_cached_seeds_run_without_a_violation() {
    for seed in 0..100 {
        let scenario = Scenario::cached_of_seed(seed);
        assert!(scenario.cache.is_some());
        let outcome = run(&scenario).expect("a derived scenario is valid");
        assert_eq!(outcome.violation, None, "seed {seed}: {}", scenario.line());
    }
}

#[test]
fn caches_meet_schedulers_groups_growth_and_faults() {
    let count = |has: &dyn Fn(&Scenario) -> bool| {
        (0..300).filter(|seed| has(&Scenario::cached_of_seed(*seed))).count()
    };
    let is_scheduled = |d: &Disturbance| matches!(d.what, DisturbanceKind::Schedule(..));
    let shared = count(&|s| s.groups.len() > 1 && s.disturbances.iter().any(is_scheduled));
    let grown = |d: &Disturbance| matches!(d.what, DisturbanceKind::Grow(..));
    assert!(shared > 15 && count(&|s| s.disturbances.iter().any(grown)) > 15);
    let blocks = |s: &Scenario, block| s.drives.iter().any(|d| d.limits.block == block);
    assert!(count(&|s| blocks(s, 65_536)) > 15 && count(&|s| blocks(s, 512)) > 100);
    assert!(count(&|s| s.drives.iter().any(|d| d.faults.dead_for_us > 1_000_000)) > 2);
    assert!(count(&|s| s.drives.iter().any(|d| d.faults.stall_us.is_some())) > 5);
    assert!(count(&|s| s.drives.iter().any(|d| d.faults.once_us.is_some())) > 20);
}

#[test]
fn every_smaller_scenario_is_another_valid_one() {
    for seed in 0..50 {
        let scenario = Scenario::of_seed(seed);
        for candidate in smaller(&scenario) {
            assert_ne!(candidate, scenario);
            assert!(candidate.line().len() < scenario.line().len() + 40);
        }
    }
}

/// Shrunk scenarios of bugs that were found this way: an idle owner that looked after no timeout, a
/// freeze that missed a flush on its way, a queue that nobody owned, recursion from waiter to
/// waiter, a millisecond's sleep for each tag, bios taken by another queue than their own, two
/// threads that passed a wake on to each other for ever, the judge held over a call to the machine,
/// a wait for a tag without a look at the queue that has it, a request that a busy drive refused
/// and nobody tried again, parts for a stalled drive that took all slots from those of others,
/// a thread that slept for a millisecond since another was inside its queue when it looked, two
/// groups of weights 10000 to 1 that waited for each other, a durable write to a cache that was
/// acknowledged while another write's data on its way to the drive replaced its own; and a page
/// whose failed write was dropped while an older read of it was on its way to the cache.
#[test]
fn what_was_found_once_stays_away() {
    for line in include_str!("../found.jsonl").lines() {
        let scenario: Scenario = serde_json::from_str(line).expect("a scenario a line");
        let outcome = run(&scenario).expect("the scenario must be valid");
        assert_eq!(outcome.violation, None, "{line}");
    }
}
