//! Warnings about group settings that have no effect: latency targets that a drive cannot keep, and
//! keys that a scheduler or a cache ignores.
//!
//! The texts of all these warnings are here. So `serve --check`, `ctl set` and a running daemon use
//! the same words. All functions are pure.

use std::time::Duration;

use millrace::{ExportDirectory, GroupConfig, LatencyTarget, SchedulerKind};
use millrace_block::Snapshot;
use millrace_drives::{UsualTimes, Words as _};
use millrace_machine::nanoseconds;

use super::target_text;
use crate::config::words;

/// Threshold for the mean number of I/Os that a group has in a drive. From this number on, the I/Os
/// mainly wait for each other.
const MANY: f64 = 2.0;

/// Rounds a time up to two significant digits, because more digits would suggest a precision that
/// was not measured.
fn rounded(ns: u64) -> u64 {
    let digits = ns.checked_ilog10().map_or(0, |digits| digits.saturating_sub(1));
    let unit = 10u64.pow(digits);
    ns.div_ceil(unit) * unit
}

fn about(ns: u64) -> String {
    words::duration_text(Duration::from_nanos(rounded(ns)))
}

pub fn figure_ns(target: LatencyTarget, times: &Snapshot) -> u64 {
    match target {
        LatencyTarget::Mean(_) => times.mean_ns(),
        LatencyTarget::Percentile(of, _) => times.quantile_ns(f64::from(of) / 10_000.0),
    }
}

fn with_ns(target: LatencyTarget, ns: u64) -> LatencyTarget {
    let latency = Duration::from_nanos(ns);
    match target {
        LatencyTarget::Mean(_) => LatencyTarget::Mean(latency),
        LatencyTarget::Percentile(of, _) => LatencyTarget::Percentile(of, latency),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetQuery<'a> {
    pub group: &'a str,
    pub target: LatencyTarget,
    pub drive: &'a str,
    pub volume: &'a str,
}

impl TargetQuery<'_> {
    fn begin(&self) -> String {
        format!("group {}: latency-target {}", self.group, target_text(self.target))
    }

    fn target_ns(&self) -> u64 {
        nanoseconds(self.target.latency())
    }

    fn drive(&self) -> String {
        format!("drive {} of volume {}", self.drive, self.volume)
    }

    /// Returns advice for a drive with the service time `takes_ns`: a higher target or a faster
    /// drive.
    fn remedy(&self, takes_ns: u64) -> String {
        // The advised target is 1.5 times the service time. The extra half allows for the time that
        // an I/O spends outside the drive.
        let word = target_text(with_ns(self.target, rounded(takes_ns + takes_ns / 2)));
        format!("set latency-target to {word} or more, or give the group a faster drive")
    }

    pub fn by_scheduler(&self, scheduler: SchedulerKind) -> Option<String> {
        ignores(scheduler, "latency-target").then(|| {
            format!(
                "{}: nothing keeps it at {}, whose scheduler is {}; set scheduler = \"latency\" \
                 there, or `millrace ctl set {} scheduler=latency`",
                self.begin(),
                self.drive(),
                scheduler.word(),
                self.volume
            )
        })
    }

    pub fn by_model(&self, usual: UsualTimes) -> Option<String> {
        let longest_ns = nanoseconds(usual.read.max(usual.write));
        (longest_ns > self.target_ns()).then(|| {
            format!(
                "{}: {} itself takes {} for a read of 4 KiB and {} for a write, by its model, \
                 which no scheduler can shorten; {}",
                self.begin(),
                self.drive(),
                about(nanoseconds(usual.read)),
                about(nanoseconds(usual.write)),
                self.remedy(longest_ns)
            )
        })
    }

    /// Returns a warning if a drive's service time exceeds the target. Compares the mean, or the
    /// median for a percentile target. The warning's advice depends on the fastest tenth of the
    /// I/Os, because slower I/Os may have waited inside the drive.
    pub fn so_far(&self, times: &Snapshot) -> Option<String> {
        let drive = self.drive();
        let (took_ns, took) = match self.target {
            LatencyTarget::Mean(_) => {
                let ns = times.mean_ns();
                (ns, format!("I/Os at {drive} took {} on average", about(ns)))
            }
            LatencyTarget::Percentile(..) => {
                let ns = times.quantile_ns(0.5);
                (ns, format!("half of the I/Os at {drive} took {} or more", about(ns)))
            }
        };
        let fastest_ns = times.quantile_ns(0.1);
        (took_ns > self.target_ns()).then(|| {
            let advice = match fastest_ns > self.target_ns() {
                true => {
                    format!("A scheduler cannot make the drive faster; {}", self.remedy(fastest_ns))
                }
                false => "The drive can keep the target if less is at it, which the scheduler \
                          latency sees to; the log says so if the target is missed all the same"
                    .to_owned(),
            };
            format!(
                "{}: {took} since the drive was opened; the fastest 10 % of the I/Os took {} or \
                 less. {advice}",
                self.begin(),
                about(fastest_ns)
            )
        })
    }

    /// Reports that a group misses its target because the drive takes too long for the group's
    /// I/Os. `own` and `others` are the mean numbers of I/Os of this group and of other groups in
    /// the drive. If `others` is below one, no scheduler can improve the latency.
    pub fn missed(&self, times: &Snapshot, (own, others): (f64, f64)) -> String {
        let (figure_ns, usual_ns) = (figure_ns(self.target, times), times.quantile_ns(0.5));
        let takes = format!(
            "{} is missed: {} itself takes {} to serve the I/Os of this group (median {})",
            self.begin(),
            self.drive(),
            target_text(with_ns(self.target, rounded(figure_ns))),
            about(usual_ns),
        );
        if others >= 1.0 {
            return format!(
                "{takes}, and has {others:.1} I/Os of other groups at a time; limit those groups \
                 (`bandwidth`), or loosen their targets if they have any"
            );
        }
        if own >= MANY {
            return format!(
                "{takes}, and has {own:.0} of them at a time, which wait for each other there; let \
                 its clients send fewer at a time, or limit the group (`bandwidth`)"
            );
        }
        format!("{takes}, which no scheduler can shorten; {}", self.remedy(figure_ns))
    }

    pub fn kept(&self) -> String {
        format!("{} is kept by {} again", self.begin(), self.drive())
    }
}

