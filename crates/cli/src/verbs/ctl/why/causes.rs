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
    /// Mean latency of the group's I/Os, in milliseconds.
    pub mean_ms: f64,
    /// 99th percentile of the latency of the group's I/Os, in milliseconds.
    pub p99_ms: f64,
    /// Upper estimate of the mean number of I/Os in flight, by Little's law. One I/O is added to
    /// the completed ones, because an I/O may be in flight at the end of the interval.
    #[serde(skip)]
    pub in_flight: f64,
    pub limits: Vec<String>,
    pub waiting: u64,
    /// Mean time that the presently held I/Os (kept back by limits or schedulers) have waited so
    /// far, in milliseconds.
    pub waiting_ms: f64,
    /// Group's share in the cost of all I/Os on the volume, in percent. The drives' cost model
    /// gives the cost of an I/O.
    pub cost_percent: f64,
    pub causes: Vec<LatencyCause>,
    /// Mean time that the group's I/Os waited before dispatch, in milliseconds. At least
    /// `waiting_ms`, the mean wait of the presently held I/Os.
    pub waited_ms: f64,
    /// True if at least half of the group's I/Os are writes.
    #[serde(skip)]
    pub writes: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct AtDrives {
    /// Mean length, in bytes, of the parts of split I/Os.
    part_bytes: f64,
    service_ns: f64,
    queued_ns: f64,
    tag_waits: u64,
    requeues: u64,
    /// Fraction of the estimated waits ([`estimated_ns`]) that is subtracted from each group's time
    /// in drives and queues. Without the subtraction, the sum over all groups could exceed the time
    /// measured at the drives.
    surplus: f64,
}

impl AtDrives {
    fn during(interval: &ObservedInterval<'_>, groups: &[GroupDelta]) -> AtDrives {
        let mut sum = AtDrives::default();
        for drive in interval.drives() {
            sum.tag_waits += drive.counted(DiskCounter::TagWaits);
            sum.requeues += drive.counted(DiskCounter::Requeues);
            sum.service_ns += drive.time_ns(|stages| stages.service.sum_ns) as f64;
            sum.queued_ns += drive.time_ns(|stages| stages.g2i.sum_ns + stages.i2d.sum_ns) as f64;
        }
        // `queued_ns` must not include the time for which schedulers held I/Os, because that time
        // is a cause of its own. The held time and `queued_ns` count waits differently: the held
        // time includes unfinished waits, and `queued_ns` includes waits before the interval. So
        // the difference may be wrong by both kinds of waits. Their estimate (`estimated_ns`) is
        // subtracted, too.
        sum.queued_ns -=
            groups.iter().map(|did| scheduled_ns(did) + estimated_ns(did)).sum::<f64>();
        sum.queued_ns = sum.queued_ns.max(0.0);
        let (_, parts) = interval.completed(|op| ["read", "write"].contains(&op));
        // Computes the mean part length in several rounds. I/Os shorter than a part are not split,
        // so their groups are excluded. Each round finds a longer part length, which may exclude
        // further groups.
        for _ in groups {
            let (whole, split): (Vec<_>, Vec<_>) =
                groups.iter().partition(|did| mean_bytes(did) < sum.part_bytes);
            let whole: u64 = whole.iter().map(|did| did.ios[0] + did.ios[1]).sum();
            let bytes: u64 = split.iter().flat_map(|did| did.bytes).sum();
            let part_bytes = bytes as f64 / parts.saturating_sub(whole).max(1) as f64;
            // The rounds end when no group has split I/Os, or when the part length stays the same.
            if bytes == 0 || part_bytes == sum.part_bytes {
                break;
            }
            sum.part_bytes = part_bytes;
        }
        // The groups' times at the drives cannot add up to more than the drives' own total, so an
        // excess is due to the estimated waits.
        let rest_ns: f64 = groups.iter().map(|did| sum.rest_ns(did)).sum();
        let estimated_ns: f64 = groups.iter().map(estimated_ns).sum();
        let surplus_ns = (rest_ns - sum.service_ns - sum.queued_ns).max(0.0);
        AtDrives { surplus: surplus_ns / estimated_ns.max(1.0), ..sum }
    }

