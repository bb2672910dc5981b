//! A job (submitting thread) of a benchmark on any machine: keeps `iodepth` bios in flight through
//! one channel.
//!
//! run.rs calls `run` on a thread of the job's own, pinned to the job's CPU. Each round submits
//! idle bios at new offsets, through a submission interface (such as libaio) into the channel, then
//! collects and reaps completions. Without completions the job spins for a bounded time, then
//! sleeps on its doorbell. After the window has closed, the job waits for its I/Os in flight. Each
//! bio owns a buffer for one I/O, whose content nobody reads.

use std::sync::{Arc, Mutex};

use super::file_costs::FileCosts;
use super::interface::{Host, Interface, InterfaceKind, SharedCounters};
use super::irq::Signal;
use super::linux3::{Counters, Noise};
use super::linux24::Kernel;
use super::window::{Window, WindowStep};
use super::{SimPlan, raw_job};
use crate::load::workload::Offsets;
use millrace_block::{
    Bio, Buffer, Channel, ChannelConfig, IoThread, Reject, Snapshot, StatsSnapshot, Volume,
};
use millrace_machine::lock_unpoisoned;

const SPIN_NS: u64 = 20_000;

pub(super) struct RowState<M: Host> {
    pub(super) plan: SimPlan,
    pub(super) volumes: Vec<Arc<Volume<M>>>,
    /// Size of each volume in sectors, read once before the jobs start: jobs that read the sizes
    /// themselves would contend for a cache line.
    sectors: Vec<u64>,
    pub(super) window: Window,
    pub(super) counters: Arc<SharedCounters<M>>,
    pub(super) queue_counters: Counters<M>,
    pub(super) signals: Vec<Arc<Signal<M>>>,
    pub(super) sums: Mutex<Sums>,
    /// Model of Linux 2.4's work outside of the block layer; `None` if the plan does not need the
    /// model.
    pub(super) kernel: Option<Arc<Kernel<M>>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) system_calls: u64,
    /// Latencies of the I/Os in the measured window, from queueing (Q) to completion (C). Between
    /// `begin` and `end`, the field has the latencies of all I/Os before the window, which `end`
    /// subtracts.
    pub(super) latency: Snapshot,
    /// Durations of system calls in the measured window. Recorded only for the interface `sync`,
    /// whose calls submit one I/O each, and in raw_job.rs, whose calls submit all elements of one
    /// I/O's vector.
    pub(super) calls: Snapshot,
    pub(super) drives: Vec<StatsSnapshot>,
}

impl Sums {
    fn begin(&mut self, drives: Vec<StatsSnapshot>) {
        self.latency = total(&drives);
        self.drives = drives;
    }

    fn end(&mut self, drives: &[StatsSnapshot]) {
        self.latency = total(drives).since(&self.latency);
        let since = drives.iter().zip(&self.drives).map(|(now, before)| now.since(before));
        self.drives = since.collect();
    }
}

fn total(drives: &[StatsSnapshot]) -> Snapshot {
    let mut sum = Snapshot::default();
    drives.iter().for_each(|drive| sum.merge(&drive.total()));
    sum
}

impl<M: Host> RowState<M> {
    pub(super) fn new(
        (plan, window): (&SimPlan, Window),
        volumes: Vec<Arc<Volume<M>>>,
        signals: Vec<Arc<Signal<M>>>,
        (kernel, queue_counters): (Option<Arc<Kernel<M>>>, Counters<M>),
    ) -> Arc<RowState<M>> {
        Arc::new(RowState {
            plan: plan.clone(),
            sectors: volumes.iter().map(|volume| volume.capacity()).collect(),
            volumes,
            window,
            counters: SharedCounters::new(plan.service.linux3.dio_count),
            queue_counters,
            signals,
            sums: Mutex::new(Sums::default()),
            kernel,
        })
    }

    /// Opens a channel for `depth` bios to the volume of job `number`. Also returns the generator
    /// of the job's I/O offsets.
    pub(super) fn open(&self, number: u32, depth: u32) -> (Channel<M>, Offsets) {
        let (plan, volumes) = (&self.plan, &self.volumes);
        let at = number as usize % volumes.len();
        // The job's thread owns no hardware queue. The channel uses its `IoThread` only for the
        // doorbell, which wakes the job.
        let thread = IoThread {
            number: number as u16,
            owner: u64::from(number) + 1,
            bell: Arc::clone(&self.signals[number as usize].bell),
            turn: None,
        };
        let config = ChannelConfig { depth, stamp: plan.stamp, thread: Some(thread) };
        let blocks = (self.sectors[at] << 9) / u64::from(plan.workload.bs_bytes);
        let apart = volumes.len() as u32;
        let place = ((number / apart).into(), plan.jobs.div_ceil(apart).into());
        let channel = Channel::open(&volumes[at], config)
            .expect("Channel::open must succeed on an I/O thread");
        (channel, Offsets::new(&plan.workload, blocks, place))
    }

    pub(super) fn count(&self, ios: u64) {
        match self.window.count::<M>(ios) {
            WindowStep::Nothing => {}
            WindowStep::Begin => {
                let drives = self.drives();
                self.sum(|sums| sums.begin(drives));
            }
            WindowStep::End => {
                let drives = self.drives();
                self.sum(|sums| sums.end(&drives));
            }
        }
    }

    pub(super) fn end(&self, errors: u64, first_error: Option<String>, system_calls: u64) {
        self.count(0);
        self.sum(|sums| {
            sums.errors += errors;
            sums.system_calls += system_calls;
            if sums.first_error.is_none() {
                sums.first_error = first_error;
            }
        });
    }