/// Lists the keys set for a group that control how groups share a drive (weight, priority and
/// latency target). Lists only keys that `wanted` accepts.
fn shared_by(config: &GroupConfig, wanted: impl Fn(&str) -> bool) -> Option<String> {
    let plain = GroupConfig::new("");
    let keys = [
        ("weight", config.weight != plain.weight),
        ("priority", config.priority != plain.priority),
        ("latency-target", config.latency_target.is_some()),
    ];
    let set = keys.into_iter().filter_map(|(key, is_set)| (is_set && wanted(key)).then_some(key));
    let keys: Vec<&str> = set.collect();
    match keys.split_last()? {
        (last, []) => Some((*last).to_owned()),
        (last, others) => Some(format!("{} and {last}", others.join(", "))),
    }
}

/// Returns true if the scheduler ignores a key of a group: `weight`, `priority` or
/// `latency-target`.
fn ignores(scheduler: SchedulerKind, key: &str) -> bool {
    match scheduler {
        SchedulerKind::None => true,
        SchedulerKind::Deadline => key != "priority",
        SchedulerKind::Fair => key == "latency-target",
        SchedulerKind::Latency => false,
    }
}

/// Returns a scheduler that heeds all settings of the group.
fn heeding(config: &GroupConfig) -> SchedulerKind {
    match config.latency_target {
        Some(_) => SchedulerKind::Latency,
        None => SchedulerKind::Fair,
    }
}

