//! `bench --jobfile`: runs a job file of fio on drives of this program, and reports as fio does.
//!
//! This module reads included files and environment variables, opens the drives, and prints a table
//! or JSON at the end. millrace-experiments parses the job file and runs the jobs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use millrace::{
    DriveOptions, Native, Spec, Stack, Volume, VolumeOptions, build_volume, default_serving,
};
use millrace_console::words::MIB;
use millrace_console::{Form, ProgressBar, Side, WIDTH, counted, shortened};
use millrace_drives::{Advice, memory_bytes};
use millrace_experiments::Interrupt;
use millrace_experiments::load::jobfile::{
    Includes, JobDetail, JobFile, JobLine, JobReport, JobSetting, JobSpec, JobTimes, report,
    run_jobs,
};
use millrace_machine::Machine;
use millrace_random::SplitMix64;
use millrace_reactor::Config;

use super::args::BenchArgs;
use super::jobfile_args::OutputFormat;
use super::table::{Column, TimeUnit, column, columns_grid};
use crate::verbs::drive_notes::DriveNotes;
use crate::verbs::interrupt;

const NAME_WIDTH: usize = 16;
/// Number of bytes written at a time to a file that is created.
const LAID_BYTES: usize = 1 << 20;
/// Number of bytes of a job file that are read: one more than the limit, so that a longer file is
/// noticed.
const FILE_MAX: u64 = (1 << 20) + 1;

/// Runs the jobs. The exit code is 0 if every I/O succeeded, 1 if some failed, 130 after Ctrl-C.
pub fn run(args: &BenchArgs, name: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    let file = interrupt::waiting(|| read(name))?;
    let volumes = volumes(args, &file)?;
    if !file.ignored.is_empty() {
        millrace_console::tell!(
            "note: {}: options that have no effect here: {}",
            shown(name),
            file.ignored.join(", ")
        );
    }
    let reactor = Config { backend: args.target.backend, ..Config::default() };
    let on_files = args.target.drive.is_empty();
    let setting = JobSetting { reactor, on_files, interrupt: interrupt.clone() };
    let mut bar = ProgressBar::new(1);
    let label = shown(name);
    let news = DriveNotes::of(volumes.iter().flatten());
    let (reports, failed) = run_jobs(&file, &volumes, &setting, &mut |fraction, ios| {
        bar.count(ios);
        bar.show(0, &label, fraction);
    })?;
    drop(news);
    bar.clear();
    let detail = match args.jobfile.output_format {
        OutputFormat::JsonPlus => Some(JobDetail::Bins),
        _ => args.json().then_some(JobDetail::Plain),
    };
    let text = match detail {
        Some(detail) => serde_json::to_string_pretty(&report(&file, &reports, detail))?,
        None => table(&file, &reports),
    };
    millrace_console::say(&format!("{text}\n"));
    for one in reports.iter().filter(|report| report.errors() > 0) {
        let job = &file.jobs[one.job].name;
        let first = one.first_error().unwrap_or("no detail");
        millrace_console::tell!("job {job}: {} errors: {first}", one.errors());
    }
    if let Some(error) = &failed {
        millrace_console::tell!("millrace-lab: {error}; the remaining jobs did not run");
    }
    let has_errors = failed.is_some() || reports.iter().any(|report| report.errors() > 0);
    Ok(interrupt::exit_code(interrupt, has_errors.into()))
}

struct SystemInputs {
    /// Directory of the job file, the second place that is searched for included files.
    beside: PathBuf,
}

