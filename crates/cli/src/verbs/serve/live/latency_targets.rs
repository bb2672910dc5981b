//! Reports latency targets that cannot be kept, and keys that a scheduler ignores.
//!
//! Targets and keys are checked when a group or a scheduler is set. A scheduler can shorten only
//! the wait before dispatch to the drive. So the time that the group's I/Os spend in the drive is
//! compared with the target. A target counts as impossible to keep if the drive is slower for
//! several seconds in a row. The main thread checks once per second, and only if a group has a
//! target. Each finding is logged once, and reported to clients until the target is met or changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace::{GroupConfig, LatencyTarget, SchedulerKind, ServeConfig, ServedGroups};
use millrace_block::{Disk, GroupId, Op, Snapshot, Volume};
use millrace_drives::{UsualTimes, usual_times};
use millrace_machine::{Native, lock_unpoisoned, nanoseconds};

use crate::config::group::members::{UsedVolume, children};
use crate::config::group::targets::{ShareQuery, TargetQuery, by_cache};

const MISSED_MIN: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_millis(900);
/// Minimum number of I/Os in a time window. A window with fewer I/Os is extended.
const LEAST: u64 = 10;
/// Minimum number of I/Os that must be slower than a percentile. If a time window has too few I/Os,
/// a lower percentile is compared with the target instead.
const LEAST_ABOVE: f64 = 2.0;
/// Minimum number of measured I/Os of a drive. With fewer I/Os, the times of the drive's model are
/// used instead of the measured times.
const KNOWN_IOS: u64 = 100;
/// Maximum number of log lines per check, because one configuration may be wrong for a thousand
/// clients at once.
const LINES: usize = 3;

pub struct LatencyTargets {
    usual: BTreeMap<String, UsualTimes>,
    /// For each export, the name of its group and the name of its volume.
    users: Vec<(String, String)>,
    drive_targets: Mutex<BTreeMap<(GroupId, usize, usize), DriveTarget>>,
}

struct DriveTarget {
    target: LatencyTarget,
    /// Service times of the group's I/Os in the drive up to `since`, the start of the current time
    /// window. `all_before_ns` is the total service time of all groups' I/Os up to `since`.
    before: Snapshot,
    all_before_ns: u64,
    since: Instant,
    /// Start of the first of the consecutive windows in which the target was missed.
    missed_since: Option<Instant>,
    says: Option<String>,
}

#[derive(Debug, PartialEq)]
enum TargetChange {
    None,
    /// The target was missed for `MISSED_MIN` or longer. The `Snapshot` holds the service times of
    /// the group's I/Os in the last time window. The tuple holds two mean numbers of I/Os in the
    /// drive at a time: the group's I/Os, and the I/Os of all other groups.
    Missed(Snapshot, (f64, f64)),
    Kept,
}

impl DriveTarget {
    fn new(
        target: LatencyTarget,
        (before, all_before_ns): (Snapshot, u64),
        since: Instant,
    ) -> DriveTarget {
        DriveTarget { target, before, all_before_ns, since, missed_since: None, says: None }
    }

    /// Compares the service times in the time window that ends at `now` with the target, and begins
    /// the next window. `times` are the service times of all I/Os of the group so far; `all_ns` is
    /// the total service time of all groups' I/Os so far. Does nothing if the window is too short
    /// or has too few I/Os.
    fn look(&mut self, now: Instant, times: &Snapshot, all_ns: u64) -> TargetChange {
        let (window, elapsed) = (times.since(&self.before), now.duration_since(self.since));
        if elapsed < WINDOW || window.count() < LEAST {
            return TargetChange::None;
        }
        let from = std::mem::replace(&mut self.since, now);
        self.before = times.clone();
        let all_ns = all_ns - std::mem::replace(&mut self.all_before_ns, all_ns);
        // Little's law: the mean number of I/Os in the drive is their total time divided by the
        // elapsed time.
        let at_a_time = |ns: u64| ns as f64 / elapsed.as_nanos() as f64;
        let others = at_a_time(all_ns.saturating_sub(window.sum_ns()));
        let there = (at_a_time(window.sum_ns()), others);
        let figure_ns = judged_ns(self.target, &window);
        // A percentile is the middle of a histogram bucket, so the true value may be 1/16 lower.
        // The target is missed only if that lower value exceeds the target, too.
        if figure_ns - figure_ns / 16 <= nanoseconds(self.target.latency()) {
            self.missed_since = None;
            return if self.says.is_some() { TargetChange::Kept } else { TargetChange::None };
        }
        let missed_since = *self.missed_since.get_or_insert(from);
        match self.says.is_none() && now.duration_since(missed_since) >= MISSED_MIN {
            true => TargetChange::Missed(window, there),
            false => TargetChange::None,
        }
    }
}

