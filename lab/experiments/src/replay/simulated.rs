//! A replay on a simulated machine, in that machine's time.
//!
//! The engine runs on CPU 0 of the simulated machine. The engine submits I/Os through the
//! production block layer to drives whose code runs on real and simulated machines. The engine's
//! thread also reads the trace, which takes no virtual time. Workers of drives run on the other
//! CPUs. Equal traces, drives, machines and seeds give a bit-identical report. The verb `replay`
//! calls this file.

use std::sync::Arc;

use millrace_block::{Disk, DiskConfig, Layout, Serving, ServingConfig, Volume};
use millrace_drives::{Spec, open_on};
use millrace_machine::{CpuId, Machine};
use millrace_runtime::{WorkerCpus, worker_cpus};
use millrace_simulator::{Model, Simulated};

use super::engine::Engine;
use super::feed::Inline;
use super::lane::Target;
use super::route::Router;
use super::volumes::Volumes;
use super::{ReplayProgress, Report, Settings};
use crate::load::bench::BenchError;
use crate::load::overwrite::DiskContents;
use crate::load::sleeper::BellSleeper;
use crate::load::threads::simulate;
use crate::simulation::Workers;
use crate::trace::TraceSource;

/// A volume on a simulated machine, to which devices of a trace are mapped.
#[derive(Debug, Clone)]
pub struct SimulatedVolume {
    /// Name of the volume, for reports and errors.
    pub name: String,
    /// Drives of the volume. Only kinds of drives that run on a simulated machine are allowed.
    pub drives: Vec<Spec>,
    /// Layout that joins the drives into a volume.
    pub layout: Layout,
    /// Serving mode of the volume, which determines the threads that serve the volume's drives.
    pub serving: Serving,
}

/// Replays a trace on volumes of a simulated machine.
///
/// # Errors
/// If a drive cannot be opened on a simulated machine, or if the simulation fails. Also in all
/// cases in which [`replay`](super::replay) returns an error.
pub fn replay_simulated<S>(
    source: S,
    model: &Model,
    volumes: &[SimulatedVolume],
    settings: &Settings,
) -> Result<Report, BenchError>
where
    S: TraceSource + Send + 'static,
{
    let (inner, volumes) = (settings.clone(), volumes.to_vec());
    let main = move || run(source, &volumes, &inner);
    // No time limit for the simulation, because a trace may last for years.
    Ok(simulate((model, settings.seed), (0, u64::MAX / 2), main)?.0)
}

fn run<S: TraceSource>(
    source: S,
    volumes: &[SimulatedVolume],
    settings: &Settings,
) -> Result<Report, BenchError> {
    let mut disks = Vec::new();
    let topology = Simulated::topology();
    let mut cpus = WorkerCpus::new(&worker_cpus(&topology, &[CpuId(0)]), &topology);
    let mut target = Volumes::<BellSleeper>::new(settings.seed)?;
    for of in volumes {
        let volume = volume_of(of, &mut cpus)?;
        disks.extend(volume.disks().iter().cloned());
        target.add((&of.name, &volume), DiskContents::Empty, settings.iodepth)?;
    }
    let mut feed = Inline(Router::new(source, target.lanes(), settings));
    let workers = Workers::start(&disks);
    let report = Engine::new(&mut target, &mut feed, settings).run(&mut |_: &ReplayProgress| ());
    workers.stop()?;
    Ok(report)
}

fn volume_of(
    of: &SimulatedVolume,
    cpus: &mut WorkerCpus,
) -> Result<Arc<Volume<Simulated>>, BenchError> {
    let mut disks = Vec::new();
    let has_workers = matches!(of.serving, Serving::PerDrive | Serving::Auto);
    for (index, spec) in of.drives.iter().enumerate() {
        let driver =
            open_on::<Simulated>(spec).map_err(|source| BenchError::drive(spec, &source))?;
        let worker = has_workers.then(|| cpus.next(None)).flatten();
        let config = DiskConfig { name: format!("d{index}"), worker, ..DiskConfig::default() };
        disks.push(Disk::new(driver, config)?);
    }
    let serving = ServingConfig::of(of.serving);
    Ok(Volume::with_serving("replay", of.layout, disks, serving)?)
}