    /// Changes the sums under their mutex. `change` must not call the simulated machine, because
    /// such a call may switch to another job. If that job then locks the mutex, all simulated
    /// threads hang.
    pub(super) fn sum(&self, change: impl FnOnce(&mut Sums)) {
        change(&mut lock_unpoisoned(&self.sums));
    }

    fn drives(&self) -> Vec<StatsSnapshot> {
        let disks = self.volumes.iter().flat_map(|volume| volume.disks());
        disks.map(|disk| disk.stats()).collect()
    }
}

pub(super) fn run<M: Host>(shared: &RowState<M>, number: u32) {
    if shared.plan.service.history.is_raw() {
        return raw_job::run(shared, number);
    }
    let mut job = Job::new(shared, number, shared.plan.workload.iodepth);
    let bs_bytes = shared.plan.workload.bs_bytes as usize;
    let bio = |_| Bio::read(0, Buffer::new(bs_bytes));
    let mut idle: Vec<Bio> = (0..shared.plan.workload.iodepth).map(bio).collect();
    loop {
        if !idle.is_empty() && !shared.window.is_over() {
            job.submit(&mut idle);
        }
        if job.channel.in_flight() == 0 {
            break;
        }
        if !job.collect(&mut idle) {
            job.wait();
        }
    }
    job.end();
}

pub(super) struct Job<'a, M: Host> {
    pub(super) shared: &'a RowState<M>,
    pub(super) channel: Channel<M>,
    pub(super) interface: Interface<M>,
    pub(super) offsets: Offsets,
    file: Option<FileCosts>,
    pub(super) signal: &'a Signal<M>,
    noise: Noise,
    pub(super) call_ns: Option<u64>,
    calls: Snapshot,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
}

impl<'a, M: Host> Job<'a, M> {
    /// Creates job `number`, with a channel for `depth` bios.
    pub(super) fn new(shared: &'a RowState<M>, number: u32, depth: u32) -> Self {
        let plan = &shared.plan;
        let (channel, offsets) = shared.open(number, depth);
        Job {
            shared,
            channel,
            interface: Interface::new(plan.interface, &shared.counters),
            offsets,
            file: plan
                .service
                .of_file
                .then(|| FileCosts::linux_4_4().expect("the built-in costs are valid")),
            signal: &shared.signals[number as usize],
            noise: Noise::new(plan.service.linux3.noise_ns, plan.workload.seed, number),
            call_ns: None,
            calls: Snapshot::default(),
            errors: 0,
            first_error: None,
        }
    }

    fn submit(&mut self, idle: &mut Vec<Bio>) {
        let batch = self.shared.plan.batch.map_or(idle.len(), |batch| batch as usize);
        let sectors = u64::from(self.shared.plan.workload.bs_bytes >> 9);
        while !idle.is_empty() {
            let first = idle.len().saturating_sub(batch);
            if self.shared.plan.interface == InterfaceKind::Sync {
                self.call_ns = Some(M::now());
            }
            self.interface.submit((idle.len() - first) as u32);
            if let Some(began_ns) = self.call_ns {
                self.noise.look::<M>(began_ns, || self.shared.window.begin_ns());
            }
            while idle.len() > first {
                let Some(mut bio) = idle.pop() else { break };
                let (block, op) = self.offsets.next_io();
                bio.set_sector(block * sectors);
                bio.set_op(op);
                if let Some(file) = &self.file {
                    M::kernel_work(file.direct_ns(op));
                }
                if let Some(counters) = &self.shared.queue_counters {
                    counters.queued(M::cpu());
                }
                if let Err(rejected) = self.channel.submit(bio) {
                    assert_eq!(
                        rejected.reason,
                        Reject::Full,
                        "the job's offsets must lie within the volume"
                    );
                    idle.push(rejected.bio);
                    return self.channel.flush();
                }
            }
            self.channel.flush();
        }
    }

    fn collect(&mut self, idle: &mut Vec<Bio>) -> bool {
        let (errors, first_error) = (&mut self.errors, &mut self.first_error);
        let handed = self.channel.poll(|done| {
            if !done.status.is_ok() {
                *errors += 1;
                first_error.get_or_insert_with(|| {
                    format!("{:?} at sector {}: {}", done.bio.op(), done.bio.sector(), done.status)
                });
            }
            idle.push(done.bio);
        });
        if handed == 0 {
            return false;
        }
        self.interface.reap(handed as u32);
        self.end_call();
        self.shared.count(handed as u64);
        true
    }

    /// Records the duration of the system call that began at `call_ns`.
    pub(super) fn end_call(&mut self) {
        if let Some(began_ns) = self.call_ns.take() {
            let took_ns = M::now() - began_ns;
            if self.shared.window.is_open() {
                self.calls.add(took_ns, 1);
            }
        }
    }

    /// Closes the channel, and adds the job's results to those of the run.
    pub(super) fn end(self) {
        let Job { shared, channel, interface, errors, first_error, calls, .. } = self;
        drop(channel);
        shared.sum(|sums| sums.calls.merge(&calls));
        shared.end(errors, first_error, interface.system_calls);
    }

    /// Waits for completions. If interrupts wake the jobs, the job sleeps at once. Otherwise it
    /// first spins for a while.
    fn wait(&mut self) {
        let deadline_ns = self.channel.sleep_until();
        let (channel, signal) = (&self.channel, self.signal);
        if self.shared.plan.irq.is_polled() {
            let spin_ns = M::now() + SPIN_NS;
            let until_ns = deadline_ns.map_or(spin_ns, |deadline_ns| deadline_ns.min(spin_ns));
            if M::spin_until(until_ns, || channel.has_work()) || until_ns < spin_ns {
                return;
            }
        }
        signal.bell.sleep_unless(deadline_ns, || signal.is_raised() || channel.has_work());
        signal.lower();
        self.channel.tick();
    }
}