    /// Returns the mean number of parts into which a group's I/Os are split, at least 1.
    fn parts(&self, did: &GroupDelta) -> f64 {
        (mean_bytes(did) / self.part_bytes.max(1.0)).max(1.0)
    }

    /// Returns the total time of a group's I/Os except flushes. The parts of a split I/O wait
    /// separately, so their waits are divided by the number of parts.
    fn taken_ns(&self, did: &GroupDelta) -> f64 {
        let waiting_ns = did.waiting_ns as f64 - did.waited_ns as f64;
        (did.total.sum_ns() as f64 + waiting_ns / self.parts(did)).max(0.0)
    }

    /// Returns the time of a group's I/Os in drives and queues: the total without the time for
    /// which limits or schedulers held them. Schedulers hold each part of a split I/O separately,
    /// so the schedulers' time is divided by the number of parts.
    fn rest_ns(&self, did: &GroupDelta) -> f64 {
        let limit_ns = did.held_ns[WaitReason::Limit as usize] as f64;
        let behind_ns = (self.taken_ns(did) - limit_ns).max(0.0);
        let rest_ns = behind_ns - scheduled_ns(did) / self.parts(did);
        (rest_ns - self.surplus * estimated_ns(did)).max(0.0)
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
    let deltas: Vec<GroupDelta> = now.group_counts.iter().map(did).collect();
    let drives = AtDrives::during(interval, &deltas);
    let active = now.group_counts.iter().zip(&deltas).filter(|(_, did)| did.is_active());
    let all_cost_ns = deltas.iter().map(|did| did.cost_ns).sum::<u64>().max(1) as f64;
    let one = |(group, did): (&GroupCounts, &GroupDelta)| {
        let causes = causes(did, &drives);
        let at_drives = |cause: &&LatencyCause| [DRIVE, FLUSH].contains(&cause.reason);
        let drive: f64 = causes.iter().filter(at_drives).map(|cause| cause.percent).sum();
        let outside_ns = did.held_ns[WaitReason::BackPressure as usize];
        let all_ms = (drives.taken_ns(did) + (did.flush.sum_ns() + outside_ns) as f64) / 1e6;
        let mut latency = did.total.clone();
        latency.merge(&did.flush);
        let ios = (did.all() + did.waiting).max(1) as f64;
        let waiting_ms = did.waiting_ms();
        let waited_ms = all_ms * (1.0 - drive / 100.0).max(0.0) / ios;
        GroupExplanation {
            group: group.name.clone(),
            ios: did.all() as f64 / seconds,
            mean_ms: latency.mean_ns() as f64 / 1e6,
            p99_ms: latency.quantile_ns(0.99) as f64 / 1e6,
            in_flight: ((did.all() + 1) * latency.mean_ns()) as f64 / 1e9 / seconds,
            limits: limits(now, group),
            waiting: did.waiting,
            waiting_ms,
            waited_ms: waited_ms.max(waiting_ms),
            writes: did.ios[1] > 0 && did.ios[1] * 2 >= did.all(),
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

/// Returns the sum of two estimates of waits in nanoseconds (`WaitSnapshot::waiting_ns`). The first
/// is for the I/Os held at the earlier report, the second for the I/Os held at the later report.
/// Returns 0 if schedulers held no I/O.
fn estimated_ns(did: &GroupDelta) -> f64 {
    if scheduled_ns(did) > 0.0 { (did.waiting_ns + did.waited_ns) as f64 } else { 0.0 }
}

fn mean_bytes(did: &GroupDelta) -> f64 {
    did.bytes.iter().sum::<u64>() as f64 / (did.ios[0] + did.ios[1]).max(1) as f64
}

fn causes(did: &GroupDelta, drives: &AtDrives) -> Vec<LatencyCause> {
    let rest_ns = drives.rest_ns(did);
    let queued = drives.queued_ns / (drives.queued_ns + drives.service_ns).max(1.0);
    let held = WaitReason::ALL.into_iter().zip(did.held_ns);
    let of_parts = |hold| ![WaitReason::Limit, WaitReason::BackPressure].contains(&hold);
    let each = |hold| if of_parts(hold) { drives.parts(did) } else { 1.0 };
    let mut parts: Vec<(&'static str, f64)> =
        held.map(|(hold, ns)| (hold.name(), ns as f64 / each(hold))).collect();
    parts.push((FLUSH, did.flush.sum_ns() as f64));
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
    use crate::views::groups::OnVolume;
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
    fn waits_of_a_deep_queue_do_not_hide_causes_of_small_ios() {
        let mut bulk = held(group("bulk", 100, 30, 0), &[(WaitReason::Depth, 400_000 * MS)]);
        let small = group("small", 100, 400, 0);
        let idle = held(group("idle", 1, 20, 0), &[(WaitReason::Priority, 20 * MS)]);
        let on = &mut bulk.volumes[0];
        (on.ops[0].bytes, on.ops[0].total.sum_ns) = (30 << 20, 50_000 * MS);
        (on.waiting, on.waiting_ns) = (1_000, 200_000 * MS);
        let mut before = bulk.clone();
        before.volumes[0] = OnVolume { waiting_ns: 300_000 * MS, ..OnVolume::default() };
        before.volumes[0].volume = "v".into();
        // The drive counts waits from before the first report, and omits those that last.
        let now = at_drive(report(1, vec![bulk, small, idle]), 1_380, 1_400 * MS, 420_020 * MS);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, vec![before])));
        let of = |name: &str| found(explained.iter().find(|one| one.group == name).unwrap());
        assert_eq!(of("small"), [("drive", 100.0)]);
        assert_eq!(of("idle"), [("priority", 100.0)], "32 parts of bulk's I/Os are not its own");
        assert_eq!(of("bulk"), [("depth", 92.6), ("drive", 7.4)]);
    }

    #[test]
    fn long_ios_that_span_the_interval_leave_no_pause() {
        let mut bulk = group("bulk", 100, 1, 0);
        let ns = 1_300_000_000;
        bulk.volumes[0].ops[0].total =
            TimeHistogram { sum_ns: ns, max_ns: ns, buckets: vec![(ns, 1)] };
        let now = at_drive(report(2, vec![bulk]), 1, ns, 0);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        assert!((explained[0].in_flight - 1.3).abs() < 0.1, "{explained:?}");
    }

    #[test]
    fn estimated_waits_are_no_time_at_the_drive() {
        let mut idle = held(group("idle", 1, 20, 0), &[(WaitReason::Priority, 64 * MS)]);
        idle.volumes[0].ops[0].total.sum_ns = 21 * MS;
        (idle.volumes[0].waiting, idle.volumes[0].waiting_ns) = (32, 64 * MS);
        // The group's I/Os were held for 64 of 85 ms, but the drive was busy for 1 ms only.
        let now = at_drive(report(1, vec![idle]), 20, MS, 64 * MS);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        assert_eq!(found(&explained[0]), [("priority", 98.5), ("drive", 1.5)]);
    }

    #[test]
    fn ios_that_a_drive_still_serves_leave_the_others_whole() {
        let small = group("small", 100, 100, 0);
        let mut large = held(group("large", 100, 100, 0), &[(WaitReason::Weight, 90_000 * MS)]);
        (large.volumes[0].ops[0].bytes, large.volumes[0].ops[0].total.sum_ns) =
            (100 << 16, 100_000 * MS);
        let groups = vec![group("tiny", 100, 1, 0), small, large];
        let now = at_drive(report(1, groups), 200, 10_101 * MS, 90_000 * MS);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        let large = explained.iter().find(|one| one.group == "large").unwrap();
        assert_eq!(found(large), [("weight", 90.0), ("drive", 10.0)]);
    }

    #[test]
    fn discards_at_a_drive_are_no_parts_of_reads() {
        let mut small = held(group("small", 100, 100, 0), &[(WaitReason::Weight, 50 * MS)]);
        small.volumes[0].ops[0].total.sum_ns = 100 * MS;
        let mut now = at_drive(report(1, vec![small]), 100, 50 * MS, 50 * MS);
        let discards = OpCounts { op: "discard".into(), ios: 900, ..OpCounts::default() };
        now.drives[0].ops.push(discards);
        let explained = explain(&ObservedInterval::new("v", &now, &report(0, Vec::new())));
        assert_eq!(found(&explained[0]), [("weight", 50.0), ("drive", 50.0)]);
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
        assert!(explained[0].mean_ms > 2.0, "{explained:?}");
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
