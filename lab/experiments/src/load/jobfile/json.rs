//! Reports with fio's keys, so that fio's own tools read them.
//!
//! The names and types are those of `fio --output-format=json`, and with `json+` also the bins of
//! latencies. Keys without a counterpart in millrace are left out; `disk_util` is empty.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::run::JobReport;
use super::spec::JobFile;
use super::tally::{CLASSES, DirectionTally, Levels, Spread, Tally, Times};

/// Percentiles that fio reports by default.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// Level of detail of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobDetail {
    /// Details as in fio's `json` format.
    Plain,
    /// Details as in fio's `json+` format, which also has the bins of latency histograms.
    Bins,
}

struct TimesForm<'a> {
    detail: JobDetail,
    percents: &'a [f64],
}

/// Returns the report of a run in fio's JSON format.
pub fn report(file: &JobFile, reports: &[JobReport], detail: JobDetail) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let jobs: Vec<Value> = reports.iter().map(|one| job(file, one, detail)).collect();
    let mut report = json!({
        "fio version": concat!("millrace-", env!("CARGO_PKG_VERSION")),
        "timestamp": now.as_secs(),
        "timestamp_ms": now.as_millis() as u64,
        "jobs": jobs,
        "disk_util": [],
    });
    if !file.global.is_empty() {
        report["global options"] = words(&file.global);
    }
    report
}

