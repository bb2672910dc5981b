//! `DriveWorkers`: threads that serve the drives of volumes on behalf of submitting threads.
//!
//! Start the workers once the disks are open, before opening the channels that hand I/O over to the
//! workers. Stop the workers after closing those channels. There is one I/O thread
//! (`millrace-drive0`...) for each CPU to which a drive's worker is assigned; the drives of one CPU
//! share it. At a stop, drives hand no new I/O to their workers, I/O in flight gets up to 5 s to
//! complete, and then the threads end. Submitters serve the drives themselves from then on. Source:
//! \[FALCON\], which gives each drive a thread on a core of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_block::{Disk, Error, ErrorKind, QueueKind, WORKER_SPIN_NS, Worker};
use millrace_cache::Cache;
use millrace_machine::{
    CpuId, CpuShare, Deadline, Doorbell, Machine, Native, NodeId, Topology, debug_fields,
    lock_unpoisoned,
};
use millrace_reactor::Config;

use crate::cache_flusher::CacheFlusher;
use crate::io_context::{IoConfig, IoContext};
use crate::join::{JoinOutcome, join_within};

const DRAIN_NS: u64 = 5_000_000_000;
/// Maximum time to wait for the threads' end: `DRAIN_NS`, plus 5 s for operations in their rings.
const HANG: Duration = Duration::from_secs(12);
/// Maximum time of one sleep while a worker stops, in nanoseconds.
const DRAIN_TURN_NS: u64 = 10_000_000;

/// Policy for pinning worker threads to the CPUs that they are assigned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pinning {
    /// The kernel chooses the CPU of each thread.
    #[default]
    Free,
    /// Each thread runs on its own CPU only.
    Pinned,
}

/// Returns the CPUs for drives' workers: all except `busy`, the CPUs to which other threads are
/// pinned. If no CPU is busy, or all are, returns all except the first. The list is empty on a
/// machine with one CPU.
#[must_use]
pub fn worker_cpus(topology: &Topology, busy: &[CpuId]) -> Vec<CpuId> {
    let all = topology.cpus();
    let free: Vec<CpuId> = all.iter().map(|cpu| cpu.id).filter(|id| !busy.contains(id)).collect();
    match free.len() {
        _ if all.len() < 2 => Vec::new(),
        0 => all[1..].iter().map(|cpu| cpu.id).collect(),
        count if count == all.len() => free[1..].to_vec(),
        _ => free,
    }
}

/// Chooses the CPU of each drive's worker, for
/// [`DiskConfig::worker`](millrace_block::DiskConfig::worker).
#[derive(Debug, Clone, Default)]
pub struct WorkerCpus {
    /// Each CPU, its NUMA node, and the number of drives assigned to it.
    cpus: Vec<(CpuId, NodeId, u32)>,
}

impl WorkerCpus {
    /// Prepares to distribute drives' workers over these CPUs, in this order.
    #[must_use]
    pub fn new(cpus: &[CpuId], topology: &Topology) -> WorkerCpus {
        let cpu = |id: &CpuId| (*id, topology.node_of(*id), 0);
        WorkerCpus { cpus: cpus.iter().map(cpu).collect() }
    }

    /// Returns the CPU for the next drive: the first of the CPUs with the fewest drives. If there
    /// are CPUs on `node`, the NUMA node of the drive's controller, only these are considered.
    /// Returns `None` if there are no CPUs at all.
    pub fn next(&mut self, node: Option<NodeId>) -> Option<CpuId> {
        let has_near = self.cpus.iter().any(|cpu| Some(cpu.1) == node);
        let near = self.cpus.iter_mut().filter(|cpu| !has_near || Some(cpu.1) == node);
        let (cpu, _, drives) = near.min_by_key(|cpu| cpu.2)?;
        *drives += 1;
        Some(*cpu)
    }
}

/// Lists the CPUs of workers, in the order of first use in `disks`, each with the worker's disks.
#[must_use]
pub fn disks_by_worker<M: Machine>(disks: &[Arc<Disk<M>>]) -> Vec<(CpuId, Vec<Arc<Disk<M>>>)> {
    let mut workers: Vec<(CpuId, Vec<Arc<Disk<M>>>)> = Vec::new();
    for disk in disks {
        let Some(cpu) = disk.worker_cpu() else { continue };
        match workers.iter_mut().find(|(known, _)| *known == cpu) {
            Some((_, mine)) => mine.push(Arc::clone(disk)),
            None => workers.push((cpu, vec![Arc::clone(disk)])),
        }
    }
    workers
}

