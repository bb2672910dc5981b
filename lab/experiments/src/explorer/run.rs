//! `run`: runs a scenario on the simulated machine, from building the volume to the last check.
//!
//! Creates the volume inside the simulation, starts submitters, disturbances and the watchdog, and
//! joins them. Then completes the requests that timed out, and gets the verdict of the oracle. The
//! explorer's worker processes call `run`, one scenario after the other on one thread. Invariant:
//! the outcome is a function of the scenario.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::baseline::{BaselineConfig, Inside, Stack};
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, Controller, ControllerConfig, Disk, DiskConfig, IoThread,
    Layout, OpSnapshot, QueueKind, Reject, Rejected, Sharing, TraceEvent, TraceSink, Volume,
};
use millrace_machine::{CpuId, Doorbell, Machine, Parker, Thread, Word};
use millrace_simulator::{SimError, Simulated, Simulation};
use serde::{Deserialize, Serialize};

use super::disturbance::{disturb, watch};
use super::drive::ModelDrive;
use super::flusher::{FlusherThread, cached};
use super::oracle::{Oracle, SharedOracle, Violation};
use super::oracle_lock::lock_oracle;
use super::scenario::{DisturbanceKind, LayoutSpec, Scenario};
use super::scheduler_spec::SchedulerSpec;
use super::sharing::GroupEnds;
use super::submitter::{RunState, Submitter};
use super::time::NS_PER_US;
use super::workers;

use millrace_machine::lock_unpoisoned;

/// Outcome of one scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScenarioOutcome {
    /// Number of bios that completed.
    pub ios: u64,
    /// Number of simulated events.
    pub events: u64,
    /// Virtual duration in nanoseconds.
    pub virtual_ns: u64,
    /// Hash of all events, by which two runs are compared.
    pub digest: u64,
    /// First violation found, or None if the run was correct.
    pub violation: Option<Violation>,
}

thread_local! {
    static CURRENT: RefCell<Option<SharedOracle>> = const { RefCell::new(None) };
}

/// Returns, for panic handlers, the violation that the oracle has found so far in this thread's
/// current run.
pub fn violation_so_far() -> Option<Violation> {
    CURRENT.with_borrow(|shared| shared.as_ref()?.try_lock().ok()?.violation.clone())
}

/// Runs a scenario and returns its outcome.
pub fn run(scenario: &Scenario) -> Result<ScenarioOutcome, String> {
    scenario.check()?;
    let simulation = Simulation::new(&scenario.machine.model(), scenario.seed);
    let simulation = simulation.map_err(|error| error.to_string())?;
    // Limit the virtual time of the simulation, in case the watchdog thread does not end a run that
    // hangs. The watchdog's own limit is much lower.
    let simulation = simulation.time_limit_ns(scenario.bound_ns().saturating_mul(200));
    let shared: SharedOracle = Arc::new(Mutex::new(Oracle::new(scenario)));
    CURRENT.set(Some(Arc::clone(&shared)));
    let main = {
        let (scenario, shared) = (scenario.clone(), Arc::clone(&shared));
        move || play(&scenario, &shared)
    };
    let result = simulation.run(main);
    CURRENT.set(None);
    let mut oracle = lock_oracle(&shared);
    let (events, virtual_ns) = match result {
        Ok(report) => (report.events, report.elapsed_ns()),
        Err(error) => {
            let kind = match &error {
                SimError::Deadlock(_) => "deadlock",
                SimError::TimeLimit(..) => "starvation",
                _ => "panic",
            };
            oracle.accuse(kind, panic_text(&error));
            (0, 0)
        }
    };
    oracle.note(events);
    oracle.note(virtual_ns);
    let (ios, digest, violation) = (oracle.ios, oracle.digest, oracle.violation.clone());
    Ok(ScenarioOutcome { ios, events, virtual_ns, digest, violation })
}

