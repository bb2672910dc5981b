//! Measurements of `bench` on a simulated machine, or on this machine with lock statistics.
//!
//! This module measures every combination of the values of flags that take lists (as
//! `--interface`). Simulations run in parallel, and the order of the output does not depend on
//! which of them ends first. The rate of the simulator is printed to standard error, because it
//! differs from run to run.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use millrace::{Spec, Stack, drive_device};
use millrace_block::baseline::Inside;
use millrace_console::ProgressBar;
use millrace_console::words::SECOND_NS;
use millrace_experiments::simulation::{
    InterfaceKind, Irq, Length, Linux3, ObservedRow, RecordingPlan, Service, SimPlan, Watch,
    machine, run_metered_until, run_rows, run_simulated_until,
};
use millrace_experiments::{Interrupt, Row, Workload};
use millrace_machine::{Machine, Native};

use super::args::BenchArgs;
use super::plan::{self, RowPlan};
use super::{check_rows, recorded, recording};

pub fn rows(args: &BenchArgs, interrupt: &Interrupt) -> Result<Vec<Row>> {
    match &args.machine.machine {
        Some(name) => simulated_rows(args, name, interrupt),
        None => metered_rows(args, interrupt),
    }
}

fn simulated_rows(args: &BenchArgs, name: &str, interrupt: &Interrupt) -> Result<Vec<Row>> {
    let model = machine(name).context("--machine")?;
    let all: Vec<u32> = (0..model.cpus()).collect();
    let plans = plans(args, &plan::rows_on(args, &all)?, Length::Rounds)?;
    check_rows(args.trace.trace.as_deref(), plans.len())?;
    let mut bar = ProgressBar::new(plans.len());
    let start = Instant::now();
    let mut ended = 0;
    bar.show(0, name, 0.0);
    let done = |_| {
        ended += 1;
        bar.show((ended - 1).min(plans.len() - 1), name, 1.0);
    };
    // Rows that have not begun when Ctrl-C is pressed are left out.
    let run = |index: usize| match interrupt.is_set() {
        true => Ok(None),
        false => run_simulated_until(&model, &plans[index], interrupt),
    };
    let observed: Vec<_> = run_rows(plans.len(), run, done)?.into_iter().flatten().collect();
    bar.clear();
    let rows = rows_of(observed);
    let events: u64 = rows.iter().filter_map(|row| row.machine.as_ref()?.sim_events).sum();
    let seconds = start.elapsed().as_secs_f64();
    millrace_console::tell!(
        "note: {events} events simulated in {seconds:.2} s, {:.1} M per second",
        events as f64 / seconds / 1e6
    );
    Ok(rows)
}

/// Measures the configurations one after another, because measurements on this machine would
/// disturb each other.
fn metered_rows(args: &BenchArgs, interrupt: &Interrupt) -> Result<Vec<Row>> {
    let all: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
    let plans = plans(args, &plan::rows_on(args, &all)?, Length::Time(SECOND_NS))?;
    check_rows(args.trace.trace.as_deref(), plans.len())?;
    let mut bar = ProgressBar::new(plans.len());
    let mut observed = Vec::new();
    for (index, plan) in plans.iter().enumerate().take_while(|_| !interrupt.is_set()) {
        bar.show(index, "with lock statistics", 0.0);
        observed.extend(run_metered_until(plan, interrupt).context("--locks")?);
    }
    bar.clear();
    Ok(rows_of(observed))
}

fn rows_of(observed: Vec<ObservedRow>) -> Vec<Row> {
    let recordings = observed.iter().filter_map(|observed| observed.recorded.as_ref());
    recordings.for_each(|recording| millrace_console::tell!("note: {}", recorded(recording)));
    observed.into_iter().map(|observed| observed.row).collect()
}