/// A group and a drive that it uses.
pub struct ShareQuery<'a> {
    pub config: &'a GroupConfig,
    pub drive: &'a str,
    pub volume: &'a str,
}

impl ShareQuery<'_> {
    /// Warns that the drive's scheduler ignores the weight or priority of the group. Only keys that
    /// `wanted` accepts are named.
    pub fn by_scheduler(
        &self,
        scheduler: SchedulerKind,
        wanted: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let ShareQuery { config, drive, volume } = self;
        // Latency targets are left out here, because `TargetQuery::by_scheduler` warns if the
        // scheduler ignores one.
        let is_share = |key: &str| key != "latency-target" && ignores(scheduler, key);
        let keys = shared_by(config, |key| is_share(key) && wanted(key))?;
        let (heeds, name, scheduler) = (heeding(config).word(), &config.name, scheduler.word());
        Some(format!(
            "group {name}: drive {drive} of volume {volume} ignores its {keys}, because the drive's \
             scheduler is {scheduler}; set scheduler = \"{heeds}\" there, or `millrace ctl set \
             {volume} scheduler={heeds}`"
        ))
    }
}

/// Warns that keys of a group have no effect on its child groups, which do not inherit them. Only
/// keys that `wanted` accepts are named.
pub fn by_children(
    config: &GroupConfig,
    children: &[String],
    wanted: impl Fn(&str) -> bool,
) -> Option<String> {
    let keys = shared_by(config, |key| key != "weight" && wanted(key))?;
    let (name, children) = (&config.name, children.join(", "));
    (!children.is_empty()).then(|| {
        format!(
            "group {name}: its child groups ({children}) ignore the {keys} of this group; set what \
             they need in each of them"
        )
    })
}

/// Warns that keys of a group have no effect on a cached volume, because schedulers cannot
/// distinguish groups there. Only keys that `wanted` accepts are named.
pub fn by_cache(
    config: &GroupConfig,
    volume: &str,
    wanted: impl Fn(&str) -> bool,
) -> Option<String> {
    let keys = shared_by(config, wanted)?;
    Some(format!(
        "group {}: volume {volume} ignores its {keys}: what the cache reads from the drives and \
         writes to them is in no group; limits (`iops`, `bandwidth`) hold. Use limits, or remove \
         [volume.cache]",
        config.name,
    ))
}

