//! Runs an experiment on a machine: creates groups, drives and threads, and collects the clients'
//! results.
//!
//! Callers use `contend_simulated` and `contend`; both call `run_on`. The implementations of
//! `ClientHost` cover the differences between a simulated machine and this one. Results and the
//! volume leave a simulation through shared memory, so that dropping the volume takes no virtual
//! time.

use std::sync::{Arc, Mutex};

use millrace_block::{Channel, Disk, DiskConfig, Driver, Error, Groups, SchedulerKind, Volume};
use millrace_drives::{Spec, SpecError, Words, open, open_on};
use millrace_machine::{CpuId, Machine};
use millrace_runtime::IoContext;
use millrace_simulator::Model;

use super::client::{ClientTally, Contender, RunTimes};
use super::{ContentionPlan, ContentionReport};
use crate::load::bench::{BenchError, check_block_size, check_room};
use crate::load::drain_barrier::DrainBarrier;
use crate::load::sleeper::{BellSleeper, Sleeper};
use crate::load::threads::{join_all, lock, simulate};

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

/// Runs an experiment on this machine. Creates files that do not exist and whose size is given.
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
        // Do the channel's periodic work if due. Otherwise `sleep_until` would stay in the past,
        // and no further sleep would last.
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
    let (results, base_ns) = (Arc::new(Mutex::new(Vec::new())), S::Machine::now());
    let barrier = Arc::new(DrainBarrier::new(plan.clients.len()));
    let start = |number: usize| {
        let (volume, plan, results) = (Arc::clone(&volume), plan.clone(), Arc::clone(&results));
        let (cpu, barrier) = (plan.clients[number].cpu.map(CpuId), Arc::clone(&barrier));
        let body = Box::new(move || {
            let result = serve::<S>(&volume, &plan, (number, base_ns), &barrier);
            lock(&results).push((number, result));
        });
        S::Machine::spawn(&format!("client-{number}"), cpu, body)
    };
    let threads: Vec<_> = (0..plan.clients.len()).map(start).collect();
    join_all(threads)?;
    let mut results = std::mem::take(&mut *lock(&results));
    results.sort_by_key(|(number, _)| *number);
    let tallies: Vec<ClientTally> =
        results.into_iter().map(|(_, result)| result).collect::<Result<_, _>>()?;
    let mut contest = ContentionReport::new(plan, &tallies);
    contest.scheduler = plan.scheduler.word().into();
    Ok((contest, volume))
}

fn serve<S: Sleeper>(
    volume: &Arc<Volume<S::Machine>>,
    plan: &ContentionPlan,
    (number, base_ns): (usize, u64),
    barrier: &DrainBarrier,
) -> Result<ClientTally, Error> {
    let member = barrier.member();
    let (client, phases) = (&plan.clients[number], &plan.phases);
    let begin_ns = base_ns + phases.warm_up_ns;
    let moments = RunTimes {
        start_ns: base_ns + client.start_ns,
        begin_ns,
        end_ns: begin_ns + phases.length_ns,
        series: phases.step_ns.map(|step_ns| (begin_ns, step_ns)),
        times_from_ns: phases.times.then_some(base_ns),
    };
    let mut seat = S::new(number as u16)?;
    let mut channel = seat.open(volume, client.iodepth)?;
    let contender = Contender::new(&mut channel, plan, number, moments);
    let tally = contender.run(|channel, until_ns| wait(&mut seat, channel, until_ns))?;
    seat.linger(&mut channel, member)?;
    Ok(tally)
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
