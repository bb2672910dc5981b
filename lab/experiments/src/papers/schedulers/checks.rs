//! What each scheduler promises, and what came of it.
//!
//! A statement whose part was not run is listed as not there. Bounds are part of the statements.

use millrace_block::SchedulerKind;
use millrace_drives::Words;

use super::limit_accuracy::LimitAccuracy;
use super::points::{ClientPresence, Grouping, Point, Rig};
use super::runs::{CORES, LIMITS, OTHERS, Results, THREADS};
use crate::page::{Check, CheckKind};
use crate::papers::rule::{Finding, Rule};

/// All of them, in the order of the page.
pub(super) fn all(results: &Results) -> Vec<Check> {
    let missing = "its part was not run: millrace-lab paper schedulers runs all";
    RULES.iter().map(|rule| rule.check(results, missing)).collect()
}

const fn rule(
    id: &'static str,
    expected: &'static str,
    ours: fn(&Results) -> Option<Finding>,
) -> Rule<Results> {
    Rule { id, kind: CheckKind::Qualitative, paper: (expected, &[]), ours }
}

const SCALES: &str =
    "70 % of the IOPS of none at 1 to 128 cores, with one group and with a group for each core";
const WEIGHTS: &str = "fair: shares of cost within 5 % of weights 1:2:4:8";
const DEPTHS: &str = "fair, depths 32 and 256: Jain's index 0.99 by cost";
const SIZES: &str = "fair, reads of 4 KiB beside writes of 128 KiB: Jain's index 0.99 by cost";
const SHALLOW: &str =
    "fair: depth 1 keeps 50 % of its IOPS alone beside 1, 3 and 7 clients of depth 256";
const IDLE: &str = "fair: priority idle beside a client of depth 32: more than 0, at most 5 %";

const RULES: [Rule<Results>; 20] = [
    rule("scaling.fair", SCALES, |results| scales(results, SchedulerKind::Fair)),
    rule("scaling.latency", SCALES, |results| scales(results, SchedulerKind::Latency)),
    rule("scaling.deadline", "one lock collapses: below 10 % of none at 64 cores", collapses),
    rule("weights.850evo", WEIGHTS, |results| weights(results, Rig::Evo)),
    rule("weights.950pro", WEIGHTS, |results| weights(results, Rig::Pro)),
    rule("depths.850evo", DEPTHS, |results| equal(results, Rig::Evo, Point::depths)),
    rule("depths.950pro", DEPTHS, |results| equal(results, Rig::Pro, Point::depths)),
    rule("sizes.850evo", SIZES, |results| equal(results, Rig::Evo, Point::sizes)),
    rule("sizes.950pro", SIZES, |results| equal(results, Rig::Pro, Point::sizes)),
    rule("shallow.850evo", SHALLOW, |results| shallow(results, Rig::Evo)),
    rule("shallow.950pro", SHALLOW, |results| shallow(results, Rig::Pro)),
    rule(
        "target.reader",
        "latency, 850evo: p99 of depth 1 beside 256 writes of 128 KiB at most 2 times that alone",
        reader,
    ),
    rule("target.writer", "the writer keeps 50 % of what it does alone", writer),
    rule("limits.rate", "within 2 % of the limit, 1 to 64 threads, 100 to 2 M IOPS", rate),
    rule("limits.second", "within 2 % over any second, or over any 100 ms of the fastest", second),
    rule("limits.burst", "no window above its length at the rate, the burst + 2 %, and 1", burst),
    rule("idle.850evo", IDLE, |results| beside(results, Rig::Evo)),
    rule("idle.950pro", IDLE, |results| beside(results, Rig::Pro)),
    rule("idle.alone", "fair: priority idle alone gets 95 % of what none gives it", idle_alone),
    rule("disk.sorted", "hdd7200, depth 32: deadline 1.8 times none", sorted),
];

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn list(parts: impl IntoIterator<Item = String>) -> String {
    parts.into_iter().collect::<Vec<_>>().join(", ")
}

/// What a scheduler leaves of what so many cores do without one.
fn left(
    results: &Results,
    scheduler: SchedulerKind,
    (cores, grouping): (u32, Grouping),
) -> Option<f64> {
    let none = results.iops(&Point::cores(SchedulerKind::None, cores, Grouping::Together))?;
    Some(results.iops(&Point::cores(scheduler, cores, grouping))? / none)
}

