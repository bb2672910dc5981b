//! `millrace ctl why`: explains what I/Os of each group on a volume waited for in the last seconds.
//!
//! The verb compares two reports of the daemon's counters. causes.rs does the arithmetic; this file
//! prints a sentence about the group whose I/Os waited longest, a table of all groups, and a line
//! for each other finding, such as a slow drive (observations.rs).

mod causes;
mod interval;
mod observations;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow};
use millrace_console::{Side, TextGrid, counted, visible};
use serde::Serialize;

use super::Daemon;
use crate::verbs::stat::groups::{self, GroupRow, time};
use crate::verbs::stat::interval;
use crate::views::StatsQuery;
use crate::views::report::Report;
use crate::views::requests::STATS;
use crate::views::settings::GroupState;
use causes::{DRIVE, GroupExplanation, LatencyCause};
use interval::ObservedInterval;

const EXAMPLES: &str = "\
Examples:
  millrace ctl why vol0        what I/Os of vol0 wait for, over the next 2 s
  millrace ctl why vol0 10     over 10 s
  millrace ctl why web-disk    what I/Os of the volume behind the export web-disk wait for
  millrace ctl why vol0 --json

An I/O's time is measured from submission to completion. It is divided by what the I/O waits for:
  limit           a limit of its group, or of the group's parent
  weight          its group had its share, and other groups were served
  latency-target  another group's latency target
  depth           the drive had enough I/Os to keep it busy
  no-tag          no tag was free
  drive-busy      the drive accepted no more requests
  order           I/Os of its own group, or of nearer sectors, went first
  priority        I/Os of a higher priority went first
  queue           it was in a queue of the block layer, for none of these reasons
  back-pressure   before that, it waited in its socket or ring, because the block layer accepted \
  no more
  flush           it was a flush: that waits for the flush before it, and for the drives
  drive           it was at the drive
I/Os that still wait are counted with the time that they have waited so far. Time in limits and \
schedulers is measured per group. Time in drives and their queues is measured per drive, so each \
group is shown with the average of the drive's I/Os. Of the requests in a socket only the next \
one is known, so the true back pressure may be higher.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct WhyArgs {
    /// Name of a volume, or of an export of it
    name: String,
    /// Time to observe, such as 2 (seconds) or 500ms
    #[arg(value_parser = interval, default_value = "2")]
    seconds: Duration,
}

