//! `millrace-lab bench`: measures workloads on drives or against a server.
//!
//! The arguments become a list of configurations (plan.rs). Each configuration is measured on a
//! volume of its own, on a simulated machine (machine.rs) or against a server (connect.rs). Results
//! are printed at the end as tables (table.rs, states.rs, row_locks.rs) or JSON. Other modules
//! measure for `--client` (contention.rs), `--vm` (vm.rs), `--jobfile` (jobfile.rs), `--program`
//! (program.rs), `--calibrate` (calibration.rs) and `--beside` (beside.rs). Ctrl-C ends the current
//! measurement, and the results so far are printed.

mod args;
mod beside;
mod beside_args;
mod calibration;
pub mod connect;
mod contention;
mod jobfile;
mod jobfile_args;
mod linux24;
mod machine;
mod plan;
mod program;
mod program_args;
mod row_flags;
mod row_locks;
mod states;
pub mod table;
#[cfg(test)]
mod test_args;
mod vm;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use millrace::{
    CacheMode, CacheStats, Volume, Words, build_volume, cache_over, drive_device, volume_device,
};
use millrace_block::TraceStamp;
use millrace_block::baseline::Stack;
use millrace_console::{Form, shell_word};
use millrace_experiments::{Interrupt, Queues, Row};
use millrace_runtime::{CacheFlusher, Recorded, Recorder, RecorderConfig};
use serde::Serialize;

pub use args::{BenchArgs, with_short_help};

use super::drive_notes::DriveNotes;
use super::interrupt::{self, INTERRUPTED};
use plan::RowPlan;

/// Runs the verb. The exit code is 0 if every I/O of every row succeeded, 1 if some failed.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    args.check_needs()?;
    if !args.contend.client.is_empty() {
        return contention::run(args);
    }
    let interrupt = interrupt::on_ctrl_c()?;
    if let Some(name) = &args.jobfile.jobfile {
        return jobfile::run(args, name, &interrupt);
    }
    if !args.program.program.is_empty() {
        return program::run(args, &interrupt);
    }
    if let Some(drive) = &args.calibrate.calibrate {
        return calibration::run(args, drive, &interrupt);
    }
    if !args.vm.vm.is_empty() {
        return vm::run(args, &interrupt);
    }
    if !args.beside.beside.is_empty() {
        return beside::run(args, &interrupt);
    }
    let (mut rows, ended) = match args.machine.machine.is_some() || args.machine.locks {
        true => (machine::rows(args, &interrupt)?, Ok(())),
        false => native_rows(args, &interrupt)?,
    };
    match ended {
        Err(error) if rows.is_empty() && interrupt.is_set() => {
            millrace_console::tell!("interrupted before anything was measured: {error:#}");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        Err(error) if rows.is_empty() => return Err(error),
        _ => {}
    }
    if !args.serving.states {
        rows.iter_mut().for_each(|row| row.outcome.states.clear());
    }
    let failed = print(args, &rows)?;
    if !interrupt.is_set() {
        ended.context("the report above covers the rows before this error")?;
    }
    Ok(interrupt::exit_code(&interrupt, failed.into()))
}