#[derive(Default)]
struct WorkersState {
    /// Error of the first thread that ended without being stopped.
    failure: Mutex<Option<Error>>,
    system_calls: AtomicU64,
}

impl WorkersState {
    fn fail(&self, error: Error) {
        lock_unpoisoned(&self.failure).get_or_insert(error);
    }
}

struct WorkerThread {
    thread: <Native as Machine>::Thread,
    cpu: CpuId,
    disks: Vec<Arc<Disk<Native>>>,
    /// Doorbell of the thread. `None` if the thread never reported a successful start.
    bell: Option<Arc<Doorbell<Native>>>,
    stop: Arc<AtomicBool>,
}

impl WorkerThread {
    fn order_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.iter().for_each(|bell| bell.ring());
    }
}

/// Report of a new thread: its index, and its doorbell or the error that prevented its start.
type WorkerUp = (usize, Result<Arc<Doorbell<Native>>, Error>);

/// Threads that serve drives for their submitters. Dropping the value stops the threads.
pub struct DriveWorkers {
    threads: Vec<WorkerThread>,
    reactor: Config,
    pinning: Pinning,
    /// Flushers, each with its cache's address as a key.
    flushers: Vec<(usize, CacheFlusher)>,
    shared: Arc<WorkersState>,
}

debug_fields!(DriveWorkers, reactor, pinning);

impl DriveWorkers {
    /// Starts the workers of those disks that have a CPU for a worker
    /// ([`DiskConfig::worker`](millrace_block::DiskConfig::worker)), and ignores the other disks.
    /// Returns once all workers are serving.
    ///
    /// # Errors
    /// `System` if no ring can be created, `Busy` if a disk has a worker already, or the error of
    /// opening its queue. In these cases no worker is left running.
    pub fn start(
        disks: &[Arc<Disk<Native>>],
        reactor: Config,
        pinning: Pinning,
    ) -> Result<DriveWorkers, Error> {
        let (threads, flushers, shared) = (Vec::new(), Vec::new(), Arc::default());
        let mut workers = DriveWorkers { threads, reactor, pinning, flushers, shared };
        workers.add(disks)?;
        Ok(workers)
    }

