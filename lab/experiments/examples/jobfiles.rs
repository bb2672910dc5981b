//! Compares fio and millrace on the job files of a folder: who takes which, and with which mix.
//!
//! For each `*.fio` it says whether `fio --parse-only` takes it, whether millrace does (it is read,
//! set up on a drive that does nothing, and ended at once), and why not. Where both do, each runs a
//! bounded copy on fio's engine `null` and the drive `null`: it has only the words that shape I/Os,
//! without pauses, sizes, the random map, and rates but those of mixes, which keep their ratio.
//! The mix is, for each job, the share of I/Os and the mean size of each direction; a difference
//! above a percent is looked at again for longer, since both are drawn.
//!
//! A file `NAME.fio.env` beside a job file has lines `VARIABLE=VALUE`, set for both programs as a
//! runner would. All that is written is in a temporary folder.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use millrace_block::{Disk, DiskConfig, Layout, Volume};
use millrace_drives::{open, size_bytes};
use millrace_experiments::Interrupt;
use millrace_experiments::load::jobfile::{
    Includes, JobDetail, JobFile, JobSetting, report, run_jobs,
};
use millrace_machine::Native;
use serde_json::Value;

const USAGE: &str = "\
usage: jobfiles FOLDER

example:
  cargo run -p millrace-experiments --example jobfiles -- /tmp/jobfiles";

/// A result, or a sentence on why there is none.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Run time of the jobs in the first comparison, and in the second one.
const RUNTIMES_MS: [u32; 2] = [300, 4000];
/// I/Os a second of a mix with rates.
const RATED_IOPS: u64 = 100_000;
/// Difference of mixes that is accepted, in percent.
const CLOSE: f64 = 1.0;
/// Words that shape single I/Os.
const SHAPES: [&str; 20] = [
    "ba",
    "blockalign",
    "blocksize",
    "blocksize_range",
    "bs",
    "bs_unaligned",
    "bsrange",
    "bssplit",
    "fdatasync",
    "fsync",
    "kb_base",
    "percentage_random",
    "random_distribution",
    "readwrite",
    "rw",
    "rwmixread",
    "rwmixwrite",
    "zonemode",
    "zonerange",
    "zonesize",
];

/// Variables of a job file.
type Variables = BTreeMap<String, String>;

/// Work of a job: I/Os and bytes of reads, writes and trims.
type Flows = [(u64, u64); 3];

/// A job file with its variables.
struct Case {
    path: PathBuf,
    bytes: Vec<u8>,
    variables: Variables,
}

impl Includes for Case {
    fn file(&self, name: &str) -> std::io::Result<Vec<u8>> {
        std::fs::read(self.path.with_file_name(name))
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned().or_else(|| std::env::var(name).ok())
    }

    fn system(&self, name: &str) -> u64 {
        match name {
            "pagesize" => 4096,
            "mb_memory" => 1024,
            _ => 1,
        }
    }
}

impl Case {
    fn read(path: &Path) -> Outcome<Case> {
        let env = format!("{}.env", path.display());
        let pair = |line: &str| Some(line.split_once('=')?).map(|(n, v)| (n.into(), v.into()));
        let variables = std::fs::read_to_string(env).unwrap_or_default();
        let variables = variables.lines().filter_map(pair).collect();
        Ok(Case { path: path.to_owned(), bytes: std::fs::read(path)?, variables })
    }

    /// Reason for which fio refuses the job file.
    fn fio(&self) -> Outcome<Option<String>> {
        let mut fio = Command::new("fio");
        fio.arg("--parse-only").arg(&self.path).envs(&self.variables);
        let output = fio.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason");
        Ok((!output.status.success()).then(|| first.to_owned()))
    }

    /// The jobs as millrace takes them, or why it does not.
    fn millrace(&self) -> Result<JobFile, String> {
        let file = JobFile::parse("", &self.bytes, self).map_err(|error| error.to_string())?;
        let interrupt = Interrupt::default();
        interrupt.set();
        match run(&file, interrupt) {
            // Its own drive does, and the bounded copy does not verify.
            Err(text) if !text.contains("the null drive keeps no data") => Err(text),
            _ => Ok(file),
        }
    }

    /// A copy of which each job runs for so long, whatever its file. I/Os of mixes with rates have
    /// about `mean_bytes`.
    fn bounded(&self, file: &JobFile, runtime_ms: u32, mean_bytes: u64) -> String {
        let (text, rates) = (String::new(), [None, None]);
        let mut bounded = Bounded { text, runtime_ms, mean_bytes, rates, job: None };
        let text = String::from_utf8_lossy(&self.bytes);
        let mut is_mix = file.jobs.iter().map(|job| job.reads_data() && job.changes_data());
        for line in text.lines() {
            let line = line.split([';', '#']).next().unwrap_or("").trim();
            if line == "[global]" {
                bounded.end_job();
                bounded.text.push_str("[global]\n");
            } else if line.starts_with('[') {
                bounded.end_job();
                bounded.job = is_mix.next();
                bounded.text.push_str(&format!("{line}\n"));
            } else {
                let (word, value) =
                    line.split_once('=').map_or((line, None), |(word, value)| (word, Some(value)));
                let value = value.map(|value| expanded(value.trim(), self));
                bounded.line(word.trim(), value.as_deref());
            }
        }
        bounded.end_job();
        bounded.text
    }
}

