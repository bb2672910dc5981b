//! Runs an experiment on a machine: creates groups, drives and threads, and collects the clients'
//! results.
//!
//! Callers use `contend_simulated` and `contend`; both call `run_on`. The implementations of
//! `ClientHost` cover the differences between a simulated machine and this one. A simulation
//! returns the volume together with the results, so that dropping the volume takes no virtual time.

use std::sync::Arc;

use millrace_block::{Channel, Disk, DiskConfig, Driver, Error, Groups, SchedulerKind, Volume};
use millrace_drives::{Spec, SpecError, Words, open, open_on};
use millrace_machine::Machine;
use millrace_runtime::IoContext;
use millrace_simulator::Model;

use super::client::{ClientTally, Contender, RunTimes};
use super::{ContentionPlan, ContentionReport};
use crate::load::bench::{BenchError, check_block_size, check_room};
use crate::load::drain_barrier::DrainBarrier;
use crate::load::sleeper::{BellSleeper, Sleeper};
use crate::load::threads::{ThreadGroup, simulate};

const GRACE_NS: u64 = 20_000_000_000;

/// Runs the clients of a plan on a simulated machine. Equal plans and models give bit-identical
/// results.
///
/// # Errors
/// If the plan does not fit the machine or the drives, or the simulation fails.
pub fn contend_simulated(
    model: &Model,
    plan: &ContentionPlan,
) -> Result<ContentionReport, BenchError> {
    plan.check(Some(model.cpus()))?;
    let mut inner = plan.clone();
    for (number, client) in inner.clients.iter_mut().enumerate() {
        client.cpu = Some(plan.cpu_of(number));
    }
    let main = move || run_on::<BellSleeper>(&inner, open_on);
    let limit_ns = plan.phases.warm_up_ns + plan.phases.length_ns + GRACE_NS;
    let ((mut contest, _volume), report) =
        simulate((model, plan.seed), (plan.cpu_of(0), limit_ns), main)?;
    contest.machine.clone_from(&model.name);
    contest.sim_events = Some(report.events);
    Ok(contest)
}

/// Runs an experiment on this machine. Creates a drive's file if the file does not exist and the
/// drive's spec has a size.
///
/// # Errors
/// If the plan does not fit the drives, or a drive or a thread cannot be set up.
pub fn contend(plan: &ContentionPlan) -> Result<ContentionReport, BenchError> {
    plan.check(None)?;
    let clients = plan.clients.len() as u16;
    let (mut contest, _) = run_on::<IoContext>(plan, |spec| Ok(open(spec, clients)?.driver))?;
    contest.machine = "native".into();
    Ok(contest)
}

fn wait<S: Sleeper>(
    sleeper: &mut S,
    channel: &mut Channel<S::Machine>,
    until_ns: u64,
) -> Result<(), Error> {
    let due_ns = channel.sleep_until().map_or(until_ns, |due_ns| due_ns.min(until_ns));
    if sleeper.sleep(due_ns, &|| channel.has_work())? {
        // Do the channel's periodic work if due. Otherwise `sleep_until` would keep returning a
        // time in the past, and the thread would never sleep.
        channel.tick();
    }
    Ok(())
}

/// The report, and the volume, which the caller drops after the measurement.
type RunResult<M> = (ContentionReport, Arc<Volume<M>>);

fn run_on<S: Sleeper + 'static>(
    plan: &ContentionPlan,
    open: impl Fn(&Spec) -> Result<Box<dyn Driver<S::Machine>>, SpecError>,
) -> Result<RunResult<S::Machine>, BenchError> {
    let groups = Groups::new();
    for config in &plan.groups {
        groups.open(config.clone())?;
    }
    let volume = volume_of(plan, &groups, open)?;
    for client in &plan.clients {
        let wrong = |error| BenchError::Workload(format!("client {}: {error}", client.name));
        check_block_size(client.bs_bytes, volume.limits().logical_block_size).map_err(wrong)?;
        check_room(client.bs_bytes, plan.clients.len() as u32, volume.capacity() << 9)
            .map_err(wrong)?;
    }
    let run = ContentionRun {
        volume: Arc::clone(&volume),
        plan: plan.clone(),
        barrier: DrainBarrier::new(plan.clients.len()),
        base_ns: S::Machine::now(),
    };
    let threads = ThreadGroup {
        name: "client",
        count: plan.clients.len() as u32,
        cpu_of: &|number| plan.clients[number as usize].cpu,
    };
    let serve = move |number| run.serve::<S>(number as usize);
    let (tallies, ()) = threads.run::<S::Machine, _, _>(serve, || ())?;
    let tallies = tallies.into_iter().collect::<Result<Vec<ClientTally>, Error>>()?;
    let mut contest = ContentionReport::new(plan, &tallies);
    contest.scheduler = plan.scheduler.word().into();
    Ok((contest, volume))
}

struct ContentionRun<M: Machine> {
    volume: Arc<Volume<M>>,
    plan: ContentionPlan,
    barrier: DrainBarrier,
    /// Start of the run, by the machine's clock.
    base_ns: u64,
}

impl<M: Machine> ContentionRun<M> {
    /// Runs a client on the calling thread.
    fn serve<S: Sleeper<Machine = M>>(&self, number: usize) -> Result<ClientTally, Error> {
        let ContentionRun { volume, plan, base_ns, .. } = self;
        let member = self.barrier.member();
        let (client, phases) = (&plan.clients[number], &plan.phases);
        let begin_ns = base_ns + phases.warm_up_ns;
        let moments = RunTimes {
            start_ns: base_ns + client.start_ns,
            begin_ns,
            end_ns: begin_ns + phases.length_ns,
            series: phases.step_ns.map(|step_ns| (begin_ns, step_ns)),
            times_from_ns: phases.times.then_some(*base_ns),
        };
        let mut seat = S::new(number as u16)?;
        let mut channel = seat.open(volume, client.iodepth)?;
        let contender = Contender::new(&mut channel, plan, number, moments);
        let tally = contender.run(|channel, until_ns| wait(&mut seat, channel, until_ns))?;
        seat.linger(&mut channel, member)?;
        Ok(tally)
    }
}

fn volume_of<M: Machine>(
    plan: &ContentionPlan,
    groups: &Arc<Groups<M>>,
    open: impl Fn(&Spec) -> Result<Box<dyn Driver<M>>, SpecError>,
) -> Result<Arc<Volume<M>>, BenchError> {
    let mut disks = Vec::new();
    for (index, spec) in plan.drives.iter().enumerate() {
        let driver = open(spec).map_err(|error| BenchError::drive(spec, &error))?;
        let config = DiskConfig {
            name: format!("d{index}"),
            software_queues: plan.queues.0,
            hardware_queues: plan.queues.1,
            io_threads: plan.clients.len() as u16,
            cost: plan.cost,
            groups: Some(Arc::clone(groups)),
            ..DiskConfig::default()
        };
        let disk = Disk::new(driver, config)?;
        if plan.scheduler != SchedulerKind::None {
            disk.set_scheduler(plan.scheduler)?;
        }
        disks.push(disk);
    }
    Ok(Volume::new("contend", plan.layout, disks)?)
}
