//! `Interface`: system calls and locks of a program's submission interface, such as libaio.
//!
//! Each job owns an `Interface`, and all jobs of a simulation share its `SharedCounters`. job.rs
//! calls the interface around each batch. The interfaces have this state, after Bjorling et al.
//! (SYSTOR 2013), section 4:
//!
//! - `sync`: one I/O in flight, one system call per I/O. Submitters share the count of direct I/Os
//!   (described below) if the modelled kernel counts all direct I/O (`DioCount::All`), otherwise
//!   nothing.
//! - `libaio`: one system call per batch submitted and per batch reaped. Each request takes two
//!   locks that are private to the job's process: that of the context list and that of the
//!   completion ring. All submitters share the inode's count of direct I/Os in flight, with an
//!   atomic addition per request at submission and at completion (`i_dio_count`, fs/inode.c;
//!   removed for block devices by kernel commit fe0f07d08ee3).
//! - `libaio-fixed`: the same system calls as `libaio`; for each request a compare-and-swap on a
//!   list of the process; submitters share nothing.
//! - `ring`: no system call; submitters share nothing.
//!
//! Every request costs `Stage::Interface` once, with any interface. The paper does not say that the
//! fixed kernel no longer counts direct I/Os of block devices. The model assumes so for three
//! reasons. The patch that removed the count was part of the blk-mq series, as an author of both
//! wrote (Axboe, LKML, 15 April 2015). The count is the only state that programs share on this
//! path. And the count would limit two sockets to 2.5 million I/Os a second, where the paper
//! measured ten and fifteen million. A process's own locks are never contended, because each
//! process has one submitter here. Source: Bjorling et al., SYSTOR 2013, point 8.

use std::io;
use std::sync::Arc;

use super::linux3::DioCount;
use millrace_block::{Tracer, Volume};
use millrace_drives::Words;
use millrace_machine::{CpuId, Lock, Machine, Native, Order, Stage, Word};
use millrace_runtime::{Recorded, Recorder, RecorderConfig, Recording};
use millrace_simulator::Simulated;

use crate::load::workload::text_by_words;

/// Number of times that a direct I/O reads the cache line of `i_dio_count` before it increments the
/// count. In Linux 3.10, `blkdev_aio_read`, `generic_file_aio_read` and `blkdev_direct_IO` each
/// read `i_data.host`, which is a few words after the count in the inode.
const HOST_READS: u32 = 3;

/// Charges the time of operating system work on a simulated machine. Does nothing on a real
/// machine.
pub trait Host: Machine {
    /// Charges the time of entering and leaving a system call.
    fn system_call() {}
    /// Charges both CPUs for an interrupt that the calling CPU sends to another CPU.
    fn interrupt(_cpu: CpuId) {}
    /// Charges the time of handling a device interrupt to the calling CPU.
    fn take_interrupt() {}
    /// Models a preemption of the calling thread, which loses its CPU for `ns` nanoseconds.
    fn preempted(_ns: u64) {}
    /// Charges `ns` nanoseconds of kernel work outside of the block layer to the calling thread.
    fn kernel_work(_ns: u64) {}
    /// Starts to record the trace events of volumes.
    fn record(
        tracer: &Arc<Tracer<Self>>,
        volumes: &[Arc<Volume<Self>>],
        config: RecorderConfig,
    ) -> io::Result<Stop> {
        let recording = Recording::start(tracer, volumes, config)?;
        Ok(Box::new(|| recording.stop()))
    }
}

/// Function that stops a recording of trace events, and returns the recording.
pub type Stop = Box<dyn FnOnce() -> io::Result<Recorded>>;

impl Host for Native {
    fn record(
        tracer: &Arc<Tracer<Self>>,
        volumes: &[Arc<Volume<Self>>],
        config: RecorderConfig,
    ) -> io::Result<Stop> {
        let recorder = Recorder::start(tracer, volumes, config)?;
        Ok(Box::new(|| recorder.stop()))
    }
}

impl Host for Simulated {
    fn system_call() {
        Simulated::system_call();
    }

    fn interrupt(cpu: CpuId) {
        Simulated::interrupt(cpu);
    }

    fn take_interrupt() {
        // The machine model has no cost for handling a device's interrupt, so charge the cost of an
        // inter-processor interrupt instead.
        Simulated::interrupt(Simulated::cpu());
    }

    fn preempted(ns: u64) {
        Simulated::charge(ns);
    }

    fn kernel_work(ns: u64) {
        Simulated::charge(ns);
    }
}