#[derive(Debug, Serialize)]
struct VolumeExplanation {
    volume: String,
    seconds: f64,
    says: String,
    groups: Vec<GroupExplanation>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub fn run(daemon: &Daemon, args: &WhyArgs) -> Result<ExitCode> {
    let mut client = daemon.connect.client()?;
    let before = client.ask(&STATS, &StatsQuery::ALL)?;
    let volume = volume_of(&before, &args.name)?;
    std::thread::sleep(args.seconds);
    let now = client.ask(&STATS, &StatsQuery::ALL)?;
    let mut why = why(&ObservedInterval::new(&volume, &now, &before));
    if volume != args.name {
        let (export, volume) = (visible(&args.name), visible(&volume));
        why.says = format!("Export {export} belongs to volume {volume}. {}", why.says);
    }
    daemon.print(&why, || text(&why))
}

fn volume_of(report: &Report, name: &str) -> Result<String> {
    match report.exports.iter().find(|export| export.name == name) {
        Some(export) if report.volumes.iter().all(|volume| volume.name != name) => {
            Ok(export.volume.clone())
        }
        None if !report.exports.is_empty() => {
            let exports: Vec<_> = report.exports.iter().map(|one| visible(&one.name)).collect();
            let volume = super::get::volume(report, name).map(|volume| volume.name.clone());
            volume.map_err(|error| anyhow!("{error}; exports: {}", exports.join(", ")))
        }
        _ => super::get::volume(report, name).map(|volume| volume.name.clone()),
    }
}

fn why(interval: &ObservedInterval<'_>) -> VolumeExplanation {
    let ObservedInterval { volume, now, before, seconds } = *interval;
    let groups = causes::explain(interval);
    let rows = groups::rows(now, Some(before));
    let says = match groups.first() {
        None => nothing(interval),
        Some(first) if first.writes && held(first).is_none() && interval.is_cache_full() => {
            let (name, mean) = (visible(&first.group), time(first.mean_ms));
            format!("{name} waits for room in the volume's cache: its I/Os take {mean} each.")
        }
        Some(first) => {
            let row = rows.iter().find(|row| row.name == first.group);
            sentence((first, &groups), row, now)
        }
    };
    let is_here = |group: &&GroupState| groups.iter().any(|one| one.group == group.name);
    let warned = now.groups.iter().filter(is_here);
    let warnings = warned.flat_map(|group| group.warnings.clone());
    let warnings = warnings.chain(observations::observations(interval)).collect();
    VolumeExplanation { volume: volume.to_owned(), seconds, says, groups, warnings }
}

/// Returns a text saying that no I/O completed. Names the group that must wait longest for its
/// limits, and the drives that have I/O in flight.
fn nothing(interval: &ObservedInterval<'_>) -> String {
    let ObservedInterval { volume, now, seconds, .. } = *interval;
    let waits = now.group_counts.iter().max_by_key(|group| group.booked_ns);
    let waits = waits.filter(|group| group.booked_ns > 0).map(|group| {
        let ahead = time(group.booked_ns as f64 / 1e6);
        format!("; the limits of {} are used up for the next {ahead}", visible(&group.name))
    });
    let of_volume = now.drives.iter().filter(|drive| drive.volume == volume && drive.in_flight > 0);
    let silent = of_volume.map(|drive| {
        let ios = counted(drive.in_flight as usize, "I/O");
        format!("; drive {} has {ios} in flight", visible(&drive.name))
    });
    let rest = waits.into_iter().chain(silent).collect::<String>();
    format!("No I/O of {} completed in {seconds:.1} s{rest}.", visible(volume))
}

/// Minimum share of a group in the cost of all I/Os, in percent. The explanation of a latency names
/// the group with the largest share if that share is not below this minimum.
const MUCH_PERCENT: f64 = 20.0;

/// Threshold of a group's mean number of I/Os in flight. Below this value, the explanation says
/// that the group's client pauses.
const IDLE: f64 = 0.8;

fn accepted(now: &Report) -> &'static str {
    match now.server.stats.memory_waiting {
        0 => "the block layer accepts",
        _ => "the block layer or memory-max allows",
    }
}

/// Returns the main cause of a group's latency, unless its I/Os mainly spend their time in drives.
fn held(group: &GroupExplanation) -> Option<&LatencyCause> {
    group.causes.first().filter(|cause| cause.reason != DRIVE)
}

fn sentence(
    (group, all): (&GroupExplanation, &[GroupExplanation]),
    row: Option<&GroupRow>,
    now: &Report,
) -> String {
    let name = visible(&group.group);
    let main = group.causes.first();
    let Some(cause) = held(group) else {
        if group.ios == 0.0 {
            return format!("{name} waits for the drives: {}.", so_far(group));
        }
        let drive =
            main.map_or_else(|| "all".to_owned(), |cause| format!("{:.0} %", cause.percent));
        let most = all.iter().max_by(|a, b| a.cost_percent.total_cmp(&b.cost_percent));
        let most = most.filter(|most| all.len() > 1 && most.cost_percent >= MUCH_PERCENT);
        let beside = most.map_or_else(String::new, |other| {
            let (name, percent) = (visible(&other.group), other.cost_percent);
            format!(", where {percent:.0} % of the work was for {name}")
        });
        let pauses = pauses(group).unwrap_or_default();
        return format!(
            "Little holds I/Os back: those of {name} take {} each, and are at the drives {drive} of \
             that time{beside}.{pauses}",
            time(group.mean_ms)
        );
    };
    let share = match group.ios > 0.0 {
        true => format!("{:.0} % of the time of its I/Os", cause.percent),
        false => so_far(group),
    };
    match cause.reason {
        "limit" => {
            let limits = group.limits.join(", ");
            format!("{name} is slow because its limit ({}) delays it: {share}.", visible(&limits))
        }
        "weight" => {
            let shares = row.map_or_else(String::new, |row| shares(row, now));
            match row.is_some_and(|row| row.got_percent > row.wanted_percent) {
                true => format!("{name} waits for its turn among the groups: {share}{shares}."),
                false => {
                    format!("{name} is slow because other groups go first: {share}{shares}.")
                }
            }
        }
        "latency-target" => {
            let of = targets(all, now);
            format!("{name} is delayed to keep the latency targets of other groups{of}: {share}.")
        }
        "back-pressure" => {
            let behind = group.causes.get(1).filter(|cause| cause.reason != DRIVE);
            let behind = behind.map_or_else(String::new, |cause| {
                format!("; accepted I/Os mostly wait for: {}", reason(group, cause))
            });
            let accepted = accepted(now);
            format!(
                "{name} sends more than {accepted}, so its requests wait in their sockets or \
                 rings: {share}{behind}."
            )
        }
        other => {
            let waits = match other {
                "depth" => "waits because the drives have enough I/Os in flight to be busy",
                "no-tag" => "waits for tags: all that it may use are in use",
                "drive-busy" => "waits because the drives accept no more requests",
                "priority" => "waits because I/Os of higher priority are served first",
                "order" => "waits because the scheduler serves other I/Os first",
                "flush" => "spends its time on flushes",
                _ => "waits in the queues of the block layer",
            };
            format!("{name} {waits}: {share}.")
        }
    }
}

