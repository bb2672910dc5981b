//! `bench --vm`: a virtual machine on a simulated host, one row for each setting.
//!
//! This module makes a row of each combination of the listed settings, and prints the report, a
//! table or JSON. words.rs parses the option, and millrace-experiments simulates the rows. If
//! `--vm` is given, the verb `bench` calls this module instead of running its usual rows.

pub mod words;

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use millrace_console::words::{size, size_text};
use millrace_console::{ProgressBar, Side, TextGrid};
use millrace_drives::Words;
use millrace_experiments::simulation::{Length, machine, run_rows};
use millrace_experiments::vm::{Mode, VmBench, VmReport, run_vm_bench};
use millrace_experiments::{Interrupt, Workload};

use super::args::BenchArgs;
use super::table::{TimeUnit, kind};
use crate::verbs::interrupt;

const RUNTIME_NS: u64 = 50_000_000;

/// Simulates the virtual machines and prints a table. The exit code is 0, or 130 after Ctrl-C.
pub fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<ExitCode> {
    let reports = reports(args, interrupt)?;
    if args.json() {
        super::say_json(&reports)?;
    } else {
        millrace_console::say(&format!("{}\n", table(&reports)));
    }
    Ok(interrupt::exit_code(interrupt, 0))
}

fn reports(args: &BenchArgs, interrupt: &Interrupt) -> Result<Vec<VmReport>> {
    let name = args.machine.machine.as_deref().unwrap_or_default();
    let model = machine(name).context("--machine")?;
    let rows = rows(args)?;
    let mut bar = ProgressBar::new(rows.len());
    bar.show(0, name, 0.0);
    let mut ended = 0;
    let done = |_| {
        ended += 1;
        bar.show((ended - 1).min(rows.len() - 1), name, 1.0);
    };
    let run = |index: usize| match interrupt.is_set() {
        true => Ok(None),
        false => run_vm_bench(&model, &rows[index], interrupt),
    };
    let reports = run_rows(rows.len(), run, done)?.into_iter().flatten().collect();
    bar.clear();
    Ok(reports)
}

fn rows(args: &BenchArgs) -> Result<Vec<VmBench>> {
    let drives = args.target.drives()?;
    let [drive] = drives.as_slice() else {
        bail!("--drive: a virtual machine has exactly one drive, not {}", drives.len());
    };
    if args.workload.verify {
        bail!("--verify: has no effect in a virtual machine; remove it");
    }
    let length = match (args.workload.ios, args.workload.runtime) {
        (Some(ios), _) => Length::Ios(ios),
        (None, Some(time)) => Length::Time(time.as_nanos().try_into().unwrap_or(u64::MAX)),
        (None, None) => Length::Time(RUNTIME_NS),
    };
    let or =
        |given: &[u32], usual: u32| if given.is_empty() { vec![usual] } else { given.to_vec() };
    let sizes: Vec<u32> = match args.workload.bs.as_slice() {
        [] => vec![4096],
        given => given.iter().map(|text| block_size(text)).collect::<Result<_>>()?,
    };
    let mut rows = Vec::new();
    for processes in or(&args.queues.numjobs, 1) {
        for rw in args.workload.kinds()? {
            for bs_bytes in &sizes {
                for iodepth in or(&args.workload.iodepth, 32) {
                    let (bs_bytes, seed) = (*bs_bytes, args.workload.seed);
                    let workload = Workload { rw, bs_bytes, iodepth, verify: false, seed };
                    rows.extend(args.vm.vm.iter().map(|setting| VmBench {
                        setting: setting.clone(),
                        processes,
                        workload,
                        drive: drive.clone(),
                        length,
                    }));
                }
            }
        }
    }
    Ok(rows)
}

fn block_size(text: &str) -> Result<u32> {
    let bytes = size(text).map_err(|problem| anyhow!("--bs {text}: {problem}"))?;
    match u32::try_from(bytes) {
        Ok(bytes @ 512..=1_048_576) if bytes.is_multiple_of(512) => Ok(bytes),
        _ => bail!("--bs {text}: must be 512 bytes to 1m, in steps of 512"),
    }
}

fn table(reports: &[VmReport]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let depth = |report: &VmReport| report.work.iodepth.to_string();
    let varies = reports.iter().any(|report| depth(report) != depth(first));
    let heads = [
        ("vm", Side::Left),
        ("iodepth", Side::Right),
        ("jobs", Side::Right),
        ("rw", Side::Left),
        ("bs", Side::Right),
        ("IOPS", Side::Right),
        ("mean us", Side::Right),
        ("switches", Side::Right),
        ("exits", Side::Right),
        ("batch", Side::Right),
        ("held %", Side::Right),
        ("lock ns", Side::Right),
    ];
    let least = reports.iter().map(|report| report.lat_mean_ns).fold(f64::MAX, f64::min) as u64;
    let unit = TimeUnit::between(least, 99_999);
    let shown = |name: &str| varies || name != "iodepth";
    let mut grid = TextGrid::new(heads.into_iter().filter(|(name, _)| shown(name)));
    for report in reports {
        let cells = [
            name_of(report),
            depth(report),
            report.guest.numjobs.to_string(),
            kind(&report.work.rw, report.work.rwmixread),
            size_text(report.work.bs.into()),
            format!("{:.0}", report.iops),
            unit.text(report.lat_mean_ns as u64),
            format!("{:.2}", report.cost.switches_per_io),
            format!("{:.2}", report.cost.exits_per_io),
            format!("{:.1}", report.cost.batch),
            format!("{:.0}", report.cost.held_share * 100.0),
            format!("{:.0}", report.cost.lock_wait_ns_per_io),
        ];
        let cells = heads.iter().zip(cells).filter(|((name, _), _)| shown(name));
        grid.row(cells.map(|(_, cell)| cell));
    }
    let iodepth = if varies { String::new() } else { format!(" iodepth={}", depth(first)) };
    format!(
        "machine={} drive={}{iodepth} seed={}; of an I/O: context switches of the host, exits, \
         waiting for\nqueues' locks; of a submission: requests, and how many of 100 were held\n{}",
        first.machine,
        first.work.drives,
        first.work.seed,
        grid.text()
    )
}