/// Returns the mean or percentile to compare with a target. If there are few I/Os, a lower
/// percentile is compared, so that a single slow I/O does not count as a missed target.
fn judged_ns(target: LatencyTarget, window: &Snapshot) -> u64 {
    match target {
        LatencyTarget::Mean(_) => window.mean_ns(),
        LatencyTarget::Percentile(of, _) => {
            let known = 1.0 - LEAST_ABOVE / window.count().max(LEAST) as f64;
            window.quantile_ns(known.min(f64::from(of) / 10_000.0))
        }
    }
}

impl LatencyTargets {
    pub fn new(config: &ServeConfig) -> LatencyTargets {
        let usual = config.drives();
        let usual = usual.filter_map(|one| Some((one.name.clone(), usual_times(&one.spec)?)));
        let users = config.exports.iter();
        LatencyTargets {
            usual: usual.collect(),
            users: users.map(|one| (one.group_name().to_owned(), one.volume.clone())).collect(),
            drive_targets: Mutex::default(),
        }
    }

    /// Returns warnings about the keys of a group that were just set, that is, for which `sets`
    /// returns true. A warning names a key that a cache or scheduler ignores, or a latency target
    /// that a drive cannot keep. The drive's measured or modelled service times are compared with
    /// the target.
    pub fn at_once(
        &self,
        groups: &ServedGroups,
        volumes: &[Arc<Volume<Native>>],
        (config, sets): (&GroupConfig, &dyn Fn(&str) -> bool),
    ) -> Vec<String> {
        let (group, children) = (config.name.as_str(), children(&groups.list(), &config.name));
        let is_client = |user: &str| user.strip_prefix(group).is_some_and(|n| n.starts_with('/'));
        let used_by = |volume: &Volume<Native>| {
            let users = self.users_of(groups, volume);
            let directly = users.iter().any(|user| user == group || is_client(user));
            let uses = directly || users.iter().any(|user| children.contains(user));
            uses.then_some(directly)
        };
        let mut said = Vec::new();
        for volume in volumes {
            let Some(directly) = used_by(volume) else { continue };
            let config = &UsedVolume { volume, directly }.settings(config);
            if volume.below().is_some() {
                said.extend(by_cache(config, volume.name(), sets));
                continue;
            }
            let scheduler_of = |disk: &Arc<Disk<Native>>| disk.scheduler().unwrap_or_default();
            let ignored = |disk: &Arc<Disk<Native>>| {
                let share = ShareQuery { config, drive: disk.name(), volume: volume.name() };
                share.by_scheduler(scheduler_of(disk), sets)
            };
            said.extend(volume.drives().iter().find_map(ignored));
            let target = config.latency_target.filter(|_| sets("latency-target"));
            let of_drive = |disk: &Arc<Disk<Native>>| {
                let (target, drive, volume) = (target?, disk.name(), volume.name());
                let asked = TargetQuery { group, target, drive, volume };
                if let Some(text) = asked.by_scheduler(scheduler_of(disk)) {
                    return Some(text);
                }
                let times = service_of(disk);
                match times.count() >= KNOWN_IOS {
                    true => asked.so_far(&times),
                    false => self.usual.get(drive).and_then(|usual| asked.by_model(*usual)),
                }
            };
            // All drives of a stripe are alike, so one warning is enough.
            said.extend(volume.drives().iter().find_map(of_drive));
        }
        said
    }

    /// Returns the names of the groups that use a volume: groups of the volume's exports, and
    /// groups that have done I/O on the volume.
    fn users_of(&self, groups: &ServedGroups, volume: &Volume<Native>) -> Vec<String> {
        let named = self.users.iter().filter(|(_, of)| of == volume.name());
        let counted = volume.group_stats().into_iter();
        let counted = counted.filter_map(|(group, _)| groups.table().config(group));
        named.map(|(group, _)| group.clone()).chain(counted.map(|one| one.name)).collect()
    }

    pub fn look(&self, groups: &ServedGroups, volumes: &[Arc<Volume<Native>>], now: Instant) {
        let targets = targets(groups);
        let mut drive_targets = self.drive_targets();
        drive_targets.retain(|(group, ..), one| {
            targets.get(group).is_some_and(|(_, target)| *target == one.target)
        });
        if targets.is_empty() {
            return;
        }
        let (mut lines, mut more) = (0, 0);
        for (volume, at, drive, service) in drives(volumes) {
            let disk = &volume.drives()[drive];
            if disk.scheduler() != Some(SchedulerKind::Latency) {
                drive_targets.retain(|key, _| (key.1, key.2) != (at, drive));
                continue;
            }
            let mut all = None;
            for (group, times) in service {
                let Some((name, target)) = targets.get(&group) else { continue };
                let (target, volume) = (*target, volume.name());
                let asked = TargetQuery { group: name, target, drive: disk.name(), volume };
                let one = drive_targets.entry((group, at, drive));
                let all = *all.get_or_insert_with(|| service_of(disk).sum_ns());
                let one =
                    one.or_insert_with(|| DriveTarget::new(target, (times.clone(), all), now));
                let text = match one.look(now, &times, all) {
                    TargetChange::None => continue,
                    TargetChange::Kept => {
                        one.says = None;
                        tracing::info!("{}", asked.kept());
                        continue;
                    }
                    TargetChange::Missed(window, there) => asked.missed(&window, there),
                };
                match lines < LINES {
                    true => tracing::warn!(group = name, drive = disk.name(), "{text}"),
                    false => more += 1,
                }
                lines += 1;
                one.says = Some(text);
            }
        }
        if more > 0 {
            tracing::warn!("{more} more latency targets are missed; see `millrace ctl get groups`");
        }
    }

