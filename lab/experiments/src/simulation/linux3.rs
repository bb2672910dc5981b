//! `Linux3`: what kernels of 2012 and 2013 had beside the layer, as settings of a row.
//!
//! Three things, each of which can be left out:
//!
//! - The counters of a hardware queue (`struct blk_mq_hw_ctx`): `queued` for each request got,
//!   `run` for each run of the queue, `dispatched[]` for each run again, by what it handed over.
//!   They are plain words in one line that all CPUs of the hardware queue write; the word before
//!   them (the pointer to the tags, or the head of those who wait for one) is read as a tag is
//!   given back. Counted in three versions of block/blk-mq.c: an early one, one with a lockless
//!   dispatch list, and that first merged (3.13), which agree in this. Millrace counts for each
//!   thread and has no such line.
//! - The inode's count of direct I/Os for synchronous calls, too (interface.rs).
//! - Noise: on each CPU a kernel thread wakes once and keeps it from the job for a time.
//!
//! What else those versions shared: the map of software queues and the tags, which the layer
//! itself has (baseline/lanes.rs of the block crate); the list `dispatch`, lockless in the second
//! version only, which is left out. The request's accounting in its partition
//! (`blk_account_io_start`) did nothing in them: no request bore `REQ_IO_STAT`, which
//! `blk_mq_rq_ctx_init` sets in later ones.
//! Made by run.rs, called by job.rs; the driver stands around the drive's.

use std::sync::Arc;

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error, Expired, Inside, Moment,
    Request, Spread, Tag,
};
use millrace_drives::Words;
use millrace_machine::{CpuId, Machine, Order, Topology, Word};

use super::interface::Host;
use crate::filter::DriverFilter;

/// What a row's kernel had; nothing unless given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Linux3 {
    /// The I/Os that the inode counts.
    pub dio_count: DioCount,
    /// The counters of hardware queues; for the `mq` stack with several threads inside.
    pub queue_counters: bool,
    /// How long a kernel thread has each CPU, once; 0: none comes. For the interface `sync`.
    pub noise_ns: u64,
}

/// Whose kernel's counters a row has: the word of `bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelKind {
    /// None beside the layer's own.
    #[default]
    Own,
    /// Linux 3.13's.
    Linux3,
}

impl Words for KernelKind {
    const WORDS: &'static [(KernelKind, &'static str)] =
        &[(KernelKind::Own, "own"), (KernelKind::Linux3, "linux-3")];
}

impl Linux3 {
    /// What such a kernel had, if so many threads were inside hardware queues: its counters are
    /// those of the queues that several share.
    #[must_use]
    pub fn of(kernel: KernelKind, inside: Inside) -> Linux3 {
        match kernel {
            KernelKind::Own => Linux3::default(),
            KernelKind::Linux3 => Linux3 {
                dio_count: DioCount::All,
                queue_counters: inside == Inside::Each,
                noise_ns: 0,
            },
        }
    }

    /// The kernel's word.
    pub(super) fn kernel(&self) -> KernelKind {
        match *self == Linux3::default() {
            true => KernelKind::Own,
            false => KernelKind::Linux3,
        }
    }
}

/// The I/Os that the inode's count of direct I/Os counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DioCount {
    /// Those through `libaio`.
    #[default]
    Asynchronous,
    /// All direct I/O, as `do_blockdev_direct_IO` and `dio_complete` of 3.x did.
    All,
    /// None: to see what hangs on it.
    None,
}

/// The counters of a row's hardware queues, if its kernel has any.
pub(crate) type Counters<M> = Option<Arc<QueueCounters<M>>>;

/// The line of counters of each hardware queue, by the CPUs that share it.
pub(crate) struct QueueCounters<M: Machine> {
    lines: Vec<M::Word>,
    /// The hardware queue of each CPU, by its place.
    queues: Vec<usize>,
}

impl<M: Machine> QueueCounters<M> {
    /// For hardware queues that are spread so over the machine's CPUs.
    pub(crate) fn new(spread: Spread, topology: &Topology) -> Arc<Self> {
        let count = spread.count(topology, 0);
        let cpus = topology.cpus().iter().enumerate();
        let queue = |(place, cpu): (usize, &millrace_machine::Cpu)| {
            spread.index(place, topology.node_of(cpu.id).0 as usize, count)
        };
        Arc::new(QueueCounters {
            lines: (0..count).map(|_| M::Word::new(0)).collect(),
            queues: cpus.map(queue).collect(),
        })
    }

    /// A request is got by a CPU.
    pub(crate) fn queued(&self, CpuId(cpu): CpuId) {
        self.count(cpu as usize);
    }

    fn line(&self, place: usize) -> &M::Word {
        &self.lines[self.queues[place % self.queues.len()]]
    }

    /// One of the counters goes up: plainly, so that counts of others may be lost, as they were.
    fn count(&self, place: usize) {
        // Relaxed: it counts, and orders nothing. What is stored is of no use, so that the load
        // that the addition needs is not charged: the store gets the line for both.
        self.line(place).store(place as u64, Order::Relaxed);
    }