pub fn plans(args: &BenchArgs, rows: &[RowPlan], length: Length) -> Result<Vec<SimPlan>> {
    let drives = args.target.drives()?;
    let interfaces = match args.machine.interface.as_slice() {
        [] => vec![InterfaceKind::default()],
        given => given.to_vec(),
    };
    let length = match (args.workload.ios, args.workload.runtime) {
        (Some(ios), _) => Length::Ios(ios),
        (None, Some(runtime)) => Length::Time(runtime.as_nanos().try_into().unwrap_or(u64::MAX)),
        (None, None) => length,
    };
    if args.machine.irq != Irq::Submitter {
        let inline = |drive: &Spec| drive.driver == "null" && drive.get("delay").is_none();
        if let Some(drive) = drives.iter().find(|drive| inline(drive)) {
            bail!(
                "--irq {}: drive {drive} completes at once and has no interrupts; give it a delay",
                args.machine.irq
            );
        }
    }
    if !args.machine.inside.is_empty() && rows.iter().all(|row| row.stack != Stack::Mq) {
        bail!("--inside: only --stack mq has hardware queues; add mq to --stack");
    }
    let mut plans = Vec::new();
    for row in rows {
        args.history.check(row.stack, &drives)?;
        for interface in &interfaces {
            let Some(iodepth) = depth_of(args, row, *interface, rows)? else { continue };
            let service = Service {
                controllers: args.target.controllers()?,
                serving: row.serving,
                worker_cpus: row.workers.clone(),
                scheduler: row.scheduler,
                ..Service::default()
            };
            plans.extend(services(args, row.stack, &service).into_iter().map(|service| SimPlan {
                drives: drives.clone(),
                layout: args.target.layout(),
                service,
                stack: row.stack,
                software_queues: row.software_queues,
                hardware_queues: row.hardware_queues,
                cpus: row.plan.cpus.clone(),
                jobs: row.plan.jobs,
                workload: Workload { iodepth, ..row.plan.workload },
                length,
                stamp: row.plan.stamp,
                interface: *interface,
                batch: args.machine.batch,
                irq: args.machine.irq,
                watch: Watch {
                    locks: args.machine.locks,
                    tags: None,
                    trace: traced(args, &drives),
                },
            }));
        }
    }
    Ok(plans)
}