/// The worst of all numbers of cores counts.
fn scales(results: &Results, scheduler: SchedulerKind) -> Option<Finding> {
    let least = |grouping| {
        let lefts = CORES.map(|cores| Some((left(results, scheduler, (cores, grouping))?, cores)));
        let lefts: Option<Vec<(f64, u32)>> = lefts.into_iter().collect();
        lefts?.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let (one, each) = (least(Grouping::Together)?, least(Grouping::Each)?);
    let text = |(left, cores): (f64, u32)| format!("{} at {cores} cores", percent(left));
    let text = format!("with one group {}, with a group each {}", text(one), text(each));
    Some(Finding::new(text, vec![one.0, each.0]).holds(one.0.min(each.0) >= 0.7))
}

fn collapses(results: &Results) -> Option<Finding> {
    let left = left(results, SchedulerKind::Deadline, (64, Grouping::Together))?;
    Some(Finding::new(percent(left), vec![left]).holds(left < 0.1))
}

fn weights(results: &Results, rig: Rig) -> Option<Finding> {
    let contest = results.at(Point::weights(rig, SchedulerKind::Fair))?;
    let off = |row: &crate::load::contention::ClientRow| row.share / row.weight_share - 1.0;
    let all: Vec<f64> = contest.clients.iter().map(off).collect();
    let text = list(all.iter().map(|off| format!("{:+.1} %", off * 100.0)));
    Some(Finding::new(text, all.clone()).holds(all.iter().all(|off| off.abs() <= 0.05)))
}

fn equal(results: &Results, rig: Rig, point: fn(Rig, SchedulerKind) -> Point) -> Option<Finding> {
    let jain = |scheduler| Some(results.at(point(rig, scheduler))?.jain);
    let (fair, none) = (jain(SchedulerKind::Fair)?, jain(SchedulerKind::None)?);
    let text = format!("{fair:.4}; none {none:.4}");
    let found = Finding::new(text, vec![fair]).holds(fair >= 0.99);
    Some(match (rig, fair >= 0.99) {
        (Rig::Pro, false) => found.note(
            "32 reads in flight leave many of the drive's 32 dies idle, where two meet at one: such a \
             reader cannot use half of the drive beside a writer, which gets what is left",
        ),
        _ => found,
    })
}

fn shallow(results: &Results, rig: Rig) -> Option<Finding> {
    let alone = Point::shallow(rig, SchedulerKind::None, 0);
    let kept =
        |others| results.kept("shallow", &Point::shallow(rig, SchedulerKind::Fair, others), &alone);
    let kept = OTHERS.into_iter().map(kept).collect::<Option<Vec<f64>>>()?;
    let text = list(kept.iter().copied().map(percent));
    Some(Finding::new(text, kept.clone()).holds(kept.iter().all(|kept| *kept >= 0.5)))
}

fn target(scheduler: SchedulerKind, present: ClientPresence) -> Point {
    Point::target(Rig::Evo, scheduler, present)
}

fn reader(results: &Results) -> Option<Finding> {
    let p99 = |point: Point| Some(results.client(&point, "reader")?.lat_ns.p99 as f64);
    let alone = p99(target(SchedulerKind::None, ClientPresence::First))?;
    let beside = |kind: SchedulerKind| {
        let p99 = p99(target(kind, ClientPresence::Both))?;
        Some((p99 / alone, format!("{} {:.0} us", kind.word(), p99 / 1e3)))
    };
    let (times, latency) = beside(SchedulerKind::Latency)?;
    let others = [beside(SchedulerKind::Fair)?.1, beside(SchedulerKind::None)?.1];
    let text =
        format!("{times:.2} times: alone {:.0} us, {latency}, {}", alone / 1e3, list(others));
    Some(Finding::new(text, vec![times]).holds(times <= 2.0))
}

fn writer(results: &Results) -> Option<Finding> {
    let alone = target(SchedulerKind::None, ClientPresence::Second);
    let kept =
        results.kept("writer", &target(SchedulerKind::Latency, ClientPresence::Both), &alone)?;
    Some(Finding::new(percent(kept), vec![kept]).holds(kept >= 0.5))
}

/// A limit's worst: the statement in words, and the figure that is farthest off.
fn worst(results: &Results, figure: fn(&LimitAccuracy) -> f64) -> Option<(String, f64)> {
    let mut worst = (String::new(), 0.0_f64);
    for iops in LIMITS {
        for threads in THREADS {
            let off = figure(&LimitAccuracy::of(results, iops, threads)?);
            if off.abs() > worst.1.abs() || worst.0.is_empty() {
                let plural = if threads == 1 { "" } else { "s" };
                worst = (format!("{iops} IOPS, {threads} thread{plural}"), off);
            }
        }
    }
    Some(worst)
}

fn rate(results: &Results) -> Option<Finding> {
    let (whose, off) = worst(results, |limited| limited.off().0)?;
    let text = format!("farthest off: {:+.2} % ({whose})", off * 100.0);
    Some(
        Finding::new(text, vec![off]).holds(off.abs() <= 0.02).note(
            "of a limit that is more than the threads can do, what they do without it is due",
        ),
    )
}

fn second(results: &Results) -> Option<Finding> {
    let (whose, off) = worst(results, |limited| limited.off().1)?;
    let text = format!("farthest off: {:+.2} % ({whose})", off * 100.0);
    Some(Finding::new(text, vec![off]).holds(off.abs() <= 0.02))
}

fn burst(results: &Results) -> Option<Finding> {
    let (whose, used) = worst(results, |limited| limited.burst)?;
    let text = format!("at most {} of the burst ({whose})", percent(used));
    Some(Finding::new(text, vec![used]).holds(used <= 1.02))
}

fn beside(results: &Results, rig: Rig) -> Option<Finding> {
    let point = Point::idle(rig, SchedulerKind::Fair, ClientPresence::Both);
    let alone = Point::idle(rig, SchedulerKind::None, ClientPresence::First);
    let (idle, kept) = (results.client(&point, "idle")?, results.kept("usual", &point, &alone)?);
    let (share, kept) = (percent(idle.share), percent(kept));
    let text = format!("{:.0} IOPS, {share} by cost; the other keeps {kept}", idle.iops);
    let found = Finding::new(text, vec![idle.share]);
    Some(found.holds(idle.ios > 0 && idle.share <= 0.05))
}

fn idle_alone(results: &Results) -> Option<Finding> {
    let of = |kind| Point::idle(Rig::Evo, kind, ClientPresence::Second);
    let kept = results.kept("idle", &of(SchedulerKind::Fair), &of(SchedulerKind::None))?;
    let text = format!("850evo: {}", percent(kept));
    Some(Finding::new(text, vec![kept]).holds(kept >= 0.95))
}

fn sorted(results: &Results) -> Option<Finding> {
    let iops = |kind| results.iops(&Point::disk(kind, 32));
    let (deadline, none) = (iops(SchedulerKind::Deadline)?, iops(SchedulerKind::None)?);
    let times = deadline / none;
    let text = format!("{times:.2} times: {deadline:.0} and {none:.0} IOPS");
    Some(Finding::new(text, vec![times]).holds(times >= 1.8))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::PAPER;
    use super::*;
    use crate::page::Verdict;
    use crate::papers::PartSelection;

    #[test]
    fn without_runs_every_check_is_listed_and_none_holds() {
        let run = Results::run(PartSelection::new(&[], 1), &mut |_| ControlFlow::Continue(()));
        let checks = all(&run.expect("nothing to run").0.with);
        assert_eq!(checks.len(), RULES.len());
        assert!(checks.iter().all(|check| check.holds == Verdict::NotYet));
    }

    #[test]
    fn a_part_that_was_run_has_its_checks_judged_and_shown_as_expected_and_found() {
        let run = (PAPER.run)(PartSelection::new(&["disk"], 1), &mut |_| ControlFlow::Continue(()));
        let page = run.expect("it runs");
        let judged = page.checks.iter().filter(|check| check.holds != Verdict::NotYet);
        assert_eq!(judged.map(|check| check.id.as_str()).collect::<Vec<_>>(), ["disk.sorted"]);
        assert_eq!(page.figures.len(), 1);
        let (text, html) = (page.text(), page.html());
        assert!(text.contains("expected") && html.contains("<th>found</th>"), "{text}");
    }
}