fn panic_text(error: &SimError) -> String {
    match error {
        SimError::Panic { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

fn play(scenario: &Scenario, shared: &SharedOracle) {
    let (volume, cache) = cached(scenario, build(scenario, shared));
    let (capacity, expected) = (volume.capacity(), lock_oracle(shared).map.told);
    if capacity != expected {
        lock_oracle(shared)
            .accuse("capacity", format!("the volume has {capacity} sectors instead of {expected}"));
        return;
    }
    let channels = scenario.channels.len();
    let bells = if scenario.has_io_threads() { channels } else { 0 };
    let bell = |_| Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new()));
    let start_ns = Simulated::now();
    let state = Arc::new(RunState {
        scenario: scenario.clone(),
        volume,
        oracle: Arc::clone(shared),
        bells: (0..bells).map(bell).collect(),
        start_ns,
        up: Word::new(0),
        busy: Word::new(channels as u64),
        watchdog: Parker::new(),
        workers: workers::handles(scenario),
        switching: Word::new(0),
        kept: Mutex::default(),
        group_ends: Mutex::new(GroupEnds::default()),
    });
    for (drive, media) in lock_oracle(shared).media.iter_mut().enumerate() {
        media.start(scenario.seed, drive, start_ns);
    }
    let watcher = Arc::clone(shared);
    let watch = || state.volume.watch_size(move |sectors| lock_oracle(&watcher).grown(sectors));
    let watch = scenario.grows().then(watch);
    let serving = workers::start(&state);
    let flusher = cache.map(|cache| FlusherThread::start(scenario, cache));
    start_threads(&state).into_iter().for_each(|thread| assert!(thread.join()));
    flusher.into_iter().for_each(|flusher| flusher.stop(&state));
    drop(watch);
    workers::stop(&state, serving);
    let ends = lock_unpoisoned(&state.group_ends);
    if let Some((kind, text)) = ends.accusation(scenario) {
        lock_oracle(shared).accuse(kind, text);
    }
    drop(ends);
    finish(&state);
}

type SimThread = <Simulated as Machine>::Thread;

fn start_threads(state: &Arc<RunState>) -> Vec<SimThread> {
    let mut threads = Vec::new();
    let mut spawn = |name: &str, cpu, body: Box<dyn FnOnce() + Send>| {
        threads.push(Simulated::spawn(name, Some(CpuId(cpu)), body));
    };
    let on = Arc::clone(state);
    spawn("watchdog", 0, Box::new(move || watch(&on)));
    for (index, spec) in state.scenario.channels.iter().enumerate() {
        let submitter = Submitter::new(state, index, *spec);
        spawn(&format!("channel {index}"), spec.cpu, Box::new(move || submitter.run()));
    }
    for disturbance in state.scenario.disturbances.iter().copied() {
        let on = Arc::clone(state);
        let body = Box::new(move || disturb(&on, disturbance));
        spawn("disturbance", disturbance.cpu, body);
    }
    threads
}

fn finish(state: &Arc<RunState>) {
    let used = |state: &RunState| state.disks().any(|disk| disk.tags_in_use() > 0);
    let keeps = lock_oracle(&state.oracle).may_keep_requests();
    let shut_down = |d: &super::scenario::Disturbance| d.what == DisturbanceKind::Shutdown;
    let leaves = state.scenario.disturbances.iter().any(shut_down);
    // No thread polls any more for requests that timed out or belong to dropped channels. `sweep`
    // completes such requests. With a page cache, no such requests exist, because the cache's
    // channels serve the drives until the drives are idle.
    if used(state) && keeps && !leaves && state.scenario.cache.is_none() {
        sweep(state);
    }
    let leftovers: Vec<_> = state.disks().map(|disk| (disk.tags_in_use(), disk.stats())).collect();
    let (waiting, handed_back) = (state.volume.waiting(), state.volume.stats().ios());
    let mut oracle = lock_oracle(&state.oracle);
    let (told, all) = (oracle.map.told, oracle.map.capacity);
    if told != all {
        oracle.accuse("capacity", format!("the volume ended with {told} sectors instead of {all}"));
    }
    for (drive, (tags, stats)) in leftovers.into_iter().enumerate() {
        if tags > 0 && !(keeps && leaves) {
            oracle.accuse("tags", format!("{tags} tags of disk {drive} were never freed"));
        }
        let (queued, ended) = (stats.queued(), stats.ios());
        if queued != ended && !keeps {
            let text = format!("disk {drive}: {queued} bios were queued, {ended} completed");
            oracle.accuse("accounting", text);
        }
        if !stats.ops.iter().all(adds_up) {
            oracle.accuse(
                "accounting",
                format!("disk {drive}: the stage times do not add up to the total"),
            );
        }
    }
    let bios = oracle.ios;
    if handed_back != bios && !keeps {
        let text =
            format!("{bios} bios completed, but the volume's statistics count {handed_back}");
        oracle.accuse("accounting", text);
    }
    if waiting > 0 && !keeps {
        oracle.accuse(
            "accounting",
            format!("the volume counts {waiting} waiting bio chains, but none is left"),
        );
    }
    oracle.check_end();
}

fn adds_up(op: &OpSnapshot) -> bool {
    let stages = [&op.q2g, &op.g2i, &op.i2d];
    let before_d: u64 = stages.iter().map(|state| state.sum_ns()).sum();
    stages.iter().all(|state| state.count() == op.ios)
        && before_d == op.queue.sum_ns()
        && before_d + op.service.sum_ns() == op.total.sum_ns()
}

const SWEEPS_MAX: u32 = 16;

/// Waits until all stuck requests have completed, then polls every queue that any thread may run,
/// so that the completed requests free their tags.
fn sweep(state: &Arc<RunState>) {
    let latest = state.scenario.drives.iter().map(|d| {
        let stalled_us = d.faults.stall_us.map_or(0, |[at_us, for_us]| at_us + for_us);
        let late_us = d.faults.stuck_us + d.faults.slow_us + stalled_us;
        u64::from(late_us) * NS_PER_US + u64::from(d.latency_ns[1])
    });
    lock_oracle(&state.oracle).media.iter_mut().for_each(super::disk_image::DiskImage::calm);
    Simulated::charge(latest.max().unwrap_or(0) + 1_000);
    let disks = state.volume.disks();
    // Remove the drives' schedulers. A scheduler could dispatch the reads of `sweep` first, and
    // older requests later.
    disks.iter().for_each(|disk| SchedulerSpec::None.set(disk));
    let map = lock_oracle(&state.oracle).map.clone();
    let first = |drive: usize| {
        let mut sectors = (0..map.capacity).step_by(map.block as usize);
        sectors.find(|sector| map.place(*sector).0 == drive)
    };
    let is_any = |drive: &usize| disks[*drive].kind() == QueueKind::AnyThread;
    let sectors: Vec<u64> = (0..disks.len()).filter(is_any).filter_map(first).collect();
    // A read also makes its thread dispatch requests that a dropped channel left in software
    // queues. Two rounds of reads are the minimum, because a request that waits for a tag may be
    // dispatched late. More rounds follow while tags are in use. The number of rounds is limited,
    // because a leaked tag never becomes free.
    let in_use = || disks.iter().any(|disk| disk.tags_in_use() > 0);
    for round in 0..SWEEPS_MAX {
        if sectors.is_empty() || round >= 2 && !in_use() {
            break;
        }
        let start = |cpu| {
            let (state, sectors, block) = (Arc::clone(state), sectors.clone(), map.block);
            let body = Box::new(move || read_each(&state, cpu, &sectors, block as usize * 512));
            Simulated::spawn("sweeper", Some(CpuId(cpu)), body)
        };
        let threads: Vec<_> = (0..state.scenario.machine.cpus()).map(start).collect();
        threads.into_iter().for_each(|thread| assert!(thread.join()));
    }
}

fn read_each(state: &RunState, cpu: u32, sectors: &[u64], block_bytes: usize) {
    // The thread needs no hardware queue of its own: all `sectors` are on drives with queues that
    // any thread may run.
    let thread = state.scenario.has_owned().then(|| IoThread {
        number: (state.scenario.channels.len() + cpu as usize) as u16,
        owner: u64::MAX - 1,
        bell: Arc::new(Doorbell::new(<Simulated as Machine>::Parker::new())),
        turn: None,
    });
    let config = ChannelConfig { depth: sectors.len() as u32, thread, ..ChannelConfig::default() };
    let channel = Channel::open(&state.volume, config);
    let mut channel = channel
        .expect("Channel::open must succeed on an I/O thread, or if any thread may use the queues");
    for sector in sectors {
        let mut bio = Bio::read(*sector, Buffer::new(block_bytes));
        while let Err(Rejected { bio: back, reason: Reject::Full }) = channel.submit(bio) {
            bio = back;
            channel.poll(|_| ());
            Simulated::charge(200_000);
        }
    }
    channel.wait(usize::MAX, |_| ());
}

struct DigestSink(SharedOracle);

impl TraceSink for DigestSink {
    fn trace(&self, event: &TraceEvent) {
        let letter = event.action.letters().as_bytes()[0];
        lock_oracle(&self.0).note(event.sector << 8 | u64::from(letter));
    }
}

fn build(scenario: &Scenario, shared_oracle: &SharedOracle) -> Arc<Volume<Simulated>> {
    let groups = scenario.open_groups();
    let layer = &scenario.layer;
    let depth = scenario.drives.iter().map(|drive| drive.depth).min().unwrap_or(1);
    let controller = || ControllerConfig {
        name: String::from("controller"),
        tags: depth,
        sharing: Sharing::Controller,
        node: None,
    };
    let shared = || Controller::new(controller()).expect("the scenario was checked before");
    let shared = layer.shared_tags.then(shared);
    let disk = |(number, spec): (usize, &super::scenario::DriveSpec)| {
        let (spec, oracle, immediate) = (spec.clone(), Arc::clone(shared_oracle), layer.immediate);
        let drive = ModelDrive { number, spec, oracle, immediate };
        let trace = layer
            .traced
            .then(|| Arc::new(DigestSink(Arc::clone(shared_oracle))) as Arc<dyn TraceSink>);
        let config = DiskConfig {
            name: format!("drive{number}"),
            software_queues: layer.software.into(),
            hardware_queues: layer.hardware.into(),
            queue_depth: None,
            timeout: Duration::from_micros(layer.timeout_us.into()),
            baseline: BaselineConfig {
                // A thread waits 0, 1 or 2 us, depending on the seed, for a busy hardware queue.
                inside: match layer.each {
                    true => Inside::Each,
                    false => Inside::One { wait: Duration::from_micros(scenario.seed % 3) },
                },
                ..Stack::from(layer.stack).into()
            },
            io_threads: scenario.channels.len() as u16 + u16::from(scenario.cache.is_some()),
            worker: workers::cpu_of(scenario, number),
            controller: shared.clone(),
            groups: groups.clone(),
            trace,
            ..DiskConfig::default()
        };
        Disk::<Simulated>::new(Box::new(drive), config).expect("the scenario was checked before")
    };
    let disks: Vec<_> = scenario.drives.iter().enumerate().map(disk).collect();
    let layout = match scenario.layout {
        LayoutSpec::Linear => Layout::Linear,
        LayoutSpec::Stripe(chunk_sectors) => Layout::Stripe { chunk_sectors },
    };
    let serving = scenario.serving.config();
    Volume::with_serving("volume", layout, disks, serving).expect("the scenario was checked before")
}