/// Returns a warning if some keys of a group have no effect on the files of a directory export.
/// Either the files are cached, or the scheduler of the files ignores these keys.
pub fn by_directory(
    config: &GroupConfig,
    (export, directory): (&str, &ExportDirectory),
) -> Option<String> {
    let scheduler = directory.options.scheduler;
    let is_cached = directory.cache.is_some();
    let keys = shared_by(config, |key| is_cached || ignores(scheduler, key))?;
    let why = match directory.cache {
        Some(_) => "they are cached; use limits, or remove cache from `files` of".to_owned(),
        None => format!(
            "their scheduler is {}; set scheduler = \"{}\" in `files` of",
            scheduler.word(),
            heeding(config).word()
        ),
    };
    let (name, path) = (&config.name, directory.path.display());
    Some(format!("group {name}: files of {path} ignore its {keys}, because {why} export {export}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: TargetQuery<'_> = TargetQuery {
        group: "gold",
        target: LatencyTarget::Percentile(9_900, Duration::from_micros(50)),
        drive: "d0",
        volume: "fast",
    };

    fn times(ns: u64) -> Snapshot {
        let mut times = Snapshot::default();
        times.add(ns, 97);
        times.add(ns * 4, 3);
        times
    }

    #[test]
    fn model_that_takes_longer_than_target_is_said_with_its_times() {
        let usual =
            UsualTimes { read: Duration::from_nanos(97_800), write: Duration::from_micros(26) };
        let said = "group gold: latency-target p99 50us: drive d0 of volume fast itself takes 98us \
                    for a read of 4 KiB and 26us for a write, by its model, which no scheduler can \
                    shorten; set latency-target to p99 150us or more, or give the group a faster \
                    drive";
        assert_eq!(ASKED.by_model(usual).as_deref(), Some(said));
        assert_eq!(ASKED.by_model(UsualTimes { read: Duration::from_micros(50), ..usual }), None);
    }

    #[test]
    fn scheduler_that_keeps_no_targets_is_said_with_one_that_does() {
        let said = "group gold: latency-target p99 50us: nothing keeps it at drive d0 of volume \
                    fast, whose scheduler is none; set scheduler = \"latency\" there, or \
                    `millrace ctl set fast scheduler=latency`";
        assert_eq!(ASKED.by_scheduler(SchedulerKind::None).as_deref(), Some(said));
        assert_eq!(ASKED.by_scheduler(SchedulerKind::Latency), None);
    }

    #[test]
    fn what_was_measured_is_judged_by_the_median_or_the_mean() {
        let said = ASKED.so_far(&times(60_000)).unwrap();
        let whole = "group gold: latency-target p99 50us: half of the I/Os at drive d0 of volume fast \
                     took 60us or more since the drive was opened; the fastest 10 % of the I/Os \
                     took 60us or less. A scheduler cannot make the drive faster; set \
                     latency-target to p99 90us or more, or give the group a faster drive";
        assert_eq!(said, whole);
        assert!(ASKED.so_far(&times(40_000)).is_none(), "p99 is 160 us, the median is not");
        let mean = TargetQuery { target: LatencyTarget::Mean(Duration::from_micros(50)), ..ASKED };
        let said = mean.so_far(&times(60_000)).unwrap();
        let part = ": I/Os at drive d0 of volume fast took 66us on average since the drive";
        assert!(said.contains(part), "{said}");
        assert!(said.contains("set latency-target to mean 90us or more"), "{said}");
        assert!(mean.so_far(&times(40_000)).is_none());
    }

    #[test]
    fn drive_slow_only_under_load_gets_no_advice_on_its_target() {
        let mut loaded = Snapshot::default();
        loaded.add(40_000, 20);
        loaded.add(1_700_000, 80);
        let said = ASKED.so_far(&loaded).unwrap();
        let part = " took 1700us or more since the drive was opened; the fastest 10 % of the I/Os \
                    took 39us or less. The drive can keep the target if less is at it";
        assert!(said.contains(part), "{said}");
        assert!(!said.contains("set latency-target"), "{said}");
    }

    #[test]
    fn missed_target_is_said_with_drives_figure_of_same_kind() {
        let said = ASKED.missed(&times(60_000), (1.0, 0.9));
        let start = "group gold: latency-target p99 50us is missed: drive d0 of volume fast itself \
                     takes p99 240us to serve the I/Os of this group (median 60us), which no";
        assert!(said.starts_with(start), "{said}");
        assert!(said.contains("set latency-target to p99 360us or more"), "{said}");
        let mean = TargetQuery { target: LatencyTarget::Mean(Duration::from_micros(50)), ..ASKED };
        let said = mean.missed(&times(60_000), (1.0, 7.0));
        let part = "takes mean 66us to serve the I/Os of this group (median 60us), and has \
                    7.0 I/Os of other groups at a time; limit those groups (`bandwidth`), or";
        assert!(said.contains(part) && !said.contains("no scheduler can shorten"), "{said}");
        let said = ASKED.missed(&times(60_000), (15.8, 0.0));
        let part = ", and has 16 of them at a time, which wait for each other there; let its";
        assert!(said.contains(part) && !said.contains("no scheduler"), "{said}");
    }

    #[test]
    fn times_have_two_digits_and_are_rounded_up() {
        let found = [0, 7, 99, 101, 97_801, 1_000_001].map(rounded);
        assert_eq!(found, [0, 7, 99, 110, 98_000, 1_100_000]);
        assert_eq!(about(97_801), "98us");
    }
}
