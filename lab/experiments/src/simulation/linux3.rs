//! `Linux3`: settings that add effects of the kernels of 2012 and 2013 to a simulation.
//!
//! The effects come from code outside of the block layer. Each of the three effects can be switched
//! off:
//!
//! - The counters of a hardware queue (`struct blk_mq_hw_ctx`): `queued` counts requests, `run`
//!   counts runs of the queue, and `dispatched[]` counts runs by their number of requests. The
//!   counters are plain words in one cache line, which all CPUs of the hardware queue write. The
//!   word before them (the pointer to the tags, or the head of the tag waiters) is read when a tag
//!   is released. Three versions of block/blk-mq.c agree in this: an early one, one with a
//!   lock-free dispatch list, and the first one merged (3.13). Millrace counts per thread and has
//!   no such line.
//! - The inode's count of direct I/Os, which synchronous I/Os change, too (interface.rs).
//! - Noise: on each CPU, a kernel thread wakes up once and preempts the job for a time.
//!
//! Other shared state of those kernels needs no setting. The block layer itself has the map of
//! software queues and the tags (baseline/lanes.rs of the block crate). The list `dispatch` is left
//! out, because only the second version has it without a lock. The accounting per partition
//! (`blk_account_io_start`) did nothing, because no request had `REQ_IO_STAT`. Created by run.rs,
//! called by job.rs; `CountedDriver` wraps the drive's driver.

use std::sync::Arc;

use millrace_block::baseline::Inside;
use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error, Expired, Moment, Request,
    Spread, Tag,
};
use millrace_drives::Words;
use millrace_machine::{CpuId, Machine, Order, Topology, Word};

use super::interface::Host;
use crate::filter::DriverFilter;

/// Effects of a kernel of 2012 or 2013 that a simulation models: shared counters, and noise. Noise
/// is a kernel thread that preempts jobs. By default, only one counter is modelled: the inode's
/// count of direct I/Os in flight, for asynchronous I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Linux3 {
    /// Kinds of direct I/O that increment the inode's count of direct I/Os in flight.
    pub dio_count: DioCount,
    /// If true, models the statistics counters that a hardware queue of Linux has. Meant for the
    /// multi-queue design (`mq`) if several threads may dispatch from a queue.
    pub queue_counters: bool,
    /// Time, in nanoseconds, for which a kernel thread preempts each job once; 0 for no kernel
    /// thread. Has an effect only for jobs with the interface `sync`.
    pub noise_ns: u64,
}

/// Kernel whose shared counters a benchmark models. An option of `bench` takes the kernel's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelKind {
    /// Only the counters that are always modelled: those of millrace's block layer, and the inode's
    /// `i_dio_count` for I/Os through `libaio`.
    #[default]
    Own,
    /// The counters of Linux 3.13 for hardware queues and for direct I/Os, in addition to
    /// millrace's own.
    Linux3,
}

impl Words for KernelKind {
    const WORDS: &'static [(KernelKind, &'static str)] =
        &[(KernelKind::Own, "own"), (KernelKind::Linux3, "linux-3")];
}

impl Linux3 {
    /// Returns the settings that model this kernel. The counters of hardware queues are modelled
    /// only if several threads may dispatch from a hardware queue at a time.
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

    pub(super) fn kernel(&self) -> KernelKind {
        match *self == Linux3::default() {
            true => KernelKind::Own,
            false => KernelKind::Linux3,
        }
    }
}

/// Kinds of direct I/O that increment `i_dio_count`, the inode's number of direct I/Os in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DioCount {
    /// Only I/Os through the interface `libaio` increment the inode's `i_dio_count`.
    #[default]
    Asynchronous,
    /// All direct I/Os, also synchronous ones, increment the inode's `i_dio_count`, as in
    /// `do_blockdev_direct_IO` and `dio_complete` of Linux 3.x.
    All,
    /// No I/O increments the inode's `i_dio_count`, to show the cost of counting.
    None,
}

pub(crate) type Counters<M> = Option<Arc<QueueCounters<M>>>;

/// A cache line of counters for each hardware queue, which all CPUs of the queue write.
pub(crate) struct QueueCounters<M: Machine> {
    lines: Vec<M::Word>,
    queues: Vec<usize>,
}

impl<M: Machine> QueueCounters<M> {
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

    pub(crate) fn queued(&self, CpuId(cpu): CpuId) {
        self.count(cpu as usize);
    }

    fn line(&self, place: usize) -> &M::Word {
        &self.lines[self.queues[place % self.queues.len()]]
    }

    /// Increments a counter as the kernel does: without an atomic instruction, so that increments
    /// of several CPUs may be lost.
    fn count(&self, place: usize) {
        // Relaxed: no data depends on the counter, and nobody uses its value. The store only models
        // the cost of the kernel's increment, which also fetches the cache line for writing.
        self.line(place).store(place as u64, Order::Relaxed);
    }

    fn read(&self, place: usize) {
        // Relaxed: nobody uses the value.
        self.line(place).load(Order::Relaxed);
    }
}

pub(crate) struct CountedDriver<M: Machine> {
    pub(crate) inner: Box<dyn Driver<M>>,
    pub(crate) counters: Arc<QueueCounters<M>>,
}

impl<M: Machine> DriverFilter<M> for CountedDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.inner
    }

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

pub(super) struct Noise {
    /// Time from the start of the measured window to the wake-up of the kernel thread, in
    /// nanoseconds. `None` if the thread never wakes or has already woken, because it wakes only
    /// once.
    after_ns: Option<u64>,
    takes_ns: u64,
}

impl Noise {
    /// Creates a kernel thread that wakes once. The wake-up is at a random time, 0 to `takes_ns`
    /// after the start of the measured window. This time depends only on the seed and the job
    /// number. With a `takes_ns` of 0, the thread never wakes.
    pub(super) fn new(takes_ns: u64, seed: u64, job: u32) -> Noise {
        let mut random = millrace_random::SplitMix64::new(seed ^ u64::from(job) << 32);
        let after_ns = (takes_ns > 0).then(|| random.next() % takes_ns.max(1));
        Noise { after_ns, takes_ns }
    }

    /// Lets the kernel thread preempt the job if its wake-up is due. Called in a system call, where
    /// no lock is held. `begin_ns` returns the start of the measured window, or 0 before the
    /// window.
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
    fn cpus_of_a_hardware_queue_share_a_line_and_others_do_not() {
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
    fn count_by_another_cpu_moves_line_and_one_by_same_does_not() {
        let took = Arc::new([const { AtomicU64::new(0) }; 2]);
        let seen = Arc::clone(&took);
        let simulation = Simulation::new(&Model::plain(1, 2), 1).expect("the model must be valid");
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
        simulation.run(main).expect("the run must end");
        let [first, second] = [took[0].load(Relaxed), took[1].load(Relaxed)];
        // A plain machine: 40 ns from core to core, 2 at home, 10 for the clock.
        assert_eq!((first, second), (50, 12));
    }

    #[test]
    fn kernel_thread_comes_within_its_time_from_window_start() {
        let mut noise = Noise::new(1000, 7, 3);
        noise.look::<Native>(5_000, || 0);
        assert!(noise.after_ns.is_some_and(|after_ns| after_ns < 1000));
        noise.look::<Native>(6_000, || 5_000);
        assert_eq!(noise.after_ns, None);
        assert_eq!(Noise::new(0, 7, 3).after_ns, None);
    }
}