fn shares(row: &GroupRow, now: &Report) -> String {
    let find = |name: &str| now.group_counts.iter().find(|group| group.name == name);
    let parent = find(&row.name).and_then(|group| find(group.parent.as_deref()?));
    let within = parent.map_or_else(String::new, |parent| {
        format!(" in group {} of weight {}", visible(&parent.name), parent.weight)
    });
    let (wanted, got, weight) = (row.wanted_percent, row.got_percent, row.weight);
    format!("; drive time: {wanted:.0} % due by weight {weight}{within}, {got:.0} % received")
}

/// Returns a text with the share of the time in which a group had no I/O in flight, or nothing if
/// that was rare.
fn pauses(group: &GroupExplanation) -> Option<String> {
    let is_idle = group.ios > 0.0 && group.waiting == 0 && group.in_flight < IDLE;
    is_idle.then(|| {
        let (name, percent) = (visible(&group.group), 100.0 * (1.0 - group.in_flight));
        format!(
            " {name} has no I/O in flight at least {percent:.0} % of the time: its client pauses, \
             or sends slowly."
        )
    })
}

fn so_far(group: &GroupExplanation) -> String {
    let waited = time(group.waiting_ms);
    match group.waiting {
        0 => "nothing completed".to_owned(),
        1 => format!("nothing completed, 1 I/O has waited for {waited} so far"),
        many => format!(
            "nothing completed, {many} I/Os or parts of I/Os have waited for {waited} so far"
        ),
    }
}