    /// Starts the workers of more disks, on threads of their own.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`DriveWorkers::start`]. None of the new threads is
    /// then left running.
    pub fn add(&mut self, disks: &[Arc<Disk<Native>>]) -> Result<(), Error> {
        let before = self.threads.len();
        let (up, ups) = channel();
        let mut failed = None;
        for (number, (cpu, disks)) in (before..).zip(disks_by_worker(disks)) {
            let stop = Arc::<AtomicBool>::default();
            let task = WorkerTask {
                number,
                disks: disks.clone(),
                shared: Arc::clone(&self.shared),
                stop: Arc::clone(&stop),
                up: up.clone(),
            };
            let (reactor, name) = (self.reactor, format!("millrace-drive{number}"));
            let pinned = (self.pinning == Pinning::Pinned).then_some(cpu);
            match Native::try_spawn(&name, pinned, move || task.run(reactor)) {
                Ok(thread) => {
                    self.threads.push(WorkerThread { thread, cpu, disks, bell: None, stop });
                }
                Err(error) => {
                    failed = Some(Error::new(ErrorKind::System, error.to_string()));
                    break;
                }
            }
        }
        drop(up);
        // Waits until each new thread has reported its doorbell or an error. Even if one thread
        // failed, the doorbells of the others are needed, to wake and stop them.
        let mut silent = self.threads.len() - before;
        for (number, outcome) in ups {
            silent -= 1;
            match outcome {
                Ok(bell) => self.threads[number].bell = Some(bell),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // A thread that ended without reporting has panicked.
        match failed.or_else(|| (silent > 0).then(died)) {
            Some(error) => {
                let _ = self.end_threads(before);
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Takes disks away from their workers, so that the disks can be closed. Submitters serve the
    /// other disks of the same threads until a new thread takes over.
    ///
    /// # Errors
    /// Returns an error if a thread hangs because of a drive and was abandoned, or if no thread
    /// could be started for the other disks.
    pub fn remove(&mut self, disks: &[Arc<Disk<Native>>]) -> Result<(), Error> {
        let is_removed =
            |disk: &Arc<Disk<Native>>| disks.iter().any(|removed| Arc::ptr_eq(removed, disk));
        let (left, kept) = self.threads.drain(..).partition(|one| one.disks.iter().any(is_removed));
        let left: Vec<WorkerThread> = left;
        let first = kept.len();
        self.threads = kept;
        let others = left.iter().flat_map(|one| &one.disks).filter(|disk| !is_removed(disk));
        let others: Vec<_> = others.cloned().collect();
        self.threads.extend(left);
        let ended = self.end_threads(first);
        ended.and(self.add(&others))
    }

    /// Starts the flusher of a cache, which will be stopped before the workers. `number` is the
    /// index of the flusher's hardware queue on the drives below the cache.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`CacheFlusher::start`].
    pub fn add_flusher(
        &mut self,
        cache: &Arc<Cache<Native>>,
        number: u16,
        reactor: Config,
    ) -> Result<(), Error> {
        self.flushers.push((address(cache), CacheFlusher::start(cache, number, reactor)?));
        Ok(())
    }

    /// Stops the flusher of a cache, if it has one.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`CacheFlusher::stop`].
    pub fn remove_flusher(&mut self, cache: &Arc<Cache<Native>>) -> Result<(), Error> {
        let place = self.flushers.iter().position(|(its, _)| *its == address(cache));
        place.map_or(Ok(()), |place| self.flushers.swap_remove(place).1.stop())
    }

    /// Returns the number of worker threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Returns a text that lists the drives of each thread, and the thread's CPU if it is pinned:
    /// `on CPU 1: d0 d2; on CPU 2: d1 d3`, or `not pinned: d0 d2; d1 d3`.
    #[must_use]
    pub fn describe(&self) -> String {
        let is_pinned = self.pinning == Pinning::Pinned;
        let one = |one: &WorkerThread| {
            let names: Vec<&str> = one.disks.iter().map(|disk| disk.name()).collect();
            let cpu = if is_pinned { &format!("on CPU {}: ", one.cpu.0) } else { "" };
            format!("{cpu}{}", names.join(" "))
        };
        let all = self.threads.iter().map(one).collect::<Vec<_>>().join("; ");
        if is_pinned { all } else { format!("not pinned: {all}") }
    }

    /// Returns the number of system calls that the threads made. The number is valid after the
    /// threads have stopped.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        // Relaxed: no other memory access depends on this statistic.
        self.shared.system_calls.load(Ordering::Relaxed)
    }

    /// Returns the error of a thread that ended without being stopped, if there is one. Submitters
    /// serve the drives of such a thread.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        lock_unpoisoned(&self.shared.failure).clone()
    }

    /// Stops the threads and waits for their end. I/O in flight on their queues completes first,
    /// for five seconds at most.
    ///
    /// # Errors
    /// Returns an error if a thread failed earlier, panicked, or hangs because of a drive and was
    /// abandoned.
    pub fn stop(&mut self) -> Result<(), Error> {
        let flushed = self.flushers.drain(..).map(|(_, mut flusher)| flusher.stop());
        let flushed = flushed.fold(Ok(()), Result::and);
        self.end_threads(0).and(flushed)
    }

    fn end_threads(&mut self, first: usize) -> Result<(), Error> {
        self.threads[first..].iter().for_each(WorkerThread::order_stop);
        let threads = self.threads.drain(first..).map(|one| one.thread);
        let joined = join_within(threads.collect(), HANG);
        match (self.failure(), joined) {
            (Some(error), _) => Err(error),
            (None, JoinOutcome::Panicked) => Err(died()),
            (None, JoinOutcome::Running) => Err(Error::new(
                ErrorKind::System,
                "a drive does not complete its I/O, so its worker thread was abandoned; check the \
                 drive",
            )),
            (None, JoinOutcome::Ended) => Ok(()),
        }
    }
}

fn address(cache: &Arc<Cache<Native>>) -> usize {
    Arc::as_ptr(cache) as usize
}

impl Drop for DriveWorkers {
    fn drop(&mut self) {
        // Ignores the error of `stop`: a caller that needs the error calls `stop` itself.
        let _ = self.stop();
    }
}

fn died() -> Error {
    Error::new(ErrorKind::System, "a drive's worker thread panicked; see the messages above")
}

struct OnPanic<'a>(&'a WorkersState);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(died());
        }
    }
}