    pub fn said(&self, groups: &ServedGroups) -> BTreeMap<String, Vec<String>> {
        let mut said = BTreeMap::<String, Vec<String>>::new();
        let drive_targets = self.drive_targets();
        if drive_targets.values().all(|one| one.says.is_none()) {
            return said;
        }
        let targets = targets(groups);
        for ((group, ..), one) in drive_targets.iter() {
            // A missed target is not reported if the target was changed after the last check.
            if let (Some((name, target)), Some(says)) = (targets.get(group), &one.says)
                && *target == one.target
            {
                said.entry(name.clone()).or_default().push(says.clone());
            }
        }
        said
    }

    fn drive_targets(&self) -> MutexGuard<'_, BTreeMap<(GroupId, usize, usize), DriveTarget>> {
        lock_unpoisoned(&self.drive_targets)
    }
}

fn targets(groups: &ServedGroups) -> BTreeMap<GroupId, (String, LatencyTarget)> {
    let list = groups.table().list().into_iter();
    list.filter_map(|(id, one)| Some((id, (one.name, one.latency_target?)))).collect()
}

fn drives(
    volumes: &[Arc<Volume<Native>>],
) -> impl Iterator<Item = (&Volume<Native>, usize, usize, BTreeMap<GroupId, Snapshot>)> {
    volumes.iter().enumerate().flat_map(|(at, volume)| {
        let drives = volume.service_by_group().into_iter().enumerate();
        drives.map(move |(drive, service)| (&**volume, at, drive, service))
    })
}

fn service_of(disk: &Disk<Native>) -> Snapshot {
    let (stats, mut times) = (disk.stats(), Snapshot::default());
    let ops = Op::ALL.into_iter().zip(&stats.ops);
    ops.filter(|(op, _)| matches!(op, Op::Read | Op::Write))
        .for_each(|(_, op)| times.merge(&op.service));
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: LatencyTarget = LatencyTarget::Percentile(9_900, Duration::from_micros(50));
    const SECOND: Duration = Duration::from_secs(1);

    /// Looks once per second, after so many I/Os that took so long at the drive.
    fn looks(ios: &[(u64, u64)]) -> Vec<&'static str> {
        let start = Instant::now();
        let mut one = DriveTarget::new(TARGET, (Snapshot::default(), 0), start);
        let (mut times, mut found) = (Snapshot::default(), Vec::new());
        for (second, (count, ns)) in (1..).zip(ios) {
            times.add(*ns, *count);
            // Others have two I/Os there at a time.
            let all_ns = times.sum_ns() + second * 2_000_000_000;
            found.push(match one.look(start + SECOND * second as u32, &times, all_ns) {
                TargetChange::None => "-",
                TargetChange::Missed(_, (_, others)) => {
                    assert!((1.9..2.1).contains(&others), "{others}");
                    one.says = Some(String::new());
                    "missed"
                }
                TargetChange::Kept => {
                    one.says = None;
                    "kept"
                }
            });
        }
        found
    }

    #[test]
    fn target_missed_for_three_seconds_is_reported_and_taken_back() {
        let (slow, fast) = ((500, 100_000), (500, 40_000));
        let found = looks(&[slow, slow, slow, slow, slow, fast, fast, slow, slow, slow]);
        let expected = ["-", "-", "missed", "-", "-", "kept", "-", "-", "-", "missed"];
        assert_eq!(found, expected);
        // Now and then is not on end.
        assert_eq!(looks(&[slow, slow, fast, slow, slow, fast]), ["-"; 6]);
    }

    #[test]
    fn few_ios_are_judged_over_a_longer_time_and_none_say_nothing() {
        let few = (2, 100_000);
        // Windows of five seconds.
        assert_eq!(looks(&[few; 6]), ["-", "-", "-", "-", "missed", "-"]);
        // Windows of two seconds.
        assert_eq!(looks(&[(5, 100_000); 4]), ["-", "-", "-", "missed"]);
        assert_eq!(looks(&[(0, 1), (0, 1), (0, 1), (0, 1), (0, 1)]), ["-"; 5]);
        // Above it by less than what is known of a time.
        assert_eq!(looks(&[(500, 51_000); 5]), ["-"; 5]);
    }

    #[test]
    fn a_percentile_needs_two_ios_above_it() {
        let figure = |slow| {
            let mut window = Snapshot::default();
            window.add(40_000, 10 - slow);
            window.add(900_000, slow);
            judged_ns(TARGET, &window)
        };
        assert!(figure(1) < 50_000 && figure(3) > 500_000, "{} {}", figure(1), figure(3));
    }
}
