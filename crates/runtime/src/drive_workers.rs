//! `DriveWorkers`: threads that serve the drives of volumes for the threads that submit.
//!
//! Started after the disks and before the channels that hand work over, stopped after those are
//! done. Owns one I/O thread (`millrace-drive0`...) for each CPU that some drive's worker belongs
//! to; drives of one CPU share it. The CPU is the thread's place in the machine and decides which
//! drives are near it; whether the thread is pinned to it is the starter's choice ([`Pinning`]). A
//! thread sleeps in its ring. Called by `serve`, by `bench` and by programs. Stopping: no drive
//! takes new work for its worker, what is in flight ends (5 s at most), then the threads do;
//! submitters go on by themselves. Source: \[FALCON\], a thread for each drive on a core of its
//! own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_block::{Disk, Error, ErrorKind, QueueKind, WORKER_SPIN_NS, Worker};
use millrace_cache::Cache;
use millrace_machine::{CpuId, CpuShare, Deadline, Doorbell, Machine, Native, NodeId, Topology};
use millrace_reactor::Config;

use crate::cache_flusher::CacheFlusher;
use crate::io_context::{IoConfig, IoContext};
use crate::join::{Joined, join_within};

/// How long a worker that stops waits for what its drives have.
const DRAIN_NS: u64 = 5_000_000_000;
/// Longest time for the end of the threads: that time, and 5 s in which their rings wait.
const HANG: Duration = Duration::from_secs(12);
/// Longest sleep of one turn meanwhile.
const DRAIN_TURN_NS: u64 = 10_000_000;

/// Whether the workers' threads stay on the CPUs that they belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pinning {
    /// They run where the kernel puts them.
    #[default]
    Free,
    /// Each runs on its CPU only.
    Pinned,
}

/// The CPUs for drives' workers on a machine: those that nothing else is pinned to (`busy`), or all
/// but the first if none is left, or known to be busy. None on a machine of one CPU.
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

/// Deals the CPUs of workers out to drives: for
/// [`DiskConfig::worker`](millrace_block::DiskConfig::worker) of one after the other.
#[derive(Debug, Clone, Default)]
pub struct WorkerCpus {
    /// Each CPU, the node that it belongs to, and how many drives it has.
    cpus: Vec<(CpuId, NodeId, u32)>,
}

impl WorkerCpus {
    /// These CPUs, in this order.
    #[must_use]
    pub fn new(cpus: &[CpuId], topology: &Topology) -> WorkerCpus {
        let cpu = |id: &CpuId| (*id, topology.node_of(*id), 0);
        WorkerCpus { cpus: cpus.iter().map(cpu).collect() }
    }

    /// The CPU of the next drive: the first of those that have fewest, on `node` if the drive's
    /// controller is known to be there and there are any. None if there are no CPUs at all.
    pub fn next(&mut self, node: Option<NodeId>) -> Option<CpuId> {
        let has_near = self.cpus.iter().any(|cpu| Some(cpu.1) == node);
        let near = self.cpus.iter_mut().filter(|cpu| !has_near || Some(cpu.1) == node);
        let (cpu, _, drives) = near.min_by_key(|cpu| cpu.2)?;
        *drives += 1;
        Some(*cpu)
    }
}

/// The disks that have a place for a worker, by its CPU, in order of their first.
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

/// What the threads share with whoever started them.
#[derive(Default)]
struct Shared {
    /// Why the first one ended that was not told to.
    failure: Mutex<Option<Error>>,
    system_calls: AtomicU64,
}

impl Shared {
    fn fail(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }
}

/// A thread and the drives that it serves.
struct WorkerThread {
    thread: <Native as Machine>::Thread,
    cpu: CpuId,
    disks: Vec<Arc<Disk<Native>>>,
    /// `None` of a thread that never said it was up.
    bell: Option<Arc<Doorbell<Native>>>,
    stop: Arc<AtomicBool>,
}

impl WorkerThread {
    fn names(&self) -> String {
        let names: Vec<&str> = self.disks.iter().map(|disk| disk.name()).collect();
        names.join(" ")
    }

    fn order_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.iter().for_each(|bell| bell.ring());
    }
}

/// The number of a thread that is up, with its bell, or why it is not.
type WorkerUp = (usize, Result<Arc<Doorbell<Native>>, Error>);

/// Threads that serve drives for their submitters. Dropped, they stop.
pub struct DriveWorkers {
    threads: Vec<WorkerThread>,
    reactor: Config,
    pinning: Pinning,
    /// With the address of its cache.
    flushers: Vec<(usize, CacheFlusher)>,
    shared: Arc<Shared>,
}