/// Runs the rows one after another on this machine. Returns the rows, and the error that ended them
/// early.
fn native_rows(args: &BenchArgs, interrupt: &Interrupt) -> Result<(Vec<Row>, Result<()>)> {
    let plans = plan::rows(args)?;
    if let Some(server) = &args.target.connect {
        server.check_wait(args.target.wait)?;
    }
    check_rows(args.trace.trace.as_deref(), plans.len())?;
    let writer = plans.iter().map(|plan| plan.plan.workload.rw).find(|rw| rw.writes());
    check_overwrite(args, writer.map(|rw| format!("rw={rw}")))?;
    let mut rows: Vec<Row> = Vec::new();
    let mut bar = millrace_console::ProgressBar::new(plans.len());
    let (mut notes, mut ended) = (Vec::new(), Ok(()));
    for (index, plan) in plans.iter().enumerate() {
        if interrupt.is_set() {
            break;
        }
        let mut plan = plan.clone();
        plan.plan.interrupt = interrupt.clone();
        bar.keep_in_flight(u64::from(plan.plan.jobs) * u64::from(plan.plan.workload.iodepth));
        let mut progress = |fraction, ios| {
            bar.count(ios);
            bar.show(index, &plan.label(), fraction);
        };
        let row = match &args.target.connect {
            Some(server) => server.run(args.target.wait, &plan.plan, &mut progress),
            None => run_drives(&plan, args, &mut notes, &mut progress),
        };
        match row {
            Ok(row) => rows.push(row),
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    bar.clear();
    notes.dedup();
    // Cut off the key `layout` at the end of a note, because `bench` has no such key.
    let without_key = |note: &String| note.split("; layout = ").next().unwrap_or(note).to_owned();
    notes.iter().map(without_key).for_each(|note| millrace_console::tell!("note: {note}"));
    Ok((rows, ended))
}

/// Refuses a writing workload (`writer`) on a target that is not known to be empty.
fn check_overwrite(args: &BenchArgs, writer: Option<String>) -> Result<()> {
    let Some(writer) = writer.filter(|_| !args.target.overwrite) else { return Ok(()) };
    let drives = args.target.drives()?;
    interrupt::waiting(|| match &args.target.connect {
        Some(server) => server.check_empty(&writer),
        None => Ok(millrace_experiments::check_drives(&drives, &writer)?),
    })
}

/// Prints the rows; returns true if an I/O failed.
fn print(args: &BenchArgs, rows: &[Row]) -> Result<bool> {
    if args.json() {
        say_json(rows)?;
    } else {
        let form = if args.workload.extended { Form::Whole } else { Form::Short };
        millrace_console::say(&format!("{}\n", table::table(rows, form)));
        let states = rows.iter().filter_map(|row| states::states(row, form));
        let locks = rows.iter().filter_map(|row| row_locks::locks(row, form));
        states.chain(locks).for_each(|text| millrace_console::say(&format!("\n{text}\n")));
    }
    for row in rows.iter().filter(|row| row.outcome.errors > 0) {
        let first = row.outcome.first_error.as_deref().unwrap_or("no detail");
        millrace_console::tell!(
            "{} errors ({} {} bs={}): {first}",
            row.outcome.errors,
            row.queues.stack,
            row.rw,
            row.bs
        );
    }
    Ok(rows.iter().any(|row| row.outcome.errors > 0))
}

fn say_json(result: &(impl Serialize + ?Sized)) -> Result<()> {
    let text = serde_json::to_string_pretty(result).context("the result as JSON")?;
    millrace_console::say(&format!("{text}\n"));
    Ok(())
}

fn record(name: &Path, stamp: TraceStamp, volume: &Arc<Volume>) -> Result<Recorder> {
    let Some(tracer) = volume.tracer() else { bail!("--trace: these drives cannot be traced") };
    let names: Vec<&str> = volume.disks().iter().map(|disk| disk.name()).collect();
    Recorder::start(&tracer, &[Arc::clone(volume)], recording(name, stamp, &names))
        .with_context(|| format!("--trace {}", name.display()))
}

fn recording(name: &Path, stamp: TraceStamp, drives: &[&str]) -> RecorderConfig {
    let devices = || (0..drives.len() as u32).map(drive_device);
    RecorderConfig {
        name: name.to_owned(),
        volumes: devices().map(|drive| (drive, volume_device(0))).collect(),
        names: BTreeMap::from([(0, "bench".to_owned())]),
        devices: devices()
            .zip(drives.iter().map(|&name| name.to_owned()))
            .chain((drives.len() > 1).then(|| (volume_device(0), "bench".to_owned())))
            .collect(),
        stamp,
        ..RecorderConfig::default()
    }
}

/// Refuses to record several rows, which would write the same files.
fn check_rows(trace: Option<&Path>, rows: usize) -> Result<()> {
    if trace.is_some() && rows > 1 {
        bail!("--trace: {rows} rows; select one, for example with --stack mq --iodepth 32");
    }
    Ok(())
}

fn recorded(recorded: &Recorded) -> String {
    let Recorded { events, dropped, files } = recorded;
    let name = files
        .first()
        .map_or_else(String::new, |file| file.with_extension("").display().to_string());
    let name = name.trim_end_matches(".blktrace").to_owned();
    let lost = match dropped {
        0 => String::new(),
        _ => format!(", {dropped} dropped: use a larger --trace-ring"),
    };
    let name = shell_word(&name);
    format!("{events} events recorded{lost}; see them with millrace trace spans {name}")
}

/// Runs one row on drives that are opened for it, so that its counters start at zero.
fn run_drives(
    plan: &RowPlan,
    args: &BenchArgs,
    notes: &mut Vec<String>,
    progress: &mut dyn FnMut(f64, u64),
) -> Result<Row> {
    let Ok(io_threads) = u16::try_from(plan.plan.jobs) else {
        bail!("--numjobs {}: at most 65535", plan.plan.jobs)
    };
    let threads = io_threads.saturating_add(u16::from(args.target.cache.is_some()));
    let options = plan.volume_options(args, threads)?;
    let (volume, mut remarks) =
        build_volume("bench", args.target.layout(), &args.target.drives()?, &options)?;
    notes.append(&mut remarks);
    let _news = DriveNotes::of([&volume]);
    let cached = args.target.cache.map(|cache| cache_over(Arc::clone(&volume), cache, io_threads));
    let (volume, cache) = match cached.transpose()? {
        Some((over, cache)) => (over, Some(cache)),
        None => (volume, None),
    };
    let mut flusher = cache
        .as_ref()
        .map(|cache| CacheFlusher::start(cache, io_threads, plan.plan.reactor))
        .transpose()?;
    let record = |name| record(name, args.trace.trace_stamp, &volume);
    let recorder = args.trace.trace.as_deref().map(record).transpose()?;
    if args.target.virtqueue {
        let mut row = millrace_experiments::run_virtqueue_row(&volume, &plan.plan, progress)?;
        row.drives = drive_names(args)?;
        if plan.stack != Stack::Mq {
            row.queues.stack = format!("virtqueue-{}", plan.stack.word());
        }
        return Ok(row);
    }
    let mut row = millrace_experiments::run_row(&volume, &plan.plan, progress)?;
    if let (Some(flusher), Some(cache)) = (&mut flusher, &cache) {
        flusher.stop()?;
        notes.push(cache_note(&cache.stats()));
    }
    if let Some(recorder) = recorder {
        notes.push(recorded(&recorder.stop()?));
    }
    row.queues = Queues {
        stack: plan.stack.word().to_owned(),
        scheduler: plan.scheduler.word().to_owned(),
        software_queues: plan.software_queues.word().to_owned(),
        hardware_queues: plan.hardware_queues.word().to_owned(),
        cpus: plan.cpus,
        ..row.queues
    };
    row.drives = drive_names(args)?;
    Ok(row)
}

fn cache_note(stats: &CacheStats) -> String {
    let CacheStats { read_hits, read_misses, read_ahead, written, overwritten, .. } = stats;
    let CacheStats { page_bytes, written_back, write_requests, dirty, throttled, .. } = stats;
    let page_kib = page_bytes >> 10;
    let each = match write_requests {
        0 => String::new(),
        _ => format!(", {} KiB a request", written_back * page_kib / write_requests),
    };
    format!(
        "cache, in pages of {page_kib} KiB: {read_hits} reads hit, {read_misses} missed, {read_ahead} read \
         ahead; {written} written, {overwritten} of them over dirty ones; {written_back} written \
         back{each}; {dirty} still dirty; {throttled} writes held back"
    )
}

fn drive_names(args: &BenchArgs) -> Result<String> {
    let drives = args.target.drives()?.iter().map(ToString::to_string).collect::<Vec<_>>();
    let cache = args.target.cache.map_or_else(String::new, |cache| {
        let mode = if cache.mode == CacheMode::WriteBack { "write-back" } else { "write-through" };
        format!(" behind a {mode} cache of {} bytes", cache.size_bytes)
    });
    Ok(drives.join("+") + &cache)
}
