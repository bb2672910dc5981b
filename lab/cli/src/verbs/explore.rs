//! `millrace-lab explore`: runs the scenarios of many seeds on the simulated machine, and reports
//! violations.
//!
//! This module distributes seeds to worker processes (worker_pool.rs, worker.rs), shrinks the first
//! violation of each kind (reduction.rs), and prints the report. millrace-experiments has the
//! scenarios and the checks. Exit status: 0 for no violation, 1 for violations, 2 if the scenario
//! could not be run, 130 after Ctrl-C.

mod args;
mod reduction;
mod worker;
mod worker_pool;

use std::process::ExitCode;

use anyhow::{Context, Result};
use millrace_experiments::explorer::{Scenario, Violation};
use serde::Serialize;

pub use args::ExploreArgs;
use args::{ExploreTask, WorkerTask};
use worker_pool::{SeedRange, SeedTotals};

use super::interrupt::{self, INTERRUPTED};
use millrace_console::{ProgressBar, say};

const SHOWN_MAX: usize = 3;

#[derive(Debug, Serialize)]
struct ReportedViolation {
    seed: u64,
    kind: String,
    detail: String,
    /// Smallest scenario found with a violation of this kind.
    scenario: Scenario,
    scenario_detail: String,
    replay: String,
}

#[derive(Debug, Serialize)]
struct ExploreSummary<'a> {
    seeds: u64,
    seconds: f64,
    seeds_per_second: f64,
    ios: u64,
    events: u64,
    virtual_seconds: f64,
    digest: String,
    violations: usize,
    findings: &'a [ReportedViolation],
    violating_seeds: Vec<(u64, String)>,
}

pub fn run(args: &ExploreArgs) -> Result<ExitCode> {
    let subject = args.subject();
    if args.worker {
        return worker::serve(subject);
    }
    let interrupt = interrupt::on_ctrl_c()?;
    let (sums, findings) = match args.task()? {
        ExploreTask::Scenario(scenario) => one(*scenario, subject)?,
        ExploreTask::Seeds { first, count, time } => {
            let (fail_fast, interrupt) = (args.fail_fast, interrupt.clone());
            let seeds = SeedRange { first, count, time, fail_fast, interrupt };
            let mut bar = ProgressBar::new(1);
            let mut show = |sums: &SeedTotals, part| {
                let (seeds, found) = (sums.seeds, sums.found.len());
                let text = format!("{seeds} seeds, {} I/Os, {found} violations", sums.ios);
                bar.show(0, &text, part);
            };
            let sums = worker_pool::run(&seeds, args.jobs, subject, &mut show);
            bar.clear();
            let sums = sums?;
            let findings = findings(&sums, args)?;
            (sums, findings)
        }
    };
    report(args, &sums, &findings)?;
    if interrupt.is_set() {
        millrace_console::tell!("interrupted: the report above covers the seeds run so far");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if sums.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn one(
    scenario: Scenario,
    subject: WorkerTask<'_>,
) -> Result<(SeedTotals, Vec<ReportedViolation>)> {
    let (mut sums, start) = (SeedTotals::default(), std::time::Instant::now());
    let outcome = worker::Worker::new(subject).run(&scenario)?;
    sums.add(scenario.seed, outcome);
    sums.seconds = start.elapsed().as_secs_f64();
    let findings = sums
        .found
        .iter()
        .map(|(seed, violation)| finding(*seed, violation, (scenario.clone(), violation.clone())));
    let findings = findings.collect();
    Ok((sums, findings))
}

fn findings(sums: &SeedTotals, args: &ExploreArgs) -> Result<Vec<ReportedViolation>> {
    let mut list: Vec<ReportedViolation> = Vec::new();
    for (seed, violation) in &sums.found {
        if list.len() == SHOWN_MAX || list.iter().any(|known| known.kind == violation.kind) {
            continue;
        }
        let found = (args.subject().scenario_of(*seed), violation.clone());
        let small = match args.no_shrink {
            true => found,
            false => reduction::shrink(found, args.subject())?,
        };
        list.push(finding(*seed, violation, small));
    }
    Ok(list)
}

fn finding(seed: u64, violation: &Violation, small: (Scenario, Violation)) -> ReportedViolation {
    let replay = format!("millrace-lab explore --scenario '{}'", small.0.line());
    ReportedViolation {
        seed,
        kind: violation.kind.clone(),
        detail: violation.detail.clone(),
        scenario: small.0,
        scenario_detail: small.1.detail,
        replay,
    }
}

fn shown(finding: &ReportedViolation, args: &ExploreArgs) -> String {
    let ReportedViolation { kind, detail, seed, scenario_detail, replay, .. } = finding;
    let cache = if args.cache { " --cache" } else { "" };
    format!(
        "violation: {kind}: {detail}\n  seed: {seed} (millrace-lab explore{cache} --seed {seed})\n  \
         in the smaller scenario: {scenario_detail}\n  replay: {replay}\n"
    )
}

fn report(args: &ExploreArgs, sums: &SeedTotals, findings: &[ReportedViolation]) -> Result<()> {
    let rate = sums.seeds as f64 / sums.seconds.max(1e-9);
    if args.json {
        let summary = ExploreSummary {
            seeds: sums.seeds,
            seconds: sums.seconds,
            seeds_per_second: rate,
            ios: sums.ios,
            events: sums.events,
            virtual_seconds: sums.virtual_ns as f64 / 1e9,
            digest: format!("{:016x}", sums.digest),
            violations: sums.found.len(),
            findings,
            violating_seeds: sums.found.iter().map(|(s, v)| (*s, v.kind.clone())).collect(),
        };
        say(&format!("{}\n", serde_json::to_string(&summary).context("a summary as JSON")?));
        return Ok(());
    }
    for finding in findings {
        say(&shown(finding, args));
    }
    let others: Vec<String> = sums
        .found
        .iter()
        .filter(|(seed, _)| findings.iter().all(|finding| finding.seed != *seed))
        .map(|(seed, violation)| format!("{seed} ({})", violation.kind))
        .take(20)
        .collect();
    if !others.is_empty() {
        say(&format!("other seeds with violations: {}\n", others.join(", ")));
    }
    say(&format!(
        "{} seeds in {:.1} s ({rate:.0} seeds/s): {} I/Os in {:.1} s of virtual time, {} violations, \
         digest {:016x}\n",
        sums.seeds,
        sums.seconds,
        sums.ios,
        sums.virtual_ns as f64 / 1e9,
        sums.found.len(),
        sums.digest,
    ));
    Ok(())
}