fn traced(args: &BenchArgs, drives: &[Spec]) -> Option<RecordingPlan> {
    let name = args.trace.trace.as_deref()?;
    let names: Vec<String> = (0..drives.len()).map(|index| format!("d{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let config = recording(name, args.trace.trace_stamp, &names);
    let devices = (0..drives.len() as u32).map(drive_device).collect();
    Some(RecordingPlan { config, devices, ring: args.trace.trace_ring as usize })
}

/// Returns copies of `usual` with different settings: one copy for each combination of values of
/// the Linux 2.4 flags. For the stack `mq`, the combinations also contain the values of `--inside`.
fn services(args: &BenchArgs, stack: Stack, usual: &Service) -> Vec<Service> {
    let histories = args.history.histories();
    let ways = match args.machine.inside.as_slice() {
        given @ [_, ..] if stack == Stack::Mq => given,
        _ => &[Inside::ONE],
    };
    let with = |inside: &Inside| {
        let inside = *inside;
        histories.iter().map(move |history| (inside, *history))
    };
    let pairs = ways.iter().flat_map(with);
    let kernel = args.machine.kernel;
    let service = |(inside, history)| {
        let linux3 = Linux3::of(kernel, inside);
        Service { inside, history, linux3, ..usual.clone() }
    };
    pairs.map(service).collect()
}

/// Returns the I/O depth of a row of the result table, or `None` to leave out the row. The
/// interface `sync` has only one I/O in flight, so rows with a larger default depth get depth 1. If
/// `rows` already has a row of depth 1, another one is left out. Fails if the user asked for a
/// larger depth.
fn depth_of(
    args: &BenchArgs,
    row: &RowPlan,
    interface: InterfaceKind,
    rows: &[RowPlan],
) -> Result<Option<u32>> {
    let depth = row.plan.workload.iodepth;
    if interface != InterfaceKind::Sync || depth == 1 {
        return Ok(Some(depth));
    }
    if !args.workload.iodepth.is_empty() {
        bail!("--interface sync has one I/O in flight, not --iodepth {depth}");
    }
    Ok(if rows.iter().any(|row| row.plan.workload.iodepth == 1) { None } else { Some(1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bench::test_args::parse;

    fn json(text: &str) -> serde_json::Value {
        serde_json::to_value(super::rows(&parse(text).unwrap(), &Interrupt::default()).unwrap())
            .unwrap()
    }

    #[test]
    fn each_interface_on_each_count_of_cpus_has_row_with_its_names() {
        let rows = json(
            "--machine x5690 --cpus 1,all --interface libaio,ring --ios 64 --seed 7 --locks \
             --hardware-queues node",
        );
        let rows = rows.as_array().unwrap();
        let heads: Vec<String> = rows
            .iter()
            .map(|row| format!("{} {} {}", row["cpus"], row["machine"], row["interface"]))
            .collect();
        let expected = [
            r#"1 "x5690" "libaio""#,
            r#"1 "x5690" "ring""#,
            r#"12 "x5690" "libaio""#,
            r#"12 "x5690" "ring""#,
        ];
        assert_eq!(heads, expected);
        let last = &rows[3];
        assert_eq!(
            (&last["seed"], &last["irq"], &last["numjobs"]),
            (&7.into(), &"submitter".into(), &12.into())
        );
        assert!(last["sim_events"].as_u64().unwrap() > 10_000, "{last}");
        assert!(last["total_ios"].as_u64().unwrap() >= 64 * 12, "{last}");
        let lock = &last["locks"][0];
        for key in [
            "name",
            "acquisitions",
            "contended_share",
            "wait_ns_mean",
            "wait_ns_max",
            "hold_ns_mean",
            "spin_share",
            "site",
        ] {
            assert!(lock.get(key).is_some(), "{key}: {lock}");
        }
    }

    #[test]
    fn sync_has_one_io_in_flight_without_being_told() {
        let rows = json("--machine x5690 --cpus 1 --interface sync,ring --ios 64");
        let depths: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["iodepth"]).collect();
        assert_eq!(depths, [1, 32]);
        let bare = json("--machine i7-3930k --interface sync --ios 64");
        assert!(bare.as_array().unwrap().iter().all(|row| row["iodepth"] == 1), "{bare}");
    }

    #[test]
    fn lists_of_history_make_rows_that_are_told_apart() {
        let text = "--machine p3-8way --stack sq --drive null@a: --controller a:tags=64 --jobs 1 \
                    --iodepth 1 --bs 8k --ios 50 --iovecs 1,2 --unit 512,page \
                    --bounce never,always --readv whole,serial --request-lock \
                    queue,adapter,global --queue-plug task,queue --descriptor 0,608";
        let rows = json(text);
        let rows = rows.as_array().unwrap();
        let keys =
            ["iovecs", "unit", "bounce", "readv", "request_lock", "queue_plug", "descriptor"];
        let heads = rows.iter().map(|row| keys.map(|key| row[key].to_string()));
        let heads: std::collections::BTreeSet<_> = heads.collect();
        assert_eq!((rows.len(), heads.len()), (2 * 2 * 2 * 2 * 3 * 2 * 2, rows.len()));
        let ways = json("--machine x5690 --cpus 2 --ios 64 --inside one,each");
        assert_eq!((&ways[0]["inside"], &ways[1]["inside"]), (&"one".into(), &"each".into()));
        let mixed = json("--machine x5690 --cpus 2 --ios 64 --stack raw,mq,sq --inside each");
        let inside = [0, 1, 2].map(|row| mixed[row]["inside"].as_str());
        assert_eq!(inside, [Some("one"), Some("each"), Some("one")]);
    }

    #[test]
    fn the_counters_of_a_kernel_of_2013_cost_what_is_behind_them() {
        let row = |kernel: &str| {
            let text = "--machine i7-3930k --cpus 6 --ios 200 --hardware-queues one --inside each --batch 1";
            let rows = json(&format!("{text} --kernel {kernel}"));
            assert_eq!(rows[0]["kernel"], kernel);
            rows[0]["iops"].as_f64().unwrap()
        };
        let (own, linux) = (row("own"), row("linux-3"));
        assert!(linux < 0.97 * own && linux > 0.5 * own, "{own} {linux}");
    }

    #[test]
    fn a_trace_is_of_one_row_only() {
        let text = "--machine x5690 --cpus 1,2 --ios 64 --trace /nowhere/t";
        let args = parse(text).unwrap();
        let error = super::rows(&args, &Interrupt::default()).expect_err("two rows");
        assert!(error.to_string().starts_with("--trace: 2 rows; select one"), "{error:#}");
        let args = parse(&text.replace("1,2", "1")).unwrap();
        let error = super::rows(&args, &Interrupt::default()).expect_err("no folder");
        assert!(
            format!("{error:#}").contains("its directory does not exist; create it"),
            "{error:#}"
        );
    }

    #[test]
    fn option_of_a_skipped_row_is_named_with_its_need() {
        for (text, expected) in [
            ("--inside each", "--machine <NAME|FILE.toml>|--locks"),
            ("--interface sync", "--machine <NAME|FILE.toml>|--locks"),
            ("--batch 4", "--machine <NAME|FILE.toml>|--locks"),
            ("--unit 512", "--machine <NAME|FILE.toml>|--locks"),
            ("--iovecs 2", "--machine <NAME|FILE.toml>|--locks"),
            ("--bounce always", "--machine <NAME|FILE.toml>|--locks"),
            ("--request-lock global", "--machine <NAME|FILE.toml>|--locks"),
            ("--queue-plug queue", "--machine <NAME|FILE.toml>|--locks"),
            ("--descriptor 608", "--machine <NAME|FILE.toml>|--locks"),
            ("--locks --readv serial", "--iovecs <N>"),
            ("--locks --backend epoll", "'--locks' cannot be used with '--backend"),
            ("--virtqueue --stamp io", "'--virtqueue' cannot be used with '--stamp"),
            ("--virtqueue --states", "'--virtqueue' cannot be used with '--states'"),
            ("--connect nbd://h/ --scheduler none", "cannot be used with '--scheduler"),
            ("--connect nbd://h/ --stamp io", "cannot be used with '--stamp"),
            ("--machine miot --vm mq --inside each", "cannot be used with '--inside"),
            ("--machine miot --vm mq --unit 512", "cannot be used with '--unit"),
            ("--machine x5690 --client rw=read --bounce never", "cannot be used with '--bounce"),
            ("--client rw=read --backend epoll", "cannot be used with '--backend"),
            ("--calibrate null --machine x5690 --batch 4", "cannot be used with '--batch"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for (text, expected) in [
            ("--inside each --stack sq,raw", "--inside: only --stack mq has hardware queues"),
            ("--request-lock queue", "--request-lock: only --stack sq has a request queue"),
            ("--stack raw --queue-plug queue", "--queue-plug: only --stack sq"),
            ("--stack sq --request-lock adapter", "names no controller; write DRIVER@"),
            ("--iodepth 1 --descriptor 608", "--descriptor: needs --unit, --iovecs"),
            ("--iodepth 2 --iovecs 2", "for one I/O at a time: iodepth is 2, use 1"),
            (
                "--drive null --chunk 4k",
                "--chunk 4k: a stripe needs several drives; give several --drive",
            ),
            (
                "--drive null --serving auto",
                "--serving auto: only volumes of several drives have drive workers",
            ),
            ("--drive null --workers 1", "--workers: none of these rows has workers"),
        ] {
            let args = parse(&format!("--machine x5690 --jobs 1 {text}")).expect(text);
            let error = super::rows(&args, &Interrupt::default()).expect_err(text);
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn drives_of_one_controller_do_together_what_its_tags_allow() {
        let iops = |more: &str| {
            let drives = "--drive null@hba:delay=100us --drive null@hba:delay=100us";
            let rows = json(&format!("--machine x5690 --ios 500 --iodepth 64 {drives} {more}"));
            assert_eq!(rows[0]["drives"], "null@hba:delay=100us+null@hba:delay=100us");
            rows[0]["iops"].as_f64().unwrap()
        };
        let most = |tags: f64| tags / 100e-6;
        let together = iops("--cpus 1 --controller hba:tags=8");
        assert!(together < most(8.0) && together > most(4.0), "{together}");
        let each = iops("--cpus 1 --controller hba:tags=8,sharing=drive,node=1");
        assert!(each < most(16.0) && each > most(8.0), "{each}");
        assert!(iops("--cpus 4 --controller hba:tags=8,sharing=queue") > most(16.0));
    }

    #[test]
    fn what_makes_no_sense_on_a_simulated_machine_is_refused() {
        for text in [
            "--machine x5690 --connect nbd://localhost/",
            "--machine x5690 --verify --rw write",
            "--machine x5690 --backend epoll",
            "--irq core0",
            "--machine x5690 --interface aio",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for (text, expected) in [
            ("--machine x5960", "machine x5960: did you mean x5690?"),
            ("--locks --interface sync --iodepth 8", "interface sync has one I/O in flight"),
            (
                "--machine x5690 --cpus 13",
                "--cpus 13: this program may use 12 CPUs; write 1 to 12, or all",
            ),
            (
                "--machine x5690 --drive file:path=/x",
                "drive file cannot run on a simulated machine",
            ),
            (
                "--machine x5690 --irq core0",
                "completes at once and has no interrupts; give it a delay",
            ),
            ("--locks --drive file:path=/x", "drive file cannot run on a simulated machine"),
            ("--machine x5690 --drive null@a:", "drive null@a:: there is no controller `a`"),
            ("--machine x5690 --controller a:tags=1", "no drive names it; write --drive DRIVER@a:"),
            ("--locks --controller a:tag=1", "it has no key `tag`; write NAME:tags=N"),
            (
                "--machine x5690 --drive null@a: --controller a:tags=1 --controller a:tags=2",
                "another controller has this name; choose another",
            ),
            (
                "--machine x5690 --drive null@a: --controller a:tags=1,node=2",
                "controller a: there is no NUMA node 2: this machine has nodes 0 to 1",
            ),
        ] {
            let error = super::rows(&parse(text).unwrap(), &Interrupt::default()).expect_err(text);
            let text = format!("{error:#}");
            assert!(text.contains(expected), "{text}");
        }
    }
}