impl Includes for SystemInputs {
    fn file(&self, name: &str) -> std::io::Result<Vec<u8>> {
        match bytes_of(Path::new(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => bytes_of(&self.beside.join(name)),
            read => read,
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn system(&self, name: &str) -> u64 {
        match name {
            "ncpus" => Native::topology().cpus().len() as u64,
            "mb_memory" => memory_bytes().unwrap_or(0) >> 20,
            _ => rustix::param::page_size() as u64,
        }
    }
}

fn bytes_of(name: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match name.as_os_str() == "-" {
        true => std::io::stdin().lock().take(FILE_MAX).read_to_end(&mut bytes)?,
        false => std::fs::File::open(name)?.take(FILE_MAX).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

fn shown(name: &Path) -> String {
    if name.as_os_str() == "-" { "standard input".to_owned() } else { name.display().to_string() }
}

fn read(name: &Path) -> Result<JobFile> {
    let shown = shown(name);
    let bytes = bytes_of(name).with_context(|| format!("--jobfile {shown}: cannot read it"))?;
    let beside = name.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    Ok(JobFile::parse(&shown, &bytes, &SystemInputs { beside })?)
}

/// Returns the volumes of each job. With `--drive`, all jobs share one volume of all drives.
/// Otherwise, each file is a volume. A job without `filename` has a file for each of its clones.
/// Jobs share the volume of a file if their `FileAccess` is the same.
fn volumes(args: &BenchArgs, file: &JobFile) -> Result<Vec<Vec<Arc<Volume>>>> {
    let options = options(args, file)?;
    if !args.target.drive.is_empty() {
        let named = file.jobs.iter().any(|job| job.filename.is_some());
        if named {
            millrace_console::tell!(
                "note: filename is ignored, because --drive names the drives of the jobs"
            );
        }
        let writer = file.jobs.iter().find(|job| job.changes_data());
        super::check_overwrite(args, writer.map(writer_of))?;
        let volume = open(args, &args.target.drives()?, &options)?;
        return Ok(vec![vec![volume]; file.jobs.len()]);
    }
    let mut opened: BTreeMap<(String, FileAccess), Arc<Volume>> = BTreeMap::new();
    let mut volume_of = |job: &JobSpec, name: String| -> Result<Arc<Volume>> {
        let key = (name, FileAccess::of(job));
        if let Some(volume) = opened.get(&key) {
            return Ok(Arc::clone(volume));
        }
        let (name, access) = &key;
        let lock = match opened.keys().any(|(known, _)| known == name) {
            true => FileLock::Held,
            false => FileLock::Take,
        };
        if lock == FileLock::Take {
            check_overwrite(args, file, name)?;
            lay_out(file, name).with_context(|| format!("filename={name}"))?;
        }
        let drive = drive_of(file, name, *access, lock)?;
        let volume = open(args, &[drive], &options)?;
        opened.insert(key, Arc::clone(&volume));
        Ok(volume)
    };
    let of_job = |job: &JobSpec| {
        let files = if job.filename.is_some() { 1 } else { job.numjobs() };
        (0..files).map(|clone| volume_of(job, job.filename_of(clone))).collect()
    };
    file.jobs.iter().map(of_job).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileAccess {
    direct: bool,
    is_inline: bool,
}

impl FileAccess {
    fn of(job: &JobSpec) -> FileAccess {
        FileAccess { direct: job.access.direct, is_inline: job.is_inline() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileLock {
    Take,
    /// Do not lock the file, because another drive of this job file has locked it.
    Held,
}

fn users<'a>(file: &'a JobFile, name: &str) -> impl Iterator<Item = &'a JobSpec> + Clone {
    let uses = move |job: &&JobSpec| {
        let files = if job.filename.is_some() { 1 } else { job.numjobs() };
        (0..files).any(|clone| job.filename_of(clone) == name)
    };
    file.jobs.iter().filter(uses)
}

fn options(args: &BenchArgs, file: &JobFile) -> Result<VolumeOptions> {
    let queues = &args.queues;
    let one = |flag: &str, count: usize| match count {
        0 | 1 => Ok(()),
        _ => bail!("--jobfile: accepts one {flag}, not a list"),
    };
    one("--stack", queues.stack.len())?;
    one("--scheduler", queues.scheduler.len())?;
    one("--software-queues", queues.software_queues.len())?;
    one("--hardware-queues", queues.hardware_queues.len())?;
    one("--serving", args.serving.serving.len())?;
    super::plan::check_drives(args)?;
    let stack = queues.stack.first().copied().unwrap_or(Stack::Mq);
    let serving = args.serving.configs(default_serving(&vec![stack; args.target.drive.len()]))?;
    let spreads = (queues.software_queues[0], queues.hardware_queues[0]);
    super::plan::check_queues(stack, spreads, serving[0].serving)?;
    let worker_cpus = super::plan::worker_list(args, serving[0].serving)?;
    super::plan::check_workers(args, worker_cpus.len())?;
    let threads: u32 = file.jobs.iter().map(JobSpec::numjobs).sum();
    let drive = DriveOptions {
        stack,
        scheduler: queues.scheduler[0],
        software_queues: queues.software_queues[0],
        hardware_queues: queues.hardware_queues[0],
        ..DriveOptions::default()
    };
    Ok(VolumeOptions {
        drive,
        io_threads: u16::try_from(threads).context("--jobfile: more than 65535 jobs")?,
        groups: Vec::new(),
        controllers: args.target.controllers()?,
        serving: serving[0],
        worker_cpus,
        trace_ring: 0,
    })
}

/// Refuses to run jobs that write to a file, unless the file is empty or overwriting is allowed.
/// The check must come before `lay_out`, which fills an empty file with data for jobs that read.
fn check_overwrite(args: &BenchArgs, file: &JobFile, name: &str) -> Result<()> {
    let Some(writer) = users(file, name).find(|job| job.changes_data()) else { return Ok(()) };
    if args.target.overwrite {
        return Ok(());
    }
    let drive = Spec::from_pairs("file", [("path".to_owned(), name.to_owned())])?;
    Ok(millrace_experiments::check_drives(&[drive], &writer_of(writer))?)
}

fn writer_of(job: &JobSpec) -> String {
    format!("job {} ({})", job.name, job.place)
}

fn open(args: &BenchArgs, drives: &[Spec], options: &VolumeOptions) -> Result<Arc<Volume>> {
    let (volume, notes) = build_volume("bench", args.target.layout(), drives, options)?;
    notes.iter().for_each(|note| millrace_console::tell!("note: {note}"));
    Ok(volume)
}

/// Writes data to the end of a file until it has the size that its jobs read, as fio does. Reads of
/// blocks that were never written would not access the disk.
fn lay_out(file: &JobFile, name: &str) -> std::io::Result<()> {
    let jobs = || users(file, name);
    let wanted = jobs().filter_map(|job| job.file_bytes()).max().unwrap_or(0);
    let there = match std::fs::metadata(name) {
        Ok(found) if !found.is_file() => return Ok(()),
        Ok(found) => found.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    if there >= wanted || !jobs().any(JobSpec::reads_data) {
        return Ok(());
    }
    let bytes = wanted - there;
    millrace_console::tell!(
        "note: filename={name}: {bytes} bytes are written to it first, because its jobs read them"
    );
    let mut to = std::fs::OpenOptions::new().append(true).create(true).open(name)?;
    let (mut random, mut piece) = (SplitMix64::new(bytes), vec![0; LAID_BYTES]);
    for word in piece.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_ne_bytes());
    }
    let mut left = bytes;
    while left > 0 {
        let len = left.min(LAID_BYTES as u64);
        to.write_all(&piece[..len as usize])?;
        left -= len;
    }
    to.sync_data()
}

/// Returns the drive for a file, which is created or extended to the size that its jobs need. A
/// file that is large enough is opened read-only if no job writes.
fn drive_of(file: &JobFile, name: &str, access: FileAccess, lock: FileLock) -> Result<Spec> {
    let jobs = || users(file, name);
    let wanted = jobs().filter_map(|job| job.file_bytes()).max();
    let found = match std::fs::metadata(name) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("filename={name}")),
    };
    if let Some(filler) = jobs().find(|job| job.fills_device())
        && found.as_ref().is_none_or(|found| found.is_file())
    {
        bail!(
            "{}: job {}: fill_device: {name} is no device, and would fill its file system; give size \
             instead",
            filler.place,
            filler.name
        );
    }
    let mut pairs = vec![("path".to_owned(), name.to_owned())];
    if !access.direct {
        pairs.push(("direct".to_owned(), "off".to_owned()));
        let alike = jobs().filter(|job| FileAccess::of(job) == access);
        let all = |advice| alike.clone().all(|job| job.advice() == advice);
        for (advice, text) in [(Advice::Random, "random"), (Advice::Sequential, "sequential")] {
            if all(advice) {
                pairs.push(("advice".to_owned(), text.to_owned()));
            }
        }
    }
    if access.is_inline {
        pairs.push(("aio".to_owned(), "inline".to_owned()));
    }
    if lock == FileLock::Held {
        pairs.push(("lock".to_owned(), "off".to_owned()));
    }
    match (found, wanted) {
        (None, None) => bail!("filename={name}: there is no such file; add size to create it"),
        (Some(found), Some(wanted)) if found.is_file() && found.len() < wanted => {
            pairs.push(("size".to_owned(), wanted.to_string()));
            pairs.push(("grow".to_owned(), "on".to_owned()));
        }
        (None, Some(wanted)) => pairs.push(("size".to_owned(), wanted.to_string())),
        _ if jobs().all(|job| !job.changes_data()) => {
            pairs.push(("read-only".to_owned(), "on".to_owned()));
        }
        _ => {}
    }
    Spec::from_pairs("file", pairs).with_context(|| format!("filename={name}"))
}

/// Columns to leave out, first to last, until the short form of the table fits 80 characters.
const LEAST: (Form, &[&str]) = (Form::Short, &["p50", "max", "MiB/s"]);

/// Formats the reports: a line for each kind of I/O of a job, and the result of verification.
fn table(file: &JobFile, reports: &[JobReport]) -> String {
    let (mut lines, mut percentiles): (Vec<JobLine>, String) = Default::default();
    for report in reports {
        let mut own = report.lines(file);
        percentiles.extend(own.iter().filter_map(percentile_line));
        own[0].job = match report.members {
            1 => shortened(&own[0].job, NAME_WIDTH),
            members => format!("{} x{members}", shortened(&own[0].job, NAME_WIDTH - 4)),
        };
        own[1..].iter_mut().for_each(|line| line.job.clear());
        lines.append(&mut own);
    }
    let grid = columns_grid(columns(&lines), &lines, LEAST);
    let verified = reports.iter().filter(|report| report.verified() > 0).map(|report| {
        let (name, blocks) = (&file.jobs[report.job].name, report.verified());
        format!("\n{name}: {} verified", counted(blocks as usize, "block"))
    });
    let depths = reports.iter().filter_map(|report| {
        let (name, (depth, has_ended)) = (&file.jobs[report.job].name, report.depth_found()?);
        let end = if has_ended {
            ""
        } else {
            ", and the job ended before the search for a depth was complete"
        };
        Some(format!("\n{name}: latency_target met up to iodepth={depth}{end}"))
    });
    let below: String = verified.chain(depths).collect();
    format!("{}{percentiles}{below}", grid.text())
}

fn percentile_line(line: &JobLine) -> Option<String> {
    let (least, most) = (line.percentiles.first()?.1, line.percentiles.last()?.1);
    let unit = TimeUnit::between(least, most);
    let mut text = format!("\n{} {}, clat in {}:", line.job, line.kind, unit.name());
    let mut width = text.chars().count() - 1;
    for (percent, ns) in &line.percentiles {
        let part = format!(" p{percent} {}", unit.text(*ns));
        if width + part.len() > WIDTH {
            text.push_str("\n ");
            width = 1;
        }
        width += part.len();
        text.push_str(&part);
    }
    Some(text)
}

fn columns(lines: &[JobLine]) -> Vec<Column<JobLine>> {
    let times = || lines.iter().filter(|line| line.ios > 0).map(|line| line.clat);
    let least = times().map(|clat| clat.p50).min().unwrap_or(0);
    let unit = TimeUnit::between(least, times().map(|clat| clat.p99).max().unwrap_or(0));
    let time = |name, of: fn(&JobTimes) -> u64| {
        let name = format!("{name} {}", unit.name());
        column(&name, Side::Right, move |line: &JobLine| unit.text(of(&line.clat)))
    };
    vec![
        column("job", Side::Left, |line: &JobLine| line.job.clone()),
        column("group", Side::Right, |line: &JobLine| line.group.to_string()),
        column("", Side::Left, |line: &JobLine| line.kind.to_owned()),
        column("I/Os", Side::Right, |line: &JobLine| line.ios.to_string()),
        column("IOPS", Side::Right, |line: &JobLine| format!("{:.0}", line.iops())),
        column("MiB/s", Side::Right, |line: &JobLine| format!("{:.1}", line.bytes_per_s() / MIB)),
        time("clat", |clat| clat.mean),
        time("p50", |clat| clat.p50),
        time("p99", |clat| clat.p99),
        time("max", |clat| clat.max),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bench::test_args::parse;

    #[test]
    fn flags_that_a_job_file_has_itself_are_refused() {
        for flag in
            ["--rw read", "--iodepth 4", "--machine x5690", "--connect nbd://h/n", "--locks"]
        {
            let error = parse(&format!("--jobfile a.fio {flag}")).unwrap_err().to_string();
            assert!(error.contains("cannot be used with"), "{error}");
        }
        let is_json = |words| parse(words).unwrap().json();
        assert!(is_json("--drive null --output-format json") && !is_json("--drive null"));
        let args = parse("--jobfile a.fio --output-format json+ --drive ram:size=1m").unwrap();
        assert_eq!(args.jobfile.output_format, OutputFormat::JsonPlus);
    }

    #[test]
    fn the_table_fits_80_columns_however_long_its_numbers_are() {
        let clat =
            JobTimes { mean: 9_999_999_999, p50: 1, p99: 9_999_999_999, max: 99_999_999_999 };
        let line = JobLine {
            job: "a".repeat(NAME_WIDTH),
            group: 4000,
            kind: "write",
            ios: 1 << 40,
            bytes: 1 << 52,
            runtime_ns: 100_000_000_000,
            clat,
            ..JobLine::default()
        };
        let lines = [line];
        let grid = columns_grid(columns(&lines), &lines, LEAST);
        assert!(grid.width() <= WIDTH);
    }

    #[test]
    fn percentiles_that_job_asks_for_are_printed_in_lines_that_fit() {
        let percentiles =
            (1..=20).map(|at| (f64::from(at) * 4.99, at as u64 * 1_000_000)).collect();
        let (job, kind) = ("j".to_owned(), "read");
        let text = percentile_line(&JobLine { job, kind, percentiles, ..JobLine::default() });
        let text = text.unwrap();
        assert!(text.starts_with("\nj read, clat in "), "{text}");
        assert!(text.contains(" p4.99 ") && text.contains(" p99.8"), "{text}");
        assert!(text.lines().count() > 3 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(percentile_line(&JobLine::default()), None);
    }

    #[test]
    fn what_rows_refuse_of_queues_is_refused_with_a_job_file_too() {
        let file = JobFile::parse("t", b"[j]\n", &SystemInputs { beside: PathBuf::new() }).unwrap();
        for (flags, expected) in [
            ("--chunk 4k", "--chunk 4k: a stripe needs several drives"),
            (
                "--serving per-drive",
                "--serving per-drive: only volumes of several drives have drive workers",
            ),
            ("--stack sq --software-queues one", "--software-queues one: only --stack mq"),
            ("--stack sq --hardware-queues one", "--hardware-queues one: --stack sq has one queue"),
            ("--stack raw --drive null --drive null --serving auto", "--serving"),
            ("--workers 0", "--workers: none of these rows has workers"),
        ] {
            let args = parse(&format!("--jobfile t {flags}")).unwrap();
            let error = options(&args, &file).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{flags}: {error}");
        }
        for flag in ["--cache 1m", "--seed 2", "--stamp io", "-x"] {
            assert!(parse(&format!("--jobfile a.fio {flag}")).is_err(), "{flag}");
        }
    }

    #[test]
    fn file_is_as_long_as_needed_and_read_only_for_readers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f").display().to_string();
        let file = |text: &str| {
            let outside = SystemInputs { beside: PathBuf::new() };
            let text = format!("[global]\nfilename={path}\ndirect=1\n{text}");
            JobFile::parse("t.fio", text.as_bytes(), &outside).unwrap()
        };
        let spec = |text: &str| {
            let file = file(text);
            let access = FileAccess::of(&file.jobs[0]);
            drive_of(&file, &path, access, FileLock::Take).map(|spec| spec.to_string())
        };
        let missing = spec("[a]\nrw=read").unwrap_err().to_string();
        assert!(missing.ends_with("there is no such file; add size to create it"), "{missing}");
        let made = spec("[a]\nsize=1m\n[b]\nsize=2m\noffset=1m").unwrap();
        assert_eq!(made, format!("file:path={path},aio=inline,size=3145728"));
        std::fs::write(&path, vec![0; 4096]).unwrap();
        assert_eq!(spec("[a]\nrw=write").unwrap(), format!("file:path={path},aio=inline"));
        let read = spec("[a]\nrw=read\niodepth=2").unwrap();
        assert_eq!(read, format!("file:path={path},read-only=on"));
        let cached = spec("[a]\nrw=write\nbuffered=1").unwrap();
        assert_eq!(cached, format!("file:path={path},direct=off,advice=sequential,aio=inline"));
        let ring = spec("[a]\nrw=randread\nbuffered=1\nioengine=io_uring\nfadvise_hint=0").unwrap();
        assert_eq!(ring, format!("file:path={path},direct=off,read-only=on"));
        let sync = spec("[a]\nrw=randwrite\nioengine=psync").unwrap();
        assert_eq!(sync, format!("file:path={path},aio=inline"));
        let filled = spec("[a]\nrw=write\nfill_device=1").unwrap_err().to_string();
        assert!(filled.starts_with("t.fio:4: job a: fill_device: "), "{filled}");
        let two = file("[a]\nrw=write\n[b]\nrw=read\nbuffered=1");
        let second = drive_of(&two, &path, FileAccess::of(&two.jobs[1]), FileLock::Held).unwrap();
        let expected = "direct=off,advice=sequential,aio=inline,lock=off";
        assert_eq!(second.to_string(), format!("file:path={path},{expected}"));
        let longer = spec("[a]\nsize=8k").unwrap();
        assert_eq!(longer, format!("file:path={path},aio=inline,size=8192,grow=on"));
    }
}