impl DriveWorkers {
    /// Starts the workers of those disks that have a place for one
    /// ([`DiskConfig::worker`](millrace_block::DiskConfig::worker) names its CPU); the others are
    /// left alone. Returns when all of them serve.
    ///
    /// # Errors
    /// `System` if there is no ring, `Busy` if a disk has a worker already, or what opening its
    /// queue says; then none is left running.
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
    /// As [`DriveWorkers::start`]; none of the new threads is left running then.
    pub fn add(&mut self, disks: &[Arc<Disk<Native>>]) -> Result<(), Error> {
        let before = self.threads.len();
        let (up, ups) = channel();
        let mut failed = None;
        for (number, (cpu, mine)) in (before..).zip(disks_by_worker(disks)) {
            let (shared, up) = (Arc::clone(&self.shared), up.clone());
            let (reactor, stop) = (self.reactor, Arc::new(AtomicBool::new(false)));
            let body = {
                let (mine, stop) = (mine.clone(), Arc::clone(&stop));
                move || run(&mine, reactor, (&shared, &stop), (number, up))
            };
            let pinned = (self.pinning == Pinning::Pinned).then_some(cpu);
            match Native::try_spawn(&format!("millrace-drive{number}"), pinned, body) {
                Ok(thread) => {
                    let bell = None;
                    self.threads.push(WorkerThread { thread, cpu, disks: mine, bell, stop });
                }
                Err(error) => {
                    failed = Some(Error::new(ErrorKind::System, error.to_string()));
                    break;
                }
            }
        }
        drop(up);
        // All of them, so that each can be woken to stop if one could not start.
        let mut silent = self.threads.len() - before;
        for (number, outcome) in ups {
            silent -= 1;
            match outcome {
                Ok(bell) => self.threads[number].bell = Some(bell),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // A thread that is gone without a word has panicked.
        match failed.or_else(|| (silent > 0).then(died)) {
            Some(error) => {
                let _ = self.end_threads(before);
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Takes disks from their workers, so that they can be closed. Other disks of the same threads
    /// are served by their submitters until they have a thread again.
    ///
    /// # Errors
    /// That a thread hangs with a drive and is left behind, or that none could be started for the
    /// other disks.
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

    /// Starts the flusher of a cache, which ends before the workers do; `number` is that of its
    /// queue of the drives below.
    ///
    /// # Errors
    /// As [`CacheFlusher::start`].
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
    /// As [`CacheFlusher::stop`].
    pub fn remove_flusher(&mut self, cache: &Arc<Cache<Native>>) -> Result<(), Error> {
        let place = self.flushers.iter().position(|(its, _)| *its == address(cache));
        place.map_or(Ok(()), |place| self.flushers.swap_remove(place).1.stop())
    }

    /// How many threads there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The drives of each thread, and its CPU if it is pinned, for people:
    /// `on CPU 1: d0 d2; on CPU 2: d1 d3`, or `not pinned: d0 d2; d1 d3`.
    #[must_use]
    pub fn describe(&self) -> String {
        let one = |one: &WorkerThread| match self.pinning {
            Pinning::Pinned => format!("on CPU {}: {}", one.cpu.0, one.names()),
            Pinning::Free => one.names(),
        };
        let all = self.threads.iter().map(one).collect::<Vec<_>>().join("; ");
        match self.pinning {
            Pinning::Pinned => all,
            Pinning::Free => format!("not pinned: {all}"),
        }
    }

    /// System calls of the threads, after they have stopped.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        // Relaxed: a statistic.
        self.shared.system_calls.load(Ordering::Relaxed)
    }

    /// Why a thread ended although nobody stopped it; its drives are served by their submitters.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stops the threads and waits for their end. What is in flight on their queues comes to its
    /// end first, for five seconds at most.
    ///
    /// # Errors
    /// Why a thread ended before, or that it panicked, or hangs with a drive and is left behind.
    pub fn stop(&mut self) -> Result<(), Error> {
        let flushed = self.flushers.drain(..).map(|(_, mut flusher)| flusher.stop());
        let flushed = flushed.fold(Ok(()), Result::and);
        self.end_threads(0).and(flushed)
    }

    /// Stops the threads from number `first` on.
    fn end_threads(&mut self, first: usize) -> Result<(), Error> {
        self.threads[first..].iter().for_each(WorkerThread::order_stop);
        let threads = self.threads.drain(first..).map(|one| one.thread);
        let joined = join_within(threads.collect(), HANG);
        match (self.failure(), joined) {
            (Some(error), _) => Err(error),
            (None, Joined::Panicked) => Err(died()),
            (None, Joined::Running) => {
                let text = "a drive's worker hangs with its drive, and is left behind";
                Err(Error::new(ErrorKind::System, text))
            }
            (None, Joined::Ended) => Ok(()),
        }
    }
}

/// Tells caches apart.
fn address(cache: &Arc<Cache<Native>>) -> usize {
    Arc::as_ptr(cache) as usize
}

impl Drop for DriveWorkers {
    fn drop(&mut self) {
        // Whoever wants to know how the workers ended calls `stop`.
        let _ = self.stop();
    }
}

fn died() -> Error {
    Error::new(ErrorKind::System, "a drive's worker thread panicked: see above")
}

/// Notes that the thread it is on panicked.
struct OnPanic<'a>(&'a Shared);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(died());
        }
    }
}

/// A worker's thread.
fn run(
    disks: &[Arc<Disk<Native>>],
    reactor: Config,
    (shared, stop): (&Shared, &AtomicBool),
    (number, up): (usize, Sender<WorkerUp>),
) {
    let _on_panic = OnPanic(shared);
    let made = IoContext::new(IoConfig { number: 0, reactor }).and_then(|mut io| {
        let worker = io.worker(disks)?;
        Ok((io, worker))
    });
    // The worker goes before the ring that its queues are on.
    let (mut io, mut worker) = match made {
        Ok(made) => made,
        Err(error) => {
            // Start-up may have given up already because of another thread.
            let _ = up.send((number, Err(error)));
            return;
        }
    };
    let _ = up.send((number, Ok(Arc::clone(io.bell()))));
    drop(up);
    let shareable = disks.iter().all(|disk| disk.kind() == QueueKind::AnyThread);
    let spin_ns = if shareable { WORKER_SPIN_NS } else { 0 };
    let served = serve(&mut worker, &mut io, spin_ns, stop).and_then(|()| {
        worker.close();
        drain(&mut worker, &mut io)
    });
    if let Err(error) = served {
        let text = format!("worker of {}: {error}", disks[0].name());
        shared.fail(Error::new(ErrorKind::System, text));
    }
    // Relaxed: a statistic.
    let calls = io.reactor().counters().system_calls;
    shared.system_calls.fetch_add(calls, Ordering::Relaxed);
}

/// Serves until the order to stop.
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

/// Goes on with what the worker's queues hold.
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