/// Submission interface of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InterfaceKind {
    /// Synchronous I/O: one I/O at a time, with one system call for each.
    Sync,
    /// Linux's asynchronous I/O without the fixes of Bjorling et al. (SYSTOR 2013): two locks per
    /// request, and a count of direct I/Os that all submitters share.
    Libaio,
    /// Linux's asynchronous I/O with the fixes of Bjorling et al. (SYSTOR 2013): no lock, and no
    /// state shared by submitters.
    LibaioFixed,
    /// Rings in shared memory, as in millrace's channels: no system call, and no state shared by
    /// submitters.
    #[default]
    Ring,
}

impl Words for InterfaceKind {
    const WORDS: &'static [(InterfaceKind, &'static str)] = &[
        (InterfaceKind::Sync, "sync"),
        (InterfaceKind::Libaio, "libaio"),
        (InterfaceKind::LibaioFixed, "libaio-fixed"),
        (InterfaceKind::Ring, "ring"),
    ];
}

text_by_words!(InterfaceKind);

pub(crate) struct SharedCounters<M: Machine> {
    count: M::Word,
    counts: DioCount,
}

impl<M: Machine> SharedCounters<M> {
    pub(crate) fn new(counts: DioCount) -> Arc<Self> {
        Arc::new(SharedCounters { count: M::Word::new(0), counts })
    }

    /// Models the start of a direct I/O: reads the cache line of the inode's I/O count several
    /// times, then increments the count.
    fn begin(&self) {
        if self.counts != DioCount::None {
            // Relaxed: the loaded values are not used; only the transfer of the cache line matters.
            (0..HOST_READS).for_each(|_| _ = self.count.load(Order::Relaxed));
            self.add(1);
        }
    }

    fn add(&self, requests: i64) {
        if self.counts != DioCount::None {
            // Relaxed: no data depends on the number of direct I/Os in `count`.
            self.count.fetch_add(requests as u64, Order::Relaxed);
        }
    }
}

pub(crate) struct Interface<M: Host> {
    kind: InterfaceKind,
    shared: Arc<SharedCounters<M>>,
    context_list: M::Lock<u64>,
    ring: M::Lock<u64>,
    list_head: M::Word,
    pub(crate) system_calls: u64,
}

impl<M: Host> Interface<M> {
    pub(crate) fn new(kind: InterfaceKind, shared: &Arc<SharedCounters<M>>) -> Self {
        Interface {
            kind,
            shared: Arc::clone(shared),
            context_list: M::Lock::new("aio-context-list", 0),
            ring: M::Lock::new("aio-ring", 0),
            list_head: M::Word::new(0),
            system_calls: 0,
        }
    }

    pub(crate) fn submit(&mut self, requests: u32) {
        match self.kind {
            InterfaceKind::Sync => {
                (0..requests).for_each(|_| self.system_call());
                M::work(Stage::Interface, requests);
                if self.shared.counts == DioCount::All {
                    (0..requests).for_each(|_| self.shared.begin());
                }
            }
            InterfaceKind::Libaio => {
                self.system_call();
                for _ in 0..requests {
                    M::work(Stage::Interface, 1);
                    *self.context_list.lock() += 1;
                    self.shared.begin();
                }
            }
            InterfaceKind::LibaioFixed => {
                self.system_call();
                for _ in 0..requests {
                    M::work(Stage::Interface, 1);
                    self.push();
                }
            }
            InterfaceKind::Ring => M::work(Stage::Interface, requests),
        }
    }

    pub(crate) fn reap(&mut self, requests: u32) {
        match self.kind {
            InterfaceKind::Ring => {}
            InterfaceKind::Sync => {
                if self.shared.counts == DioCount::All {
                    (0..requests).for_each(|_| self.shared.add(-1));
                }
            }
            InterfaceKind::Libaio => {
                for _ in 0..requests {
                    *self.ring.lock() += 1;
                    self.shared.add(-1);
                }
                self.system_call();
            }
            InterfaceKind::LibaioFixed => self.system_call(),
        }
    }

    fn system_call(&mut self) {
        self.system_calls += 1;
        M::system_call();
    }

    /// Models the cost of adding a request to a lock-free list that only this job uses.
    fn push(&self) {
        // Relaxed: the word `list_head` publishes no data. Its accesses only model the cost of the
        // kernel's list.
        let mut head = self.list_head.load(Order::Relaxed);
        while let Err(now) = self.list_head.compare_exchange(
            head,
            head.wrapping_add(1),
            Order::Relaxed,
            Order::Relaxed,
        ) {
            head = now;
        }
    }
}
