//! Tests of the depth with made-up reports of queues.

use super::*;
use crate::bio::group_id::GroupId;
use crate::group::config::LatencyTarget;
use crate::queue::scheduler::share::times::LatencyCounts;

const STEP_NS: u64 = 500_000;

/// Returns the queues' reports on a drive that is kept busy.
fn busy(queues: u32, in_flight: u32) -> QueueReports {
    let mut seen = QueueReports { queues, served: 500_000, in_flight, ..QueueReports::default() };
    seen.counts.full = true;
    seen.counts.sums.0[0] = (32, 32 * 1000);
    seen
}

/// Returns the depth after `steps` steps.
fn after(steps: u64, depth: &mut DriveDepth, seen: impl Fn() -> QueueReports) -> u32 {
    let at = |step| depth.next(&seen(), Policy::Weights, 1_000_000 + step * STEP_NS)[0] / REQUEST;
    (0..steps).map(at).last().unwrap_or(0)
}

#[test]
fn search_for_shortest_times_ends_despite_hangs_and_many_queues() {
    for (queues, in_flight) in [(2, 3), (32, 32), (64, 64)] {
        let mut depth = DriveDepth::new(DriveTags { queues: queues as usize, tags: 1024 });
        // The steps take 600 ms, which includes the first probe; the next probe comes after 5 s.
        let found = after(1_200, &mut depth, || busy(queues, in_flight));
        assert!(depth.probing.is_none() && found > 2, "{queues} queues: {found}");
    }
}

#[test]
fn high_turns_leave_an_eighth_of_the_tags_too() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 64 });
    depth.depth = Some([56 * REQUEST; 2]);
    (depth.bound, depth.probe_ns) = (depth.most, u64::MAX);
    for step in 0..1_000 {
        let found = depth.next(&busy(1, 8), Policy::Weights, step * STEP_NS)[0];
        assert!(found <= 56 * REQUEST, "{found} 16ths of 64 tags");
    }
}

#[test]
fn a_target_may_be_met_for_ever() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 64 });
    for step in 0..20_000u64 {
        let mut seen =
            QueueReports { ways: 3, queues: 1, waits_for_ns: 1_000_000, ..QueueReports::default() };
        seen.counts.full = true;
        let mut counts = LatencyCounts::default();
        (0..300).for_each(|_| counts.count(100_000));
        seen.count_target(GroupId(1), LatencyTarget::Mean(1_000_000), &mut counts);
        depth.next(&seen, Policy::Targets, step * 50_000_000);
    }
    assert_eq!(depth.targets.ways(), [depth.most * HEAVIEST; 2]);
}

#[test]
fn as_many_large_requests_as_small_ones_may_be_at_the_drive() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 64 });
    (depth.depth, depth.probe_ns) = (Some([REQUEST; 2]), u64::MAX);
    for step in 0..2_000 {
        let taken = 8 * 20 * u64::from(REQUEST);
        let seen = QueueReports { taken, ..busy(1, 8) };
        depth.next(&seen, Policy::Weights, step * STEP_NS);
    }
    let requests = depth.bound / (20 * u64::from(REQUEST));
    assert!((40..=56).contains(&requests), "{requests} of 64 tags");
}