/// Work of one thread: serves its disks until it is ordered to stop.
struct WorkerTask {
    number: usize,
    disks: Vec<Arc<Disk<Native>>>,
    shared: Arc<WorkersState>,
    stop: Arc<AtomicBool>,
    up: Sender<WorkerUp>,
}

impl WorkerTask {
    fn run(self, reactor: Config) {
        let WorkerTask { number, disks, shared, stop, up } = self;
        let _on_panic = OnPanic(&shared);
        let made = IoContext::new(IoConfig { number: 0, reactor }).and_then(|mut io| {
            let worker = io.worker(&disks)?;
            Ok((io, worker))
        });
        let bell = made.as_ref().map(|(io, _)| Arc::clone(io.bell()));
        // Ignores the error of `send`: the starting thread may no longer wait for this result.
        let _ = up.send((number, bell.map_err(Clone::clone)));
        drop(up);
        // The worker must be dropped before the ring that its queues use.
        let Ok((mut io, mut worker)) = made else { return };
        let shareable = disks.iter().all(|disk| disk.kind() == QueueKind::AnyThread);
        let spin_ns = if shareable { WORKER_SPIN_NS } else { 0 };
        let served = serve(&mut worker, &mut io, spin_ns, &stop).and_then(|()| {
            worker.close();
            drain(&mut worker, &mut io)
        });
        if let Err(error) = served {
            let text = format!("worker of {}: {error}", disks[0].name());
            shared.fail(Error::new(ErrorKind::System, text));
        }
        // Relaxed: no other memory access depends on this statistic.
        let calls = io.reactor().counters().system_calls;
        shared.system_calls.fetch_add(calls, Ordering::Relaxed);
    }
}

fn serve(
    worker: &mut Worker<Native>,
    io: &mut IoContext,
    spin_ns: u64,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let stops = || stop.load(Ordering::SeqCst);
    let mut share = CpuShare::new();
    while !stops() {
        worker.turn();
        let deadline_ns = worker.sleep_until();
        if spin_ns > 0 && share.may_poll() {
            let spin_ns = Native::now().saturating_add(spin_ns);
            let until_ns = deadline_ns.map_or(spin_ns, |deadline_ns| deadline_ns.min(spin_ns));
            let polled = share.poll(until_ns, || worker.has_work() || stops());
            if polled.came || (until_ns < spin_ns && Native::now() >= until_ns) {
                continue;
            }
        }
        io.turn(deadline_ns, || worker.has_work() || stops())?;
    }
    Ok(())
}

fn drain(worker: &mut Worker<Native>, io: &mut IoContext) -> Result<(), Error> {
    let mut limit = Deadline::<Native>::after_ns(DRAIN_NS);
    while !worker.is_idle() && !limit.is_over() {
        worker.turn();
        io.turn(Some(Native::now() + DRAIN_TURN_NS), || worker.has_work())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(cpus: &[u32]) -> Vec<CpuId> {
        cpus.iter().map(|cpu| CpuId(*cpu)).collect()
    }

    #[test]
    fn workers_run_where_nothing_else_does_or_past_the_first_cpu() {
        let topology = Topology::uniform(1, 4);
        assert_eq!(worker_cpus(&topology, &ids(&[0, 2])), ids(&[1, 3]));
        assert_eq!(worker_cpus(&topology, &ids(&[0, 1, 2, 3])), ids(&[1, 2, 3]));
        assert_eq!(worker_cpus(&topology, &[]), ids(&[1, 2, 3]));
        assert_eq!(worker_cpus(&Topology::uniform(1, 1), &[]), []);
    }

    #[test]
    fn drives_are_dealt_out_in_turn_and_near_their_controllers() {
        let topology = Topology::uniform(2, 2);
        let deal = |cpus: &[u32], nodes: &[Option<u32>]| {
            let mut cpus = WorkerCpus::new(&ids(cpus), &topology);
            let next = |node: &Option<u32>| cpus.next(node.map(NodeId)).map(|cpu| cpu.0);
            nodes.iter().map(next).collect::<Vec<_>>()
        };
        assert_eq!(deal(&[1, 2], &[None; 3]), [Some(1), Some(2), Some(1)]);
        let nodes = [Some(0), Some(1), Some(0), Some(1)];
        assert_eq!(deal(&[1, 2, 3], &nodes), [Some(1), Some(2), Some(1), Some(3)]);
        assert_eq!(deal(&[1], &[Some(1)]), [Some(1)], "no CPU is there: any");
        assert_eq!(deal(&[], &[None]), [None]);
    }
}
