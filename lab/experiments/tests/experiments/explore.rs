//! The explorer itself: that it repeats, that scenarios survive being printed, and a short run.

use millrace_experiments::explorer::{Scenario, run, smaller};

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
/// a thread that slept for a millisecond since another was inside its queue when it looked; and two
/// groups of weights 10000 to 1 that waited for each other.
#[test]
fn what_was_found_once_stays_away() {
    for line in include_str!("../found.jsonl").lines() {
        let scenario: Scenario = serde_json::from_str(line).expect("a scenario a line");
        let outcome = run(&scenario).expect("a valid scenario");
        assert_eq!(outcome.violation, None, "{line}");
    }
}