    /// The line is looked at.
    fn read(&self, place: usize) {
        // Relaxed: nobody uses what is read.
        self.line(place).load(Order::Relaxed);
    }
}

/// A driver whose hardware queues are counted in.
pub(crate) struct CountedDriver<M: Machine> {
    pub(crate) inner: Box<dyn Driver<M>>,
    pub(crate) counters: Arc<QueueCounters<M>>,
}

impl<M: Machine> DriverFilter<M> for CountedDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.inner
    }

    /// With several threads inside, the driver's queues are the CPUs' (lanes), by their place.
    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        Ok(Box::new(CountedQueue {
            inner: self.inner.open_queue(index, depth)?,
            counters: Arc::clone(&self.counters),
            place: index.into(),
            runs: false,
        }))
    }
}

struct CountedQueue<M: Machine> {
    inner: Box<dyn DriverQueue<M>>,
    counters: Arc<QueueCounters<M>>,
    place: usize,
    /// The queue is run: something was handed over since its last `commit_rqs`.
    runs: bool,
}

impl<M: Machine> DriverQueue<M> for CountedQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        if !self.runs {
            self.runs = true;
            self.counters.count(self.place);
        }
        self.inner.queue_rq(rq)
    }

    fn has_trace_data(&self) -> bool {
        self.inner.has_trace_data()
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        self.inner.trace_data(tag, moment)
    }

    fn commit_rqs(&mut self) {
        self.inner.commit_rqs();
        if std::mem::take(&mut self.runs) {
            self.counters.count(self.place);
        }
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let before = batch.entries().len();
        self.inner.poll(batch);
        (before..batch.entries().len()).for_each(|_| self.counters.read(self.place));
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        self.inner.timeout(tag)
    }
}

/// A kernel thread that wakes once on a job's CPU and takes it.
pub(super) struct Noise {
    /// From the window's begin to its waking; never again once it has come.
    after_ns: Option<u64>,
    takes_ns: u64,
}

impl Noise {
    /// One that comes in the time in which it takes a CPU itself, drawn from the seed and the job;
    /// none if it takes no time.
    pub(super) fn new(takes_ns: u64, seed: u64, job: u32) -> Noise {
        let mut random = millrace_random::SplitMix64::new(seed ^ u64::from(job) << 32);
        let after_ns = (takes_ns > 0).then(|| random.next() % takes_ns.max(1));
        Noise { after_ns, takes_ns }
    }

    /// In a call, where no lock is held, after the look at when the window began: 0 if it has not.
    pub(super) fn look<M: Host>(&mut self, now_ns: u64, begin_ns: impl FnOnce() -> u64) {
        let Some(after_ns) = self.after_ns else { return };
        let begin_ns = begin_ns();
        if begin_ns > 0 && now_ns >= begin_ns + after_ns {
            self.after_ns = None;
            M::preempted(self.takes_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_machine::Native;
    use millrace_simulator::{Model, Simulated, Simulation};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn cpus_of_a_hardware_queue_write_one_line_and_those_of_others_another() {
        let topology = Topology::uniform(2, 2);
        for (spread, queues) in [
            (Spread::One, [0, 0, 0, 0]),
            (Spread::Node, [0, 0, 1, 1]),
            (Spread::Core, [0, 1, 2, 3]),
        ] {
            let counters = QueueCounters::<Native>::new(spread, &topology);
            assert_eq!(counters.queues, queues, "{spread:?}");
            assert_eq!(counters.lines.len(), queues[3] + 1);
        }
    }

    #[test]
    fn a_count_by_another_cpu_moves_the_line_and_one_by_the_same_does_not() {
        let took = Arc::new([const { AtomicU64::new(0) }; 2]);
        let seen = Arc::clone(&took);
        let simulation = Simulation::new(&Model::plain(1, 2), 1).expect("a good model");
        let main = move || {
            let counters = QueueCounters::<Simulated>::new(Spread::One, &Simulated::topology());
            let moved = Arc::clone(&counters);
            let other = Box::new(move || moved.queued(CpuId(1)));
            let joined = Simulated::spawn("other", Some(CpuId(1)), other);
            assert!(millrace_machine::Thread::join(joined));
            for took in seen.iter() {
                let start_ns = Simulated::now();
                counters.queued(CpuId(0));
                took.store(Simulated::now() - start_ns, Relaxed);
            }
        };
        simulation.run(main).expect("it ends");
        let [first, second] = [took[0].load(Relaxed), took[1].load(Relaxed)];
        // A plain machine: 40 ns from core to core, 2 at home, 10 for the clock.
        assert_eq!((first, second), (50, 12));
    }

    #[test]
    fn a_kernel_thread_comes_once_within_its_own_time_from_the_windows_begin() {
        let mut noise = Noise::new(1000, 7, 3);
        noise.look::<Native>(5_000, || 0);
        assert!(noise.after_ns.is_some_and(|after_ns| after_ns < 1000));
        noise.look::<Native>(6_000, || 5_000);
        assert_eq!(noise.after_ns, None);
        assert_eq!(Noise::new(0, 7, 3).after_ns, None);
    }
}