fn name_of(report: &VmReport) -> String {
    let usual = Mode::WORDS.iter().find(|(_, word)| *word == report.guest.vm);
    let many = usual.is_some_and(|(mode, _)| *mode == Mode::Miot);
    let usual_threads = if many { report.guest.queues } else { 1 };
    let usual_batching = if many { 20_000 } else { 0 };
    let mut words = vec![report.guest.vm.to_owned()];
    let mut say = |differs: bool, word: String| words.extend(differs.then_some(word));
    say(report.guest.vcpus != 8, format!("vcpus={}", report.guest.vcpus));
    say(report.guest.threads != usual_threads, format!("threads={}", report.guest.threads));
    say(
        report.guest.batching_ns != usual_batching,
        format!("batching={}us", report.guest.batching_ns / 1000),
    );
    say(report.guest.polling_ns != 0, format!("polling={}us", report.guest.polling_ns / 1000));
    report.guest.without.iter().for_each(|word| say(true, format!("without={word}")));
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bench::test_args::parse;

    fn run(text: &str) -> Result<Vec<VmReport>> {
        reports(&parse(text).expect(text), &Interrupt::default())
    }

    #[test]
    fn settings_make_rows_in_order_and_json_has_each() {
        let text = "--machine miot --vm baseline --vm miot,vcpus=4,threads=2,batching=0,polling=5us,\
                    without=preemption --numjobs 1,2 --ios 200 --seed 7";
        let reports = run(text).expect(text);
        let heads: Vec<_> = reports
            .iter()
            .map(|row| (row.guest.vm, row.guest.numjobs, row.guest.threads))
            .collect();
        assert_eq!(heads, [("baseline", 1, 1), ("miot", 1, 2), ("baseline", 2, 1), ("miot", 2, 2)]);
        let last = serde_json::to_value(&reports[3]).expect("plain data");
        assert_eq!((&last["vcpus"], &last["seed"]), (&4.into(), &7.into()));
        assert_eq!((&last["batching_ns"], &last["polling_ns"]), (&0.into(), &5_000.into()));
        assert_eq!(last["without"], serde_json::json!(["preemption"]));
        for key in ["iops", "bw_bytes", "exits_per_io", "held_share", "lock_lost", "sim_events"] {
            assert!(last[key].is_number(), "{key}: {last}");
        }
        let table = table(&reports);
        assert!(table.contains("miot,vcpus=4,threads=2,batching=0us,polling=5us,"), "{table}");
    }

    #[test]
    fn a_depth_stands_above_the_table_unless_rows_differ_in_it() {
        let text = |depths: &str| {
            let command = format!("--machine miot --vm mq --ios 100 --iodepth {depths}");
            table(&run(&command).expect(&command))
        };
        let (one, two) = (text("3"), text("3,17"));
        assert!(one.contains(" iodepth=3 ") && one.lines().count() == 4, "{one}");
        assert!(!two.contains("iodepth=") && two.contains("iodepth  jobs"), "{two}");
        let depth = |line: usize| two.lines().nth(line).and_then(|l| l.split_whitespace().nth(1));
        assert_eq!((depth(3), depth(4)), (Some("3"), Some("17")), "{two}");
    }

    #[test]
    fn wrong_words_say_what_was_meant_and_what_there_is() {
        for (text, expected) in [
            ("--machine miot --vm mqq", "mqq: did you mean mq? begin with one of baseline, mq"),
            ("--machine miot --vm mq,thread=2", "thread=2: did you mean threads? the keys are"),
            ("--machine miot --vm mq,vcpus", "vcpus: write KEY=VALUE"),
            (
                "--machine miot --vm mq,",
                "nothing follows a comma; write KEY=VALUE, or remove the comma",
            ),
            ("--machine miot --vm mq,vcpus=2,vcpus=4", "vcpus: given twice; remove one of them"),
            ("--machine miot --vm ,vcpus=2", "no mode: begin with one of baseline"),
            ("--machine miot --vm mq,vcpus=x", "vcpus=x: write a number"),
            ("--machine miot --vm mq,polling=5u", "polling=5u: a time is numbers with h, m"),
            ("--machine miot --vm mq,batching=20", "batching=20: a time needs its unit; write 20s"),
            ("--machine miot --vm mq,without=sharin", "did you mean sharing? one of preemption"),
            ("--vm mq", "--machine"),
            ("--machine miot --vm mq --stack sq", "cannot be used with"),
            ("--machine miot --vm mq --client rw=read", "cannot be used with"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_does_not_fit_names_its_option() {
        for (text, expected) in [
            ("--machine miot --vm mq --numjobs 9", "--vm: --numjobs 9: each process has a vCPU"),
            (
                "--machine miot --vm baseline,threads=2",
                "ask for fewer threads, or choose mode mq or miot",
            ),
            ("--machine miot --vm mq --drive null --drive null", "--drive: a virtual machine has"),
            ("--machine miott --vm mq", "did you mean miot?"),
            ("--machine p3-8way --vm mq,without=sharing", "machine p3-8way has no hyper-threads"),
            ("--machine miot --vm mq --bs 100", "--bs 100: must be 512 bytes to 1m"),
            ("--machine miot --vm mq --drive file:path=/x", "drives must be null, ram or model"),
        ] {
            let error = format!("{:#}", run(&format!("{text} --ios 10")).expect_err(text));
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
