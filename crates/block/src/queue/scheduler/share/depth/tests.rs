//! Tests of the depth with made-up reports of queues.

extern crate std;

use core::time::Duration;

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
fn probes_of_the_capacity_leave_an_eighth_of_the_tags() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 64 });
    depth.bound = depth.most;
    for step in 0..1_000 {
        let found = depth.next(&busy(1, 8), Policy::Weights, step * STEP_NS)[0];
        assert!(found <= 56 * REQUEST, "{found} 16ths of 64 tags");
    }
    assert!(depth.capacity > 0);
}

/// Returns the depth that protects a group with few requests on a drive. `does` returns, for a
/// number of requests at the drive, the cost served per step and the service time as a multiple of
/// the shortest one.
fn beside_few(does: impl Fn(f64) -> (f64, f64)) -> u64 {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 256 });
    let mut requests = 16;
    for step in 0..20_000 {
        let (served, times) = does(f64::from(requests));
        let log = 1000 + (times.log2() * 64.0) as u32;
        let mut seen = QueueReports { shallow: true, served: served as u64, ..busy(1, 2) };
        seen.counts.sums.0[0] = (32, 32 * log);
        seen.counts.light.0[0] = (2, 2 * log);
        requests = depth.next(&seen, Policy::Weights, step * STEP_NS)[0] / REQUEST;
    }
    depth.bound / u64::from(REQUEST)
}

#[test]
fn depth_protects_a_group_unless_throughput_falls() {
    // Four units that serve any request: a depth of four keeps them busy.
    let any_unit = |depth: f64| (depth.min(4.0) * 100_000.0, (depth / 4.0).max(1.0));
    assert!((5..=6).contains(&beside_few(any_unit)), "{}", beside_few(any_unit));
    // Eight units, and each request needs one of them: throughput grows at any depth, so the
    // longest service time decides.
    let own_unit = |depth: f64| (depth / (depth + 8.0) * 800_000.0, (depth + 8.0) / 10.0);
    assert!((11..=13).contains(&beside_few(own_unit)), "{}", beside_few(own_unit));
}

#[test]
fn a_target_may_be_met_for_ever() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 64 });
    for step in 0..20_000u64 {
        let mut seen = QueueReports {
            ways: 3,
            queues: 1,
            waits_for_ns: Some(1_000_000),
            ..QueueReports::default()
        };
        seen.counts.full = true;
        let mut counts = LatencyCounts::default();
        (0..300).for_each(|_| counts.count(100_000));
        seen.count_target(GroupId(1), LatencyTarget::Mean(Duration::from_millis(1)), &mut counts);
        depth.next(&seen, Policy::Targets, step * 50_000_000);
    }
    assert_eq!(depth.targets.ways(), [depth.most * HEAVIEST; 2]);
}

#[test]
fn as_many_large_requests_as_small_ones_may_be_at_the_drive() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 64 });
    (depth.depth, depth.due.probe_ns) = (Some([REQUEST; 2]), u64::MAX);
    for step in 0..2_000 {
        let taken = 8 * 20 * u64::from(REQUEST);
        let seen = QueueReports { taken, ..busy(1, 8) };
        depth.next(&seen, Policy::Weights, step * STEP_NS);
    }
    let requests = depth.bound / (20 * u64::from(REQUEST));
    assert!((40..=56).contains(&requests), "{requests} of 64 tags");
}

#[test]
fn drive_found_slow_gets_the_depth_of_a_new_drive() {
    let mut depth = DriveDepth::new(DriveTags { queues: 1, tags: 1024 });
    // While the drive was fast, its depth grew to the maximum; then it had no limit.
    depth.bound = depth.most;
    depth.off();
    depth.restart();
    let found = after(1, &mut depth, || busy(1, 16));
    assert!(found <= 16, "{found} requests may be at a drive just found slow");
}
