//! `millrace-lab replay`: sends the I/Os of a trace again, and prints the results.
//!
//! The arguments become settings, and lanes: the volumes or servers that receive the I/Os
//! (target.rs). With `--fit scale`, the trace may first be read once to find its extent. The replay
//! itself (`replay` of millrace-experiments) runs with a progress bar, and then a report is printed
//! (table.rs). Ctrl-C ends the replay, and the I/Os so far are reported.

mod args;
mod table;
mod target;
mod trace_progress;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use millrace_experiments::Interrupt;
use millrace_experiments::replay::{
    Addresses, Destination, Fit, IODEPTH_AFAP, IODEPTH_TIMED, ReplayProgress, Report, Routes,
    Settings, StopReason, VHOST_IODEPTH_MAX, extents, replay, replay_simulated,
};
use millrace_experiments::simulation::machine;
use millrace_experiments::trace::{AnySource, TracePath, open};

pub use args::ReplayArgs;

use super::drive_notes::DriveNotes;
use super::interrupt::{self, INTERRUPTED};
use args::Speed;
use millrace_console::{ProgressBar, ReadDamage};
use target::Lanes;
use trace_progress::{TraceProgress, TrackedTrace};

/// Runs the verb. The exit code is 0 if every I/O succeeded. If an I/O failed, or could not be read
/// from the trace, the exit code is 1. After Ctrl-C, the exit code is 130.
pub fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let (lanes, routes) = target::lanes(&args.to, &args.map, &args.stripe)?;
    check(args, &lanes)?;
    let interrupt = interrupt::on_ctrl_c()?;
    let traces: Vec<TracePath> = args.traces.iter().map(|name| name.as_str().into()).collect();
    let (addresses, ios) = interrupt::waiting(|| addresses(args, &traces, &routes, lanes.len()))?;
    let settings = Settings { routes, addresses, ..settings(args, &lanes, &interrupt) };
    let source = interrupt::waiting(|| open(&traces, args.format))?;
    let head = table::Head {
        traces: args.traces.join(" "),
        format: source.format().to_string(),
        machine: args.machine.clone(),
    };
    let watch = Arc::new(TraceProgress::default());
    let source = TrackedTrace::new(source, &watch);
    let report = match (&args.machine, &lanes) {
        (Some(name), Lanes::Drives(volumes)) => {
            let model = machine(name).context("--machine")?;
            let mut bar = ProgressBar::new(1);
            bar.show(0, name, 0.0);
            let report = replay_simulated(source, &model, volumes, &settings);
            bar.clear();
            report?
        }
        _ => {
            let total = [ios, settings.limit].into_iter().flatten().min();
            let run = NativeReplay { args, lanes: &lanes, settings: &settings, total };
            run.carry_out(source, &watch)?
        }
    };
    let notes = watch.known().notes.clone();
    notes.iter().for_each(|note| millrace_console::tell!("note: {note}"));
    if let Some((missing, has)) = watch.missing(args.map.iter().map(|map| map.device.as_str())) {
        let (missing, has) = (missing.join(" "), has.join(" "));
        millrace_console::tell!(
            "note: --map {missing}: the trace has no such device; its devices: {has}"
        );
    }
    if report.counts.traced_ios == 0 && report.stopped.is_none() {
        millrace_console::tell!(
            "note: {}: no line could be read as an I/O in the format {}",
            head.traces,
            head.format
        );
    }
    let damage = ReadDamage::tell(watch.known().damage.clone());
    let ended = finish(args, &head, &report, [&notes, damage.lines()])?;
    Ok(if ended == ExitCode::SUCCESS { damage.exit_code() } else { ended })
}

/// Prints the report and returns the exit code. `said` has the notes on the trace, and the damage
/// found in the trace, for the JSON report.
fn finish(
    args: &ReplayArgs,
    head: &table::Head,
    report: &Report,
    said: [&[String]; 2],
) -> Result<ExitCode> {
    match &report.stopped {
        Some(StopReason::Trace(text)) if report.counts.traced_ios == 0 => bail!("{text}"),
        Some(StopReason::Target(text)) if report.counts.ios == 0 => bail!("{text}"),
        Some(StopReason::Undecided(text)) if report.counts.ios == 0 => {
            bail!("trace {}: {text}", head.traces)
        }
        _ => {}
    }
    let text = match args.json {
        true => table::json(head, report, said)?,
        false => table::text(head, report),
    };
    millrace_console::say(&format!("{text}\n"));
    if let Some(StopReason::Trace(text) | StopReason::Target(text)) = &report.stopped {
        bail!("{text}; the report above covers the I/Os completed so far");
    }
    if let Some(StopReason::Undecided(text)) = &report.stopped {
        bail!("trace {}: {text}; the report above covers the I/Os completed so far", head.traces);
    }
    if report.counts.errors > 0 {
        let first = report.counts.first_error.as_deref().unwrap_or("no detail");
        millrace_console::tell!("{} I/Os failed: {first}", report.counts.errors);
    }
    if report.stopped == Some(StopReason::Interrupted) {
        millrace_console::tell!("interrupted: the report above covers the I/Os completed so far");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::from(u8::from(report.counts.errors > 0)))
}