fn targets(here: &[GroupExplanation], now: &Report) -> String {
    let of = |group: &GroupState| {
        let target = group.settings.get("latency-target")?;
        let is_here = here.iter().any(|one| one.group == group.name);
        is_here.then(|| format!("{}: {}", visible(&group.name), visible(target)))
    };
    let all: Vec<String> = now.groups.iter().filter_map(of).take(3).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn text(why: &VolumeExplanation) -> String {
    let warnings: String =
        why.warnings.iter().map(|warning| format!("\n{}\n", visible(warning))).collect();
    if why.groups.is_empty() {
        return format!("{}\n{warnings}", why.says);
    }
    let left = ("where the group's I/Os spent their time", Side::Left);
    let numbers = ["I/Os/s", "mean", "p99"].map(|head| (head, Side::Right));
    let heads = [("group", Side::Left)].into_iter().chain(numbers).chain([left]);
    let mut grid = TextGrid::new(heads);
    for group in &why.groups {
        let causes: Vec<String> = group.causes.iter().map(|cause| part(group, cause)).collect();
        grid.row([
            visible(&group.group).into_owned(),
            groups::short(group.ios),
            mean(group),
            time(group.p99_ms),
            causes.join(", "),
        ]);
    }
    format!("{}\n\n{}\n{warnings}", why.says, grid.text())
}

/// Formats the mean latency of a group's I/Os. If no I/O completed, formats the mean time that the
/// waiting I/Os have waited so far.
fn mean(group: &GroupExplanation) -> String {
    match group.ios == 0.0 && group.waiting > 0 {
        true => format!("so far {}", time(group.waiting_ms)),
        false => time(group.mean_ms),
    }
}

fn part(group: &GroupExplanation, cause: &LatencyCause) -> String {
    format!("{:.0} % {}", cause.percent, reason(group, cause))
}

fn reason(group: &GroupExplanation, cause: &LatencyCause) -> String {
    match cause.reason == "limit" && !group.limits.is_empty() {
        true => format!("limit ({})", visible(&group.limits.join(", "))),
        false => cause.reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::stat::groups::tests::{group, report};
    use crate::views::report::Drive;

    fn cause(reason: &'static str, percent: f64) -> LatencyCause {
        LatencyCause { reason, percent, ms: 1.0 }
    }

    fn explained(causes: &[(&'static str, f64)]) -> GroupExplanation {
        GroupExplanation {
            group: "vm7".into(),
            ios: 500.0,
            mean_ms: 64.0,
            p99_ms: 70.2,
            in_flight: 32.0,
            waiting: 0,
            waiting_ms: 0.0,
            limits: vec!["iops=500".into()],
            causes: causes.iter().map(|(reason, percent)| cause(reason, *percent)).collect(),
            cost_percent: 10.0,
            writes: false,
            waited_ms: 1.0,
        }
    }

    #[test]
    fn a_sentence_says_what_holds_the_group_that_waits_longest() {
        let said = |causes: &[(&'static str, f64)]| {
            sentence((&explained(causes), &[]), None, &Report::default())
        };
        let text =
            "vm7 is slow because its limit (iops=500) delays it: 93 % of the time of its I/Os.";
        assert_eq!(said(&[("limit", 93.2), ("drive", 6.8)]), text);
        let text = "Little holds I/Os back: those of vm7 take 64.0 ms each, and are at the drives \
                    88 % of that time.";
        assert_eq!(said(&[("drive", 88.0), ("limit", 12.0)]), text);
        let slow = GroupExplanation { ios: 5.0, in_flight: 0.32, ..explained(&[("drive", 100.0)]) };
        let text = sentence((&slow, &[]), None, &Report::default());
        assert!(text.ends_with(
            " vm7 has no I/O in flight at least 68 % of the time: its client pauses, or sends slowly."
        ));
        let bulk = GroupExplanation { group: "bulk".into(), cost_percent: 90.0, ..explained(&[]) };
        let all = [explained(&[]), bulk];
        let text = sentence((&explained(&[("drive", 88.0)]), &all), None, &Report::default());
        assert!(text.ends_with(" of that time, where 90 % of the work was for bulk."), "{text}");
        let text = "vm7 sends more than the block layer accepts, so its requests wait in their \
                    sockets or rings: 70 % of the time of its I/Os; accepted I/Os mostly wait \
                    for: limit (iops=500).";
        assert_eq!(said(&[("back-pressure", 70.0), ("limit", 30.0)]), text);
        let reasons = [
            "weight",
            "latency-target",
            "depth",
            "no-tag",
            "drive-busy",
            "order",
            "priority",
            "queue",
            "back-pressure",
        ];
        for reason in reasons {
            let text = said(&[(reason, 50.0)]);
            assert!(
                text.starts_with("vm7 ") && text.ends_with("50 % of the time of its I/Os."),
                "{text}"
            );
        }
    }

    #[test]
    fn a_group_that_completed_nothing_has_waited_so_far() {
        let waits = |waiting| GroupExplanation {
            ios: 0.0,
            mean_ms: 0.0,
            p99_ms: 0.0,
            waiting,
            waiting_ms: 4_200.0,
            ..explained(&[("limit", 100.0)])
        };
        let said = |waiting| sentence((&waits(waiting), &[]), None, &Report::default());
        let limit = "vm7 is slow because its limit (iops=500) delays it: nothing completed";
        assert_eq!(said(1), format!("{limit}, 1 I/O has waited for 4.2 s so far."));
        assert_eq!(
            said(9),
            format!("{limit}, 9 I/Os or parts of I/Os have waited for 4.2 s so far.")
        );
        let why = VolumeExplanation {
            volume: "v".into(),
            seconds: 2.0,
            says: "Said.".into(),
            groups: vec![waits(1)],
            warnings: Vec::new(),
        };
        let row = "vm7         0  so far 4.2 s    -  100 % limit (iops=500)\n";
        assert!(text(&why).ends_with(row), "{}", text(&why));
    }

    #[test]
    fn weights_are_explained_by_shares_and_targets_by_owner() {
        let groups = vec![group("vm7", 100, 10, 1), group("big", 300, 30, 1)];
        let now = report(1, groups);
        let rows = groups::rows(&now, None);
        let said = sentence((&explained(&[("weight", 70.0)]), &[]), rows.first(), &now);
        assert!(said.ends_with("; drive time: 25 % due by weight 100, 25 % received."), "{said}");
        let mut groups = vec![group("vm7", 100, 10, 1), group("gold", 300, 0, 0)];
        groups[0].parent = Some("gold".into());
        let now = report(1, groups);
        let said = sentence((&explained(&[("weight", 70.0)]), &[]), rows.first(), &now);
        assert!(said.contains("due by weight 100 in group gold of weight 300, 25 %"), "{said}");
        let settings = [("latency-target".to_owned(), "p99 2ms".to_owned())].into();
        let groups = vec![GroupState { name: "gold".into(), settings, ..GroupState::default() }];
        let now = Report { groups, ..Report::default() };
        let vm7 = explained(&[("latency-target", 70.0)]);
        let gold = [GroupExplanation { group: "gold".into(), ..explained(&[]) }];
        let said = sentence((&vm7, &gold), None, &now);
        assert!(said.contains("other groups (gold: p99 2ms): 70 %"), "{said}");
        let said = sentence((&vm7, &[]), None, &now);
        assert!(
            said.contains("to keep the latency targets of other groups: 70 %"),
            "gold is not here: {said}"
        );
    }

    #[test]
    fn the_table_has_a_row_for_each_group_with_its_parts_in_order() {
        let why = VolumeExplanation {
            volume: "v".into(),
            seconds: 2.0,
            says: "Said.".into(),
            groups: vec![explained(&[("limit", 62.0), ("drive", 30.0), ("weight", 8.0)])],
            warnings: vec!["group vm7: too much.".into()],
        };
        let expected = "Said.\n\n\
                        group  I/Os/s     mean      p99  where the group's I/Os spent their time\n\
                        vm7       500  64.0 ms  70.2 ms  62 % limit (iops=500), 30 % drive, 8 % weight\n\n\
                        group vm7: too much.\n";
        assert_eq!(text(&why), expected);
    }

    #[test]
    fn stalled_report_says_what_is_booked_and_what_drives_have() {
        let mut gold = group("gold", 100, 0, 0);
        gold.booked_ns = 1_500_000_000;
        let mut now = report(3, vec![gold]);
        let drive = |name: &str, volume: &str, in_flight| Drive {
            name: name.into(),
            volume: volume.into(),
            in_flight,
            ..Drive::default()
        };
        now.drives = vec![drive("d0", "v", 0), drive("d1", "v", 3), drive("d2", "w", 7)];
        now.drives[1].trouble = Some("no connection: no such export".into());
        let why = why(&ObservedInterval::new("v", &now, &report(1, Vec::new())));
        let warning = "drive d1: no connection: no such export";
        assert_eq!(why.warnings, [warning]);
        assert!(super::text(&why).ends_with(&format!(".\n\n{warning}\n")), "{why:?}");
        let text = "No I/O of v completed in 2.0 s; the limits of gold are used up for the next \
                    1.5 s; drive d1 has 3 I/Os in flight.";
        assert_eq!((why.says.as_str(), why.groups.len()), (text, 0));
    }
}
