//! Splits the latency of a group's I/Os on a volume into causes, from two reports.
//!
//! Pure arithmetic on counters. An I/O that still waits counts with the time that it has waited so
//! far. For each group, the daemon counts how long limits and schedulers held I/Os. The rest of the
//! latency passes in the drives or their queues, and is not counted by group. So the rest is
//! divided between drive and queue in the ratio that holds for all I/Os of these drives. The parts
//! of a split I/O count separately at their drives. Latency is counted from submission, so the time
//! under back pressure before submission is added.

use millrace_block::{DiskCounter, WaitReason};
use serde::Serialize;

use super::interval::ObservedInterval;
use crate::verbs::stat::groups::GroupDelta;
use crate::views::groups::GroupCounts;
use crate::views::report::Report;

/// Cause: the drive is processing the I/O.
pub const DRIVE: &str = "drive";
/// Cause: the I/O is in a queue of the block layer, and no other cause was counted.
pub const QUEUE: &str = "queue";
/// Cause: a flush waits for the previous flush, and then for the drives.
pub const FLUSH: &str = "flush";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencyCause {
    /// Name of the cause: a [`WaitReason`], [`DRIVE`], [`QUEUE`] or [`FLUSH`].
    pub reason: &'static str,
    pub percent: f64,
    pub ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupExplanation {
    pub group: String,
    pub ios: f64,
    /// Mean latency of the group's I/Os except flushes, in milliseconds.
    pub mean_ms: f64,
    /// 99th percentile of the latency of the group's I/Os except flushes, in milliseconds.
    pub p99_ms: f64,
    pub limits: Vec<String>,
    pub waiting: u64,
    /// Mean time for which the I/Os held now have waited, in milliseconds.
    pub waiting_ms: f64,
    /// Group's share in the cost of all I/Os on the volume's drives, by their cost model, in
    /// percent.
    pub cost_percent: f64,
    pub causes: Vec<LatencyCause>,
    /// Mean wait of the group's I/Os before dispatch, in milliseconds; at least `waiting_ms`.
    pub waited_ms: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct AtDrives {
    /// Mean number of parts into which a client's I/O is split, at least 1.
    parts: f64,
    service_ns: f64,
    queued_ns: f64,
    tag_waits: u64,
    requeues: u64,
}

impl AtDrives {
    fn during(interval: &ObservedInterval<'_>) -> AtDrives {
        let parts = match interval.completed(|op| op != FLUSH) {
            (0, _) => 1.0,
            (ios, parts) => (parts as f64 / ios as f64).max(1.0),
        };
        let mut sum = AtDrives { parts, ..AtDrives::default() };
        for drive in interval.drives() {
            sum.tag_waits += drive.counted(DiskCounter::TagWaits);
            sum.requeues += drive.counted(DiskCounter::Requeues);
            sum.service_ns += drive.time_ns(|stages| stages.service.sum_ns) as f64;
            sum.queued_ns += drive.time_ns(|stages| stages.g2i.sum_ns + stages.i2d.sum_ns) as f64;
        }
        sum
    }

    fn queue(&self) -> &'static str {
        match (self.tag_waits, self.requeues) {
            (0, 0) => QUEUE,
            (0, _) => WaitReason::DriveBusy.name(),
            _ => WaitReason::NoTag.name(),
        }
    }
}

/// Splits latency into causes, for each group that completed I/O on a volume between two reports or
/// has I/O waiting. Groups whose I/Os waited longest come first.
pub fn explain(interval: &ObservedInterval<'_>) -> Vec<GroupExplanation> {
    let ObservedInterval { volume, now, before, seconds } = *interval;
    let did = |group| GroupDelta::since(group, Some(before), |one| one == volume);
    let groups: Vec<(&GroupCounts, GroupDelta)> =
        now.group_counts.iter().map(|group| (group, did(group))).collect();
    let mut drives = AtDrives::during(interval);
    // Subtracts the time for which schedulers held I/Os, because that time is a cause of its own.
    drives.queued_ns -= groups.iter().map(|(_, did)| scheduled_ns(did)).sum::<f64>();
    let active = groups.iter().filter(|(_, did)| did.is_active());
    let all_cost_ns = groups.iter().map(|(_, did)| did.cost_ns).sum::<u64>().max(1) as f64;
    let one = |(group, did): &(&GroupCounts, GroupDelta)| {
        let causes = causes(did, &drives);
        let at_drives = |cause: &&LatencyCause| [DRIVE, FLUSH].contains(&cause.reason);
        let drive: f64 = causes.iter().filter(at_drives).map(|cause| cause.percent).sum();
        let outside_ns = did.held_ns[WaitReason::BackPressure as usize];
        let all_ms = (did.taken_ns() + did.flush_ns + outside_ns) as f64 / 1e6;
        let ios = (did.all() + did.waiting).max(1) as f64;
        let waiting_ms = did.waiting_ms();
        let waited_ms = all_ms * (1.0 - drive / 100.0).max(0.0) / ios;
        GroupExplanation {
            group: group.name.clone(),
            ios: did.all() as f64 / seconds,
            mean_ms: did.total.mean_ns() as f64 / 1e6,
            p99_ms: did.total.quantile_ns(0.99) as f64 / 1e6,
            limits: limits(now, group),
            waiting: did.waiting,
            waiting_ms,
            waited_ms: waited_ms.max(waiting_ms),
            cost_percent: 100.0 * did.cost_ns as f64 / all_cost_ns,
            causes,
        }
    };
    let mut explained: Vec<GroupExplanation> = active.map(one).collect();
    explained.sort_by(|a, b| b.waited_ms.total_cmp(&a.waited_ms));
    explained
}

fn scheduled_ns(did: &GroupDelta) -> f64 {
    let all: u64 = did.held_ns.iter().sum();
    let before =
        [WaitReason::Limit, WaitReason::BackPressure].map(|hold| did.held_ns[hold as usize]);
    (all - before.iter().sum::<u64>()) as f64
}

fn causes(did: &GroupDelta, drives: &AtDrives) -> Vec<LatencyCause> {
    let limit_ns = did.held_ns[WaitReason::Limit as usize] as f64;
    let behind_ns = (did.taken_ns() as f64 - limit_ns).max(0.0);
    // Schedulers hold each part of a split I/O separately, so the time that I/Os spend in
    // schedulers is divided by the number of parts. All other times are counted once per I/O.
    let rest_ns = (behind_ns - scheduled_ns(did) / drives.parts).max(0.0);
    let queued_ns = drives.queued_ns.max(0.0);
    let queued = queued_ns / (queued_ns + drives.service_ns).max(1.0);
    let held = WaitReason::ALL.into_iter().zip(did.held_ns);
    let of_parts = |hold| ![WaitReason::Limit, WaitReason::BackPressure].contains(&hold);
    let each = |hold| if of_parts(hold) { drives.parts } else { 1.0 };
    let mut parts: Vec<(&'static str, f64)> =
        held.map(|(hold, ns)| (hold.name(), ns as f64 / each(hold))).collect();
    parts.push((FLUSH, did.flush_ns as f64));
    parts.push((DRIVE, rest_ns * (1.0 - queued)));
    match parts.iter_mut().find(|(reason, _)| *reason == drives.queue()) {
        Some((_, ns)) => *ns += rest_ns * queued,
        None => parts.push((QUEUE, rest_ns * queued)),
    }
    let sum: f64 = parts.iter().map(|(_, ns)| ns).sum();
    let ios = (did.all() + did.waiting).max(1) as f64;
    let cause = |(reason, ns): (&'static str, f64)| LatencyCause {
        reason,
        percent: 100.0 * ns / sum.max(1.0),
        ms: ns / ios / 1e6,
    };
    let mut causes: Vec<LatencyCause> =
        parts.into_iter().map(cause).filter(|cause| cause.percent >= 0.5).collect();
    causes.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    causes
}

/// Returns the limits of a group and of its parent, as in the configuration. If the limits of only
/// one of them are used up, returns only these limits.
fn limits(report: &Report, group: &GroupCounts) -> Vec<String> {
    let of = |name: &str| -> Vec<String> {
        let settings = report.groups.iter().find(|one| one.name == name).map(|one| &one.settings);
        let is_limit = |key: &str| key.ends_with("iops") || key.ends_with("bandwidth");
        let words = settings.into_iter().flatten().filter(|(key, _)| is_limit(key));
        words.map(|(key, word)| format!("{key}={word}")).collect()
    };
    let above = group.parent.iter();
    let above = above
        .flat_map(|parent| of(parent).into_iter().map(move |word| format!("{parent}: {word}")));
    let is_booked = |name: &str| {
        let mut counts = report.group_counts.iter();
        counts.any(|counts| counts.name == name && counts.booked_ns > 0)
    };
    match (is_booked(&group.name), group.parent.as_deref().is_some_and(is_booked)) {
        (true, false) => of(&group.name),
        (false, true) => above.collect(),
        _ => of(&group.name).into_iter().chain(above).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::verbs::stat::groups::tests::{group, group as counts, report};
    use crate::views::report::{Drive, OpCounts, OpStages, TimeHistogram, Volume};
    use crate::views::settings::GroupState;

    fn sum(sum_ns: u64) -> TimeHistogram {
        TimeHistogram { sum_ns, ..TimeHistogram::default() }
    }

    /// A second in which a drive did so many I/Os, with these times.
    fn at_drive(mut now: Report, ios: u64, service_ns: u64, queued_ns: u64) -> Report {
        let stages =
            OpStages { service: sum(service_ns), i2d: sum(queued_ns), ..OpStages::default() };
        let stages = Some(stages);
        let op = OpCounts { op: "read".into(), ios, stages, ..OpCounts::default() };
        let drive = Drive { volume: "v".into(), ops: vec![op], ..Drive::default() };
        now.drives = vec![drive];
        let clients: u64 = now.group_counts.iter().map(|one| one.volumes[0].ops[0].ios).sum();
        let ops = vec![OpCounts { op: "read".into(), ios: clients, ..OpCounts::default() }];
        now.volumes = vec![Volume { name: "v".into(), ops, ..Volume::default() }];
        now
    }

    fn held(mut one: GroupCounts, holds: &[(WaitReason, u64)]) -> GroupCounts {
        let named = holds.iter().map(|(hold, ns)| (hold.name().to_owned(), *ns));
        one.volumes[0].held_ns = named.collect();
        one
    }

    fn found(explained: &GroupExplanation) -> Vec<(&'static str, f64)> {
        explained.causes.iter().map(|c| (c.reason, (c.percent * 10.0).round() / 10.0)).collect()
    }

    const MS: u64 = 1 << 20;

    #[test]
    fn what_was_held_is_its_share_and_rest_is_drives_as_theirs_was() {
        let gold = held(
            group("gold", 100, 100, 0),
            &[(WaitReason::Limit, 60 * MS), (WaitReason::Weight, 8 * MS)],
        );
        let plain = group("plain", 100, 10, 0);
        // Of what no group was held, a quarter is in queues.
        let now = at_drive(report(1, vec![gold, plain]), 110, 30 * MS, 18 * MS);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        let names: Vec<&str> = explained.iter().map(|one| one.group.as_str()).collect();
        assert_eq!(names, ["gold", "plain"]);
        let gold = [("limit", 60.0), ("drive", 24.0), ("weight", 8.0), ("queue", 8.0)];
        assert_eq!(found(&explained[0]), gold);
        assert_eq!(found(&explained[1]), [("drive", 75.0), ("queue", 25.0)]);
        assert!((explained[0].causes[0].ms - 0.629).abs() < 0.001, "{explained:?}");
        assert!((explained[0].mean_ms - 1.0486).abs() < 0.001, "{explained:?}");
    }

    #[test]
    fn queues_of_drive_without_scheduler_wait_for_what_it_lacked() {
        for (tag_waits, requeues, reason) in [(3, 3, "no-tag"), (0, 1, "drive-busy")] {
            let plain = group("default", 100, 100, 0);
            let mut now = at_drive(report(1, vec![plain]), 100, 50 * MS, 50 * MS);
            now.drives[0].counts =
                [("tag_waits".into(), tag_waits), ("requeues".into(), requeues)].into();
            let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
            let mut causes = found(&explained[0]);
            causes.sort_by_key(|cause| cause.0);
            let mut expected = [(reason, 50.0), ("drive", 50.0)];
            expected.sort_by_key(|cause| cause.0);
            assert_eq!(causes, expected);
        }
    }

    #[test]
    fn parts_of_an_io_wait_at_their_drives_each() {
        // Two parts each: what 100 I/Os were held is that of 200 parts.
        let gold = held(group("gold", 100, 100, 0), &[(WaitReason::NoTag, 150 * MS)]);
        let now = at_drive(report(1, vec![gold]), 200, 50 * MS, 150 * MS);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        assert_eq!(found(&explained[0]), [("no-tag", 75.0), ("drive", 25.0)]);
    }

    #[test]
    fn flushes_are_a_part_of_their_own_for_one_volume() {
        let mut gold = group("gold", 100, 100, 0);
        let flush =
            OpCounts { op: FLUSH.into(), ios: 1, total: sum(100 * MS), ..OpCounts::default() };
        gold.volumes[0].ops.push(flush);
        let mut elsewhere = gold.volumes[0].clone();
        elsewhere.volume = "w".into();
        elsewhere.held_ns = BTreeMap::from([("limit".to_owned(), 900 * MS)]);
        gold.volumes.push(elsewhere);
        let now = at_drive(report(1, vec![gold]), 100, 50 * MS, 0);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        let mut causes = found(&explained[0]);
        causes.sort_by_key(|cause| cause.0);
        assert_eq!(causes, [("drive", 50.0), ("flush", 50.0)]);
        assert!(explain(&ObservedInterval::new("w", &now, &now)).is_empty());
    }

    #[test]
    fn limits_are_a_groups_own_and_its_parents() {
        let words = |list: &[(&str, &str)]| {
            list.iter().map(|(key, word)| ((*key).to_owned(), (*word).to_owned())).collect()
        };
        let group = |name: &str, list: &[(&str, &str)]| GroupState {
            name: name.to_owned(),
            settings: words(list),
            ..GroupState::default()
        };
        let groups = vec![
            group("team", &[("bandwidth", "1m"), ("weight", "7")]),
            group("one", &[("iops", "500"), ("burst", "1s")]),
        ];
        let mut report = Report { groups, ..Report::default() };
        let one = GroupCounts { parent: Some("team".into()), ..counts("one", 1, 0, 0) };
        assert_eq!(limits(&report, &one), ["iops=500", "team: bandwidth=1m"]);
        let booked = |name, booked_ns| GroupCounts { booked_ns, ..counts(name, 1, 0, 0) };
        report.group_counts = vec![booked("one", 0), booked("team", 5)];
        assert_eq!(limits(&report, &one), ["team: bandwidth=1m"]);
        report.group_counts = vec![booked("one", 5), booked("team", 0)];
        assert_eq!(limits(&report, &one), ["iops=500"]);
        report.group_counts = vec![booked("one", 5), booked("team", 5)];
        assert_eq!(limits(&report, &one).len(), 2);
    }
}