fn check(args: &ReplayArgs, lanes: &Lanes) -> Result<()> {
    let servers = !matches!(lanes, Lanes::Drives(_));
    if args.machine.is_some() && servers {
        bail!("--machine: a simulated machine has drives but no servers; use null, ram or model");
    }
    if args.trace_size.is_some() && args.fit != Some(Fit::Scale) {
        bail!("--trace-size: only --fit scale needs the size of the traced device");
    }
    if let (Lanes::Vhost(_), Some(iodepth)) = (lanes, args.iodepth)
        && iodepth > VHOST_IODEPTH_MAX
    {
        bail!("--iodepth {iodepth}: vhost-user allows at most {VHOST_IODEPTH_MAX} in flight");
    }
    Ok(())
}

fn settings(args: &ReplayArgs, lanes: &Lanes, interrupt: &Interrupt) -> Settings {
    let (speed, usual) = match args.speed {
        Speed::Factor(factor) => (Some(factor), IODEPTH_TIMED),
        Speed::Afap => (None, IODEPTH_AFAP),
    };
    let most = match lanes {
        Lanes::Vhost(_) => VHOST_IODEPTH_MAX,
        _ => u32::MAX,
    };
    Settings {
        speed,
        iodepth: args.iodepth.unwrap_or(usual).min(most),
        runtime: args.runtime,
        limit: args.limit,
        seed: args.seed,
        interrupt: interrupt.clone(),
        routes: Routes::default(),
        addresses: Addresses::default(),
    }
}

/// Returns the settings for `--fit`. If the trace had to be read to find its extent, also returns
/// its number of I/Os.
fn addresses(
    args: &ReplayArgs,
    traces: &[TracePath],
    routes: &Routes,
    lanes: usize,
) -> Result<(Addresses, Option<u64>)> {
    let mut addresses =
        Addresses { fit: args.fit, extents_bytes: Vec::new(), overwrite: args.overwrite };
    if args.fit != Some(Fit::Scale) {
        return Ok((addresses, None));
    }
    if let Some(bytes) = args.trace_size {
        addresses.extents_bytes = vec![bytes; lanes];
        return Ok((addresses, None));
    }
    let is_pipe = |trace: &TracePath| match trace {
        TracePath::Stdin => true,
        TracePath::Named(path) => path.metadata().is_ok_and(|metadata| !metadata.is_file()),
    };
    if let Some(trace) = traces.iter().find(|trace| is_pipe(trace)) {
        bail!(
            "--fit scale: {trace} can be read only once, and the trace's extent is not known \
             before its end; add --trace-size SIZE, the size of the traced device"
        );
    }
    let found = extents(open(traces, args.format)?, routes, lanes)?;
    addresses.extents_bytes = found.bytes;
    Ok((addresses, Some(found.ios)))
}

/// A replay on drives of this machine, or on servers.
struct NativeReplay<'a> {
    args: &'a ReplayArgs,
    lanes: &'a Lanes,
    settings: &'a Settings,
    /// Number of I/Os after which the replay ends, if known.
    total: Option<u64>,
}

impl NativeReplay<'_> {
    fn carry_out(&self, source: TrackedTrace<AnySource>, watch: &TraceProgress) -> Result<Report> {
        let NativeReplay { args, lanes, settings, total } = self;
        let mut bar = ProgressBar::new(1);
        // `progress` is first called after the replay has connected to its servers. Until then,
        // Ctrl-C ends the program at once.
        interrupt::begin_wait();
        let mut progress = |standing: &ReplayProgress| {
            interrupt::end_wait();
            let of_ios = total.map_or(0.0, |total| standing.ios as f64 / total.max(1) as f64);
            let of_time = settings
                .runtime
                .map_or(0.0, |runtime| standing.elapsed_ns as f64 / runtime.as_nanos() as f64);
            let fraction = of_ios.max(of_time).max(watch.known().progress).min(1.0);
            let (seconds, trace) =
                (standing.elapsed_ns as f64 / 1e9, standing.trace_ns as f64 / 1e9);
            bar.show(
                0,
                &format!("{} I/Os in {seconds:.0} s, at {trace:.0} s of the trace", standing.ios),
                fraction,
            );
        };
        let (volumes, _news);
        let destination = match lanes {
            Lanes::Drives(specs) => {
                let (built, notes) = target::build(specs, args)?;
                notes.iter().for_each(|note| millrace_console::tell!("note: {note}"));
                _news = DriveNotes::of(built.iter().map(|one| &one.volume));
                volumes = built;
                Destination::Volumes(&volumes)
            }
            Lanes::Nbd(uris) => Destination::Nbd(uris),
            Lanes::Vhost(paths) => Destination::Vhost(paths),
        };
        let report = replay(source, &destination, settings, &mut progress);
        interrupt::end_wait();
        bar.clear();
        Ok(report?)
    }
}