/// A copy while it is made.
struct Bounded {
    text: String,
    runtime_ms: u32,
    mean_bytes: u64,
    /// The last rate of global sections and of the job's own, as a word and its value.
    rates: [Option<(String, String)>; 2],
    /// True if the section is of a mix of reads and writes; `None` if it is not of a job.
    job: Option<bool>,
}

impl Bounded {
    fn line(&mut self, word: &str, value: Option<&str>) {
        if word == "rate" || word == "rate_iops" {
            let own = usize::from(self.job.is_some());
            self.rates[own] = Some((word.to_owned(), value.unwrap_or_default().to_owned()));
        } else if SHAPES.contains(&word) || word == "zoneskip" {
            let value = value.map(|value| format!("={value}"));
            self.text.push_str(&format!("{word}{}\n", value.unwrap_or_default()));
        }
    }

    /// Ends a job's section with its bounds.
    fn end_job(&mut self) {
        let Some(is_mix) = self.job.take() else { return };
        let (own, runtime_ms) = (self.rates[1].take(), self.runtime_ms);
        let rate = own.as_ref().or(self.rates[0].as_ref()).filter(|_| is_mix);
        if let Some(line) = rate.and_then(|(word, value)| scaled(word, value, self.mean_bytes)) {
            self.text.push_str(&line);
        }
        self.text.push_str(&format!(
            "ioengine=null\nsize=64g\ntime_based\nruntime={runtime_ms}ms\nrandrepeat=0\n\
             norandommap\nzero_buffers\n"
        ));
    }
}

/// Rates in their proportion, but fast.
fn scaled(word: &str, value: &str, mean_bytes: u64) -> Option<String> {
    let (number, all): (fn(&str) -> Option<u64>, u64) = match word {
        "rate" => (|text| size_bytes(text).ok(), RATED_IOPS * mean_bytes),
        _ => (|text| text.parse().ok(), RATED_IOPS),
    };
    let rates: Vec<Option<u64>> = value.split(',').map(|part| number(part.trim())).collect();
    let sum: u64 = rates.iter().flatten().sum();
    let factor = all.checked_div(sum)?.max(1);
    let part = |rate: &Option<u64>| rate.map_or(String::new(), |rate| (rate * factor).to_string());
    Some(format!("{word}={}\n", rates.iter().map(part).collect::<Vec<_>>().join(",")))
}

/// A value with its variables replaced.
fn expanded(value: &str, case: &Case) -> String {
    let (mut text, mut rest) = (String::new(), value);
    while let Some((before, (name, after))) =
        rest.split_once("${").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        text.push_str(before);
        text.push_str(&case.variable(name).unwrap_or_default());
        rest = after;
    }
    text + rest
}

/// Runs jobs on a drive that does nothing.
fn run(file: &JobFile, interrupt: Interrupt) -> Result<Value, String> {
    let opened = open(&"null:size=8t".parse().map_err(|text| format!("{text}"))?, 16);
    let driver = opened.map_err(|error| error.to_string())?.driver;
    let threads: u32 = file.jobs.iter().map(|job| job.numjobs()).sum();
    let config = DiskConfig { io_threads: threads as u16, ..DiskConfig::<Native>::default() };
    let disk = Disk::new(driver, config).map_err(|error| error.to_string())?;
    let volume = Volume::new("v", Layout::Linear, vec![disk]).map_err(|error| error.to_string())?;
    let volumes = vec![vec![volume]; file.jobs.len()];
    let setting = JobSetting { interrupt, ..JobSetting::default() };
    let (reports, failed) =
        run_jobs(file, &volumes, &setting, &mut |_, _| ()).map_err(|error| error.to_string())?;
    match failed {
        Some(error) => Err(error.to_string()),
        None => Ok(report(file, &reports, JobDetail::Plain)),
    }
}

/// Returns the I/Os of each job of a report.
fn flows(report: &Value) -> Vec<Flows> {
    let of = |job: &Value| {
        ["read", "write", "trim"].map(|name| {
            let number = |key: &str| job[name][key].as_u64().unwrap_or(0);
            (number("total_ios"), number("io_bytes"))
        })
    };
    report["jobs"].as_array().map(|jobs| jobs.iter().map(of).collect()).unwrap_or_default()
}