/// Returns options as a JSON object. As in fio, options without a value are left out.
fn words(words: &[(String, String)]) -> Value {
    let words = words.iter().filter(|(_, value)| !value.is_empty());
    let entries = words.map(|(word, value)| (word.clone(), json!(value)));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn job(file: &JobFile, report: &JobReport, detail: JobDetail) -> Value {
    let (spec, tally) = (&file.jobs[report.job], &report.tally);
    let form = &TimesForm { detail, percents: spec.percentiles.as_deref().unwrap_or(&PERCENTILES) };
    let share = |us: u64| us as f64 * 1e5 / tally.runtime_ns.max(1) as f64;
    let runtime_ms = tally.runtime_ns / 1_000_000;
    let mut job = json!({
        "jobname": spec.name,
        "groupid": report.group,
        "error": tally.errno,
        "eta": 0,
        "elapsed": runtime_ms.div_ceil(1000).max(1),
        "job options": words(&spec.own),
        "read": flow(&tally.flows[0], form),
        "write": flow(&tally.flows[1], form),
        "trim": flow(&tally.flows[2], form),
        "sync": {
            "total_ios": tally.sync.spread.count,
            "lat_ns": times(&tally.sync, form),
        },
        "job_runtime": runtime_ms,
        "usr_cpu": share(tally.usage.user_us),
        "sys_cpu": share(tally.usage.system_us),
        "ctx": tally.usage.switches,
        "majf": tally.usage.major_faults,
        "minf": tally.usage.minor_faults,
        "iodepth_level": depths(&tally.depth),
        "iodepth_submit": batches(&tally.submitted),
        "iodepth_complete": batches(&tally.completed),
        "latency_depth": tally.depth_found.map_or(spec.flow.iodepth, |(depth, _)| depth),
        "latency_target": spec.flow.latency.map_or(0, |latency| latency.target_ns / 1_000),
        "latency_percentile": spec.flow.latency.map_or(100.0, |latency| latency.percent),
        "latency_window": spec.flow.latency.map_or(0, |latency| latency.window_ns / 1_000),
    });
    for (unit, name) in ["latency_ns", "latency_us", "latency_ms"].iter().enumerate() {
        job[*name] = classes(tally, unit);
    }
    if let Some(description) = &spec.description {
        job["desc"] = json!(description);
    }
    job
}

fn flow(flow: &DirectionTally, form: &TimesForm<'_>) -> Value {
    let runtime_ms = flow.runtime_ns.div_ceil(1_000_000);
    let per_s = |count: u64| count as f64 * 1e9 / flow.runtime_ns.max(1) as f64;
    let (bw, iops) = (&flow.bw, &flow.iops);
    // The job's percentage of its group's bandwidth: 100, as each reported job is a group of its
    // own.
    let agg = if bw.count == 0 { 0.0 } else { 100.0 };
    json!({
        "io_bytes": flow.bytes,
        "io_kbytes": flow.bytes >> 10,
        "bw_bytes": per_s(flow.bytes) as u64,
        "bw": (per_s(flow.bytes) / 1024.0) as u64,
        "iops": per_s(flow.ios),
        "runtime": runtime_ms,
        "total_ios": flow.ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": spread(&flow.slat),
        "clat_ns": times(&flow.clat, form),
        "lat_ns": spread(&flow.lat),
        "bw_min": bw.min,
        "bw_max": bw.max,
        "bw_agg": agg,
        "bw_mean": bw.mean(),
        "bw_dev": bw.deviation(),
        "bw_samples": bw.count,
        "iops_min": iops.min,
        "iops_max": iops.max,
        "iops_mean": iops.mean(),
        "iops_stddev": iops.deviation(),
        "iops_samples": iops.count,
    })
}

fn spread(spread: &Spread) -> Value {
    json!({
        "min": spread.min,
        "max": spread.max,
        "mean": spread.mean(),
        "stddev": spread.deviation(),
        "N": spread.count,
    })
}

/// Returns minimum, maximum, mean and deviation of latencies. Adds percentiles if there are
/// samples, and histogram bins if `form` asks for bins.
fn times(times: &Times, form: &TimesForm<'_>) -> Value {
    let mut value = spread(&times.spread);
    if times.spread.count == 0 {
        return value;
    }
    let found = times.buckets.percentiles(form.percents);
    let named = form.percents.iter().zip(found);
    let named = named.map(|(percent, ns)| (format!("{percent:.6}"), json!(ns)));
    value["percentile"] = Value::Object(named.collect());
    if form.detail == JobDetail::Bins {
        let bins = times.buckets.bins().map(|(ns, count)| (ns.to_string(), json!(count)));
        value["bins"] = Value::Object(bins.collect());
    }
    value
}

/// Returns the percentages of I/Os by queue depth. A class has its lowest depth as its name, and
/// ends where the next class begins.
fn depths(levels: &Levels) -> Value {
    let total = levels.iter().sum::<u64>().max(1) as f64;
    let names = ["1", "2", "4", "8", "16", "32", ">=64"];
    let share = |count: &u64| json!(*count as f64 * 100.0 / total);
    Value::Object(
        names.iter().map(ToString::to_string).zip(levels[1..].iter().map(share)).collect(),
    )
}

fn batches(levels: &Levels) -> Value {
    let total = levels.iter().sum::<u64>().max(1) as f64;
    let sums = [
        ("0", levels[0]),
        ("4", levels[1..=3].iter().sum()),
        ("8", levels[4]),
        ("16", levels[5]),
        ("32", levels[6]),
        ("64", levels[7]),
        (">=64", 0),
    ];
    let entries = sums.map(|(name, count)| (name.to_owned(), json!(count as f64 * 100.0 / total)));
    Value::Object(entries.into_iter().collect())
}

/// Returns the percentages of I/Os in the latency classes of nanoseconds (`unit` 0), microseconds
/// (1) or milliseconds (2).
fn classes(tally: &Tally, unit: usize) -> Value {
    let total = tally.flows.iter().map(|flow| flow.ios).sum::<u64>().max(1) as f64;
    let share = |count: u64| json!(count as f64 * 100.0 / total);
    let named = CLASSES.iter().zip(tally.classes[unit]);
    let mut shares: Map<String, Value> =
        named.map(|(end, count)| (end.to_string(), share(count))).collect();
    if unit == 2 {
        shares.insert("2000".to_owned(), share(tally.slower[0]));
        shares.insert(">=2000".to_owned(), share(tally.slower[1]));
    }
    Value::Object(shares)
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::MemoryFiles;
    use super::*;

    #[test]
    fn job_has_percentiles_of_its_list_and_another_one_those_of_fio() {
        let text = b"[a]\npercentile_list=99.9:50\n[b]\n";
        let file = JobFile::parse("t.fio", text, &MemoryFiles(&[])).unwrap();
        let mut tally = Tally::default();
        tally.done(0, 4096, (1, 7));
        let reports =
            [0, 1].map(|job| JobReport { job, members: 1, group: 0, tally: tally.clone() });
        let report = report(&file, &reports, JobDetail::Plain);
        let percentiles = |job: usize| &report["jobs"][job]["read"]["clat_ns"]["percentile"];
        assert_eq!(*percentiles(0), json!({"50.000000": 7, "99.900000": 7}));
        assert_eq!(percentiles(1).as_object().map(Map::len), Some(17));
    }
}
