//! `bench --calibrate DRIVE`: measures a drive's rates and prints them as keys for its `[[drive]]`.
//!
//! A calibration measures six workloads on this machine or on a simulated one. Then it prints a
//! table, and lines for the configuration file. The workloads write to the drive, which must be
//! empty unless `--overwrite` is given.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use millrace::{OpCost, OpRates};
use millrace_console::words::{MIB, bytes_for_people};
use millrace_console::{ProgressBar, Side, TextGrid};
use millrace_experiments::load::calibration::{Calibration, RUNS, Run, Target};
use millrace_experiments::simulation::{Length, SimPlan, machine, run_simulated};
use millrace_experiments::{Interrupt, Plan, Row};
use millrace_machine::{Machine, Native};
use millrace_simulator::Model;
use serde_json::json;

use super::args::BenchArgs;
use super::plan;
use crate::verbs::interrupt::INTERRUPTED;

/// Default total time of all runs of a calibration. The first value is for runs on this machine,
/// the second for runs on a simulated machine.
const RUNTIME: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(6)];
const IODEPTH: u32 = 128;
/// If a job uses its CPU for more than this fraction of the time, the job and not the drive is the
/// bottleneck.
const BUSY: f64 = 0.95;
pub fn run(args: &BenchArgs, drive: &str, interrupt: &Interrupt) -> Result<ExitCode> {
    let mut args = args.clone();
    args.target.drive = vec![drive.to_owned()];
    let [natively, simulated] = RUNTIME;
    let default = if args.machine.machine.is_some() { simulated } else { natively };
    let all = args.workload.runtime.unwrap_or(default);
    args.workload.runtime = Some(all / RUNS.len() as u32);
    let depth = args.workload.iodepth.first().copied().unwrap_or(IODEPTH);
    args.workload.iodepth = vec![depth];
    let (rows, place) = match &args.machine.machine {
        Some(name) => {
            let model = machine(name).context("--machine")?;
            let plan = only(simulated_plans(&args, &model)?)?;
            let place = format!("on the simulated machine {name}");
            (measure(interrupt, |run, _| on_machine(&model, &plan, run))?, place)
        }
        None => (natively_measured(&args, interrupt)?, "here".to_owned()),
    };
    let Some(rows) = rows else {
        millrace_console::tell!(
            "interrupted: nothing is printed, because the result needs all six runs"
        );
        return Ok(ExitCode::from(INTERRUPTED));
    };
    if let Some(row) = rows.iter().find(|row| row.outcome.errors > 0) {
        let first = row.outcome.first_error.as_deref().unwrap_or("no detail");
        bail!("drive {drive}: {} I/Os failed ({}): {first}", row.outcome.errors, row.rw);
    }
    match args.json() {
        true => millrace_console::say(&format!("{}\n", json_text(drive, &rows)?)),
        false => {
            millrace_console::say(&format!("drive {drive}, measured {place}\n\n{}\n", text(&rows)))
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn only<T>(plans: Vec<T>) -> Result<T> {
    let mut plans = plans.into_iter();
    match (plans.next(), plans.next()) {
        (Some(plan), None) => Ok(plan),
        _ => bail!("--calibrate: accepts one value of --iodepth, --numjobs and --cpus, not a list"),
    }
}

fn measure(
    interrupt: &Interrupt,
    mut one: impl FnMut(&Run, &mut dyn FnMut(f64, u64)) -> Result<Row>,
) -> Result<Option<[Row; RUNS.len()]>> {
    let mut bar = ProgressBar::new(RUNS.len());
    let mut rows = Vec::new();
    for (index, run) in RUNS.iter().enumerate() {
        let label = format!("{} {}", run.rw, bytes_for_people(run.bs_bytes.into()));
        bar.show(index, &label, 0.0);
        rows.push(one(run, &mut |fraction, _| bar.show(index, &label, fraction))?);
        if interrupt.is_set() {
            break;
        }
    }
    bar.clear();
    // The figures of a run that Ctrl-C interrupted are discarded.
    let whole = !interrupt.is_set();
    Ok(rows.try_into().ok().filter(|_| whole))
}

fn simulated_plans(args: &BenchArgs, model: &Model) -> Result<Vec<SimPlan>> {
    let cpus: Vec<u32> = (0..model.cpus()).collect();
    super::machine::plans(args, &plan::rows_on(args, &cpus)?, Length::Rounds)
}

fn on_machine(model: &Model, plan: &SimPlan, run: &Run) -> Result<Row> {
    let mut plan = plan.clone();
    plan.workload = run.workload(plan.workload.iodepth, plan.workload.seed);
    plan.service.nomerges = true;
    if run.is_large() {
        (plan.jobs, plan.cpus) = (1, vec![plan.cpus[0]]);
    }
    Ok(run_simulated(model, &plan)?)
}

fn natively_measured(args: &BenchArgs, interrupt: &Interrupt) -> Result<Option<[Row; RUNS.len()]>> {
    let cpus: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
    let plan = only(plan::rows_on(args, &cpus)?)?;
    let jobs = u16::try_from(plan.plan.jobs).context("--numjobs: at most 65535")?;
    let drive = &args.target.drives()?[0];
    super::check_overwrite(args, Some("--calibrate".to_owned()))?;
    let mut target = Target::open(drive, jobs, &args.target.controllers()?)?;
    target.notes.iter().for_each(|note| millrace_console::tell!("note: {note}"));
    let plan = Plan { interrupt: interrupt.clone(), ..plan.plan };
    let mut busy = false;
    let rows = measure(interrupt, |run, progress| {
        let row = target.run(run, &plan, progress)?;
        busy |= row.cost.cpu_ns_per_io * row.iops > BUSY * 1e9 * f64::from(row.jobs);
        Ok(row)
    })?;
    if busy && rows.is_some() {
        millrace_console::tell!(
            "note: a run kept its threads busy all the time: the drive may do more with a higher \
             --numjobs"
        );
    }
    Ok(rows)
}

fn text(rows: &[Row; RUNS.len()]) -> String {
    let calibration = Calibration::of(rows);
    let heads = ["I/O", "iodepth", "numjobs", "IOPS", "MiB/s", "us/IO"];
    let side = |head: &str| if head == "I/O" { Side::Left } else { Side::Right };
    let mut runs = TextGrid::new(heads.map(|head| (head, side(head))));
    for (run, row) in RUNS.iter().zip(rows) {
        runs.row([
            format!("{} {}", run.rw, bytes_for_people(run.bs_bytes.into())),
            row.iodepth.to_string(),
            row.jobs.to_string(),
            format!("{:.0}", row.iops),
            format!("{:.1}", row.bw_bytes_per_s / MIB),
            format!("{:.2}", 1e6 / row.iops),
        ]);
    }
    let heads = ["cost", "random, ns", "sequential, ns", "byte, ns"];
    let mut costs = TextGrid::new(heads.map(|head| (head, Side::Right)));
    let cost = calibration.cost();
    for (name, OpCost { random_ns, sequential_ns, byte_ps }) in
        [("read", cost.read), ("write", cost.write)]
    {
        let byte_ns = format!("{:.3}", f64::from(byte_ps) / 1e3);
        costs.row([name.to_owned(), random_ns.to_string(), sequential_ns.to_string(), byte_ns]);
    }
    format!(
        "{}\n\n{}\n\nlines for the drive's [[drive]] in the configuration:\n\n{}",
        runs.text(),
        costs.text(),
        lines(&calibration)
    )
}

fn lines(calibration: &Calibration) -> String {
    let lines = |way: &str, rates: &OpRates| {
        format!(
            "cost.{way}-iops = {}\ncost.{way}-sequential-iops = {}\ncost.{way}-bandwidth = {}",
            rates.random_iops, rates.sequential_iops, rates.bytes_per_s
        )
    };
    format!("{}\n{}", lines("read", &calibration.read), lines("write", &calibration.write))
}

fn json_text(drive: &str, rows: &[Row; RUNS.len()]) -> Result<String> {
    let calibration = Calibration::of(rows);
    let cost = calibration.cost();
    let way = |rates: &OpRates, cost: &OpCost| {
        json!({
            "iops": rates.random_iops,
            "sequential_iops": rates.sequential_iops,
            "bandwidth": rates.bytes_per_s,
            "random_ns": cost.random_ns,
            "sequential_ns": cost.sequential_ns,
            "byte_ps": cost.byte_ps,
        })
    };
    let report = json!({
        "drive": drive,
        "read": way(&calibration.read, &cost.read),
        "write": way(&calibration.write, &cost.write),
        "rows": rows.iter().collect::<Vec<_>>(),
    });
    serde_json::to_string_pretty(&report).context("the calibration as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bench::test_args::parse;

    fn error(text: &str) -> String {
        let args = parse(text).unwrap();
        let drive = args.calibrate.calibrate.clone().unwrap();
        format!("{:#}", run(&args, &drive, &Interrupt::default()).unwrap_err())
    }

    #[test]
    fn a_modelled_drive_has_the_figures_of_its_preset() {
        let args = parse("--machine x5690 --drive model:preset=850evo --iodepth 64").unwrap();
        let model = machine("x5690").unwrap();
        let plan = only(simulated_plans(&args, &model).unwrap()).unwrap();
        let interrupt = Interrupt::default();
        let rows = measure(&interrupt, |run, _| on_machine(&model, &plan, run)).unwrap().unwrap();
        let Calibration { read, write } = Calibration::of(&rows);
        let near = |found: u64, stated: u64| {
            let off = found as f64 / stated as f64 - 1.0;
            assert!(off.abs() < 0.02, "{found} for {stated}");
        };
        near(read.random_iops, 98_000);
        near(read.sequential_iops, 98_000);
        near(read.bytes_per_s, 540_000_000);
        near(write.random_iops, 90_000);
        near(write.sequential_iops, 90_000);
        near(write.bytes_per_s, 520_000_000);
        let text = text(&rows);
        let keys = lines(&Calibration { read, write });
        assert!(text.ends_with(&keys), "{text}");
    }

    #[test]
    fn a_drive_that_holds_something_is_written_over_only_on_request() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d0");
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        let drive = format!("file:path={}", path.display());
        let text = error(&format!("--calibrate {drive} --runtime 60ms"));
        let why = "holds data, and --calibrate would overwrite that; name an empty one, or add \
                   --overwrite to lose what it holds";
        assert_eq!(text, format!("drive {drive} {why}"));
        assert_eq!(std::fs::read(&path).unwrap(), [7; 4 << 20]);
        let args = parse(&format!("--calibrate {drive} --overwrite --runtime 60ms --json"));
        run(&args.unwrap(), &drive, &Interrupt::default()).unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), [7; 4 << 20]);
    }

    #[test]
    fn arguments_that_make_no_single_run_are_refused() {
        let text = error("--calibrate null --iodepth 1 --numjobs 1,2");
        let only = "--calibrate: accepts one value of --iodepth, --numjobs and --cpus, not a list";
        assert_eq!(text, only);
        for other in ["--rw read", "--bs 4k", "--drive null", "--scheduler none", "--trace t"] {
            assert!(parse(&format!("--calibrate null {other}")).is_err(), "{other}");
        }
        assert!(parse("--calibrate null --machine x5690 --overwrite").is_err());
    }
}
