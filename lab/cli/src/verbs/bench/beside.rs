//! `bench --beside`: compares one configuration (row) of `bench` with commands of other programs.
//!
//! In each round the row and each command run once. The order changes from round to round, so that
//! no program always runs at the same position. A command prints a JSON report of fio or of `bench
//! --json`; both have the same keys for the same figures. The table shows medians over all rounds.
//! Its IOPS ratio is the median of the ratios of the rounds. The verb `bench` calls this file.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use millrace_console::words::MIB;
use millrace_console::{Side, TextGrid};
use millrace_experiments::Interrupt;
use serde_json::{Value, json};

use super::args::BenchArgs;
use super::table::TimeUnit;
use super::{native_rows, say_json};
use crate::verbs::interrupt::INTERRUPTED;

#[derive(Debug, Clone, Copy, PartialEq)]
struct RunFigures {
    iops: f64,
    bw_bytes: f64,
    /// Median latency in nanoseconds: the highest one of all jobs and directions in a program's
    /// report. `p99_ns` is the highest 99th percentile.
    p50_ns: u64,
    p99_ns: u64,
}

/// Measures all programs in each round. The exit code is 0, or 130 after Ctrl-C.
pub fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<ExitCode> {
    let others = &args.beside.beside;
    let names: Vec<&str> =
        std::iter::once("bench").chain(others.iter().map(|other| &*other.name)).collect();
    let (mut rounds, mut ended) = (Vec::new(), Ok(()));
    for round in 0..args.beside.rounds as usize {
        let mut samples = vec![None; names.len()];
        let sides = (0..names.len()).map(|place| (place + round) % names.len());
        ended = sides.into_iter().try_for_each(|side| {
            let report = match side {
                0 => own(args, interrupt),
                side => output(&others[side - 1].command),
            };
            let sample = report.and_then(|report| sample(&report));
            samples[side] = Some(sample.with_context(|| format!("--beside: {}", names[side]))?);
            Ok(())
        });
        if interrupt.is_set() || ended.is_err() {
            break;
        }
        rounds.push(samples.into_iter().flatten().collect::<Vec<RunFigures>>());
    }
    if !rounds.is_empty() {
        match args.json() {
            true => say_json(&report(&names, &rounds))?,
            false => millrace_console::say(&format!("{}\n", table(&names, &rounds))),
        }
    }
    if interrupt.is_set() {
        millrace_console::tell!(
            "interrupted after {}",
            millrace_console::counted(rounds.len(), "round")
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn own(args: &BenchArgs, interrupt: &Interrupt) -> Result<Value> {
    let (rows, ended) = native_rows(args, interrupt)?;
    ended?;
    if rows.len() > 1 {
        let count = rows.len();
        bail!(
            "the arguments select {count} measurements instead of one; add, for example, --stack \
             mq --iodepth 32 --numjobs 1"
        );
    }
    Ok(serde_json::to_value(rows)?)
}

/// Runs a command and returns its JSON report. Skips the notes that fio prints before the report.
fn output(command: &str) -> Result<Value> {
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", command]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = output.output().context("sh")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{command}: {}\n{text}", output.status);
    }
    let lines = text.split_inclusive('\n').scan(0, |at, line| {
        let begin = *at;
        *at += line.len();
        Some((begin, line))
    });
    let mut begins = lines.filter(|(_, line)| line.starts_with(['{', '['])).map(|(at, _)| at);
    let begin =
        begins.next().ok_or_else(|| anyhow!("{command}: it printed no JSON report:\n{text}"))?;
    serde_json::from_str(&text[begin..]).with_context(|| format!("{command}: its report"))
}

fn sample(report: &Value) -> Result<RunFigures> {
    let empty = Vec::new();
    let (rows, jobs) = match report {
        Value::Array(rows) => (rows, &empty),
        report => (&empty, report["jobs"].as_array().unwrap_or(&empty)),
    };
    let errors: u64 = rows
        .iter()
        .map(|row| &row["total_err"])
        .chain(jobs.iter().map(|job| &job["error"]))
        .filter_map(Value::as_u64)
        .sum();
    let flows = jobs.iter().flat_map(|job| ["read", "write", "trim"].map(|flow| &job[flow]));
    let parts: Vec<&Value> = rows.iter().chain(flows).collect();
    let sum = |key: &str| parts.iter().filter_map(|part| part[key].as_f64()).sum::<f64>();
    let slowest = |key: &str| {
        let of = |part: &&Value, kind: &str| part[kind]["percentile"][key].as_u64();
        parts.iter().filter_map(|part| of(part, "lat_ns").or(of(part, "clat_ns"))).max()
    };
    let sample = RunFigures {
        iops: sum("iops"),
        bw_bytes: sum("bw_bytes"),
        p50_ns: slowest("50.000000").unwrap_or(0),
        p99_ns: slowest("99.000000").unwrap_or(0),
    };
    match (errors, sample.iops > 0.0) {
        (0, true) => Ok(sample),
        (0, false) => bail!("the program's report contains no I/O: {report}"),
        (errors, _) => bail!("the program's report contains {errors} errors"),
    }
}

fn median(rounds: &[Vec<RunFigures>], of: impl Fn(&[RunFigures]) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|round| of(round)).collect();
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

fn ratio(side: usize) -> impl Fn(&[RunFigures]) -> f64 {
    move |round| round[side].iops / round[0].iops
}

fn table(names: &[&str], rounds: &[Vec<RunFigures>]) -> String {
    let unit = {
        let all = || rounds.iter().flatten();
        let least = all().map(|sample| sample.p50_ns).min().unwrap_or(0);
        TimeUnit::between(least, all().map(|sample| sample.p99_ns).max().unwrap_or(0))
    };
    let time = |name: &str| format!("{name} {}", unit.name());
    let heads = ["IOPS", "least", "most", "MiB/s"].map(str::to_owned).into_iter();
    let heads = heads.chain([time("p50"), time("p99"), "IOPS/bench".to_owned()]);
    let first = std::iter::once(("program".to_owned(), Side::Left));
    let mut grid = TextGrid::new(first.chain(heads.map(|name| (name, Side::Right))));
    for (side, name) in names.iter().enumerate() {
        let of = |value: fn(&RunFigures) -> f64| median(rounds, |round| value(&round[side]));
        let iops = || rounds.iter().map(|round| round[side].iops);
        grid.row([
            (*name).to_owned(),
            format!("{:.0}", of(|sample| sample.iops)),
            format!("{:.0}", iops().fold(f64::MAX, f64::min)),
            format!("{:.0}", iops().fold(0.0, f64::max)),
            format!("{:.1}", of(|sample| sample.bw_bytes) / MIB),
            unit.text(of(|sample| sample.p50_ns as f64) as u64),
            unit.text(of(|sample| sample.p99_ns as f64) as u64),
            format!("{:.2}", median(rounds, ratio(side))),
        ]);
    }
    grid.text()
}

fn report(names: &[&str], rounds: &[Vec<RunFigures>]) -> Vec<Value> {
    let side = |(side, name): (usize, &&str)| {
        let one = |round: &Vec<RunFigures>| {
            let RunFigures { iops, bw_bytes, p50_ns, p99_ns } = round[side];
            json!({ "iops": iops, "bw_bytes": bw_bytes, "p50_ns": p50_ns, "p99_ns": p99_ns })
        };
        let samples: Vec<Value> = rounds.iter().map(one).collect();
        json!({ "name": name, "iops_ratio": median(rounds, ratio(side)), "rounds": samples })
    };
    names.iter().enumerate().map(side).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_fio_and_of_bench_are_summed_up_alike() {
        let lat = json!({ "percentile": { "50.000000": 5, "99.000000": 9 } });
        let flow = json!({ "iops": 10.0, "bw_bytes": 40_960, "clat_ns": lat });
        let none = json!({ "iops": 0.0, "bw_bytes": 0 });
        let fio = json!({ "jobs": [{ "error": 0, "read": flow, "write": flow, "trim": none }] });
        let row = json!({ "iops": 20.0, "bw_bytes": 81_920, "total_err": 0, "lat_ns": lat });
        let expected = RunFigures { iops: 20.0, bw_bytes: 81_920.0, p50_ns: 5, p99_ns: 9 };
        assert_eq!(sample(&fio).unwrap(), expected);
        assert_eq!(sample(&json!([row])).unwrap(), expected);
        let failed = json!({ "jobs": [{ "error": 5, "read": flow }] });
        assert_eq!(
            sample(&failed).unwrap_err().to_string(),
            "the program's report contains 5 errors"
        );
    }

    #[test]
    fn ratios_are_taken_within_each_round() {
        let of = |iops| RunFigures { iops, bw_bytes: 0.0, p50_ns: 0, p99_ns: 0 };
        let rounds = [vec![of(1.0), of(2.0)], vec![of(10.0), of(30.0)], vec![of(5.0), of(5.0)]];
        assert_eq!(median(&rounds, ratio(1)), 2.0);
        assert_eq!(median(&rounds, |round| round[0].iops), 5.0);
    }

    #[test]
    fn notes_before_a_report_are_passed_over() {
        assert_eq!(
            output("echo 'note: {no}'; echo '{\"jobs\": []}'").unwrap(),
            json!({ "jobs": [] })
        );
        assert!(
            output("echo nothing").unwrap_err().to_string().contains("it printed no JSON report")
        );
        assert!(output("exit 3").is_err());
    }
}