/// Returns the largest difference between two mixes, in percent, and the property that differs:
/// shares of I/Os in percent of all I/Os, mean sizes in percent of fio's.
fn difference(fio: &Flows, ours: &Flows) -> (f64, String) {
    let total = |flows: &Flows| flows.iter().map(|(ios, _)| *ios).sum::<u64>().max(1) as f64;
    let mut most = (0.0, String::new());
    for (name, (theirs, mine)) in ["reads", "writes", "trims"].iter().zip(fio.iter().zip(ours)) {
        let (share, own) = (theirs.0 as f64 / total(fio), mine.0 as f64 / total(ours));
        let mean = |(ios, bytes): (u64, u64)| bytes as f64 / ios.max(1) as f64;
        let shares = ((share - own).abs(), format!("{name}: {share:.4} of I/Os, {own:.4} here"));
        // Of a direction that has next to no I/Os, the mean says nothing.
        let has_both = share.min(own) > 0.001;
        let (size, own) = (mean(*theirs), mean(*mine));
        let apart = if has_both { (own / size - 1.0).abs() } else { 0.0 };
        let sizes = (apart, format!("{name}: {size:.0} bytes in the mean, {own:.0} here"));
        for (apart, text) in [shares, sizes] {
            if apart * 100.0 > most.0 {
                most = (apart * 100.0, text);
            }
        }
    }
    most
}

/// The largest difference between the mixes of any job.
fn compare(case: &Case, file: &JobFile, dir: &Path) -> Outcome<(f64, String)> {
    let (mut most, mut mean_bytes) = ((0.0, String::new()), 32 << 10);
    for runtime_ms in RUNTIMES_MS {
        let (job, out) = (dir.join("bounded.fio"), dir.join("fio.json"));
        let text = case.bounded(file, runtime_ms, mean_bytes);
        std::fs::write(&job, &text)?;
        let mut fio = Command::new("fio");
        fio.current_dir(dir).args(["--output-format=json", "--output"]).arg(&out).arg(&job);
        let output = fio.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let found = std::fs::read_to_string(&out)?;
        let found: Value = serde_json::from_str(&found[found.find('{').unwrap_or(0)..])?;
        let copy = JobFile::parse("bounded", text.as_bytes(), case)?;
        let (fio, ours) = (flows(&found), flows(&run(&copy, Interrupt::default())?));
        if fio.len() != ours.len() {
            return Err(format!("{} jobs of fio's, {} here", fio.len(), ours.len()).into());
        }
        let all = fio.iter().zip(&ours).map(|(fio, ours)| difference(fio, ours));
        most = all.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default();
        if most.0 <= CLOSE {
            break;
        }
        let sum = |of: fn(&(u64, u64)) -> u64| fio.iter().flatten().map(of).sum::<u64>();
        mean_bytes = sum(|flow| flow.1) / sum(|flow| flow.0).max(1);
    }
    Ok(most)
}

/// Files that fio takes, that millrace takes, that both take, and of these with equal mixes.
#[derive(Default)]
struct Counts {
    files: usize,
    fio: usize,
    millrace: usize,
    both: usize,
    equal: usize,
}

fn all(folder: &Path) -> Outcome<String> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| format!("{error}\n{USAGE}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "fio") {
            files.push(path);
        }
    }
    files.sort_unstable();
    let dir = tempfile::tempdir()?;
    let mut counts = Counts::default();
    for path in files {
        let case = Case::read(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (fio, ours) = (case.fio()?, case.millrace());
        counts.files += 1;
        counts.fio += usize::from(fio.is_none());
        counts.millrace += usize::from(ours.is_ok());
        let said = |refused: Option<&String>| {
            refused.map_or("takes it".to_owned(), |reason| format!("refuses it ({reason})"))
        };
        let mut line = format!("{name}: fio {}", said(fio.as_ref()));
        line.push_str(&format!("; millrace {}", said(ours.as_ref().err())));
        if let (None, Ok(file)) = (&fio, &ours) {
            counts.both += 1;
            match compare(&case, file, dir.path()) {
                Ok((percent, what)) => {
                    counts.equal += usize::from(percent <= CLOSE);
                    line.push_str(&format!("; mixes differ by {percent:.2} %"));
                    if percent > CLOSE {
                        line.push_str(&format!(" ({what})"));
                    }
                }
                Err(error) => line.push_str(&format!("; not compared: {error}")),
            }
        }
        println!("{line}");
    }
    let Counts { files, fio, millrace, both, equal } = counts;
    Ok(format!(
        "{files} files: fio takes {fio}, millrace {millrace}, both {both}; of these {equal} have \
         mixes within {CLOSE} %"
    ))
}

fn main() -> ExitCode {
    let folder = std::env::args_os().nth(1).unwrap_or_default();
    match all(Path::new(&folder)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
