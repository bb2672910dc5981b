//! The submission interface between a program and the block layer, as a stage of its own.
//!
//! Owned by a job (`Interface`) and by the row (`SharedCounters`); called by job.rs around each
//! batch. What is shared by whom, after \[MQ\] section 4:
//!
//! - `sync`: one I/O in flight, a system call each. Shared: the count below, if the row's kernel
//!   counts all direct I/O (`DioCount::All`); else nothing.
//! - `libaio`: a system call for each batch submitted and each reaped. Of the job's process alone,
//!   since context and open file are: for each request the lock of the context list, and of the
//!   completion ring. Shared by all submitters: the inode's count of direct I/Os under way, an
//!   atomic addition for each request at submission and at completion (`i_dio_count`, fs/inode.c;
//!   taken away for block devices by kernel commit fe0f07d08ee3).
//! - `libaio-fixed`: the same system calls; for each request a compare-and-swap on the process's
//!   list; nothing shared.
//! - `ring`: no system call, and nothing shared.
//!
//! Every request costs `Stage::Interface` once, whatever the interface. That the fixed kernel no
//! longer counts direct I/Os of block devices is not in \[MQ\], which says that shared counters
//! became atomics, not which. It follows from what the author of both said when he sent the patch
//! again (Axboe, LKML, 15 April 2015, looked up): it was part of the blk-mq series, the count is
//! all that programs share on this way, and it ends at 2.5 million I/Os a second on two sockets,
//! where \[MQ\] has ten and fifteen million. The process's own locks are never contended, since
//! a process has one submitter here. Source: \[MQ\] point 8.

use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, io};

use super::linux3::DioCount;
use millrace_block::{Tracer, Volume};
use millrace_machine::{CpuId, Lock, Machine, Native, Order, Stage, Word};
use millrace_runtime::{Recorded, Recorder, RecorderConfig, Recording};
use millrace_simulator::Simulated;

/// How often an I/O reads the line of the inode's count before it adds to it: the pointer to the
/// inode in its address space (`i_data.host`, a few words behind `i_dio_count`) is asked for by
/// `blkdev_aio_read`, `generic_file_aio_read` and `blkdev_direct_IO`. Counted in kernel 3.10.
const HOST_READS: u32 = 3;

/// What the operating system of a machine would charge; free where it is real.
pub trait Host: Machine {
    /// A system call that does nothing.
    fn system_call() {}
    /// An interrupt from the calling CPU to another.
    fn interrupt(_cpu: CpuId) {}
    /// An interrupt of a device that the calling CPU takes.
    fn take_interrupt() {}
    /// Another thread has the calling CPU for so long.
    fn preempted(_ns: u64) {}
    /// The kernel works for so long for the calling thread, beside the layer.
    fn kernel_work(_ns: u64) {}
    /// Starts to record what volumes do.
    fn record(
        tracer: &Arc<Tracer<Self>>,
        volumes: &[Arc<Volume<Self>>],
        config: RecorderConfig,
    ) -> io::Result<Stop> {
        let recording = Recording::start(tracer, volumes, config)?;
        Ok(Box::new(|| recording.stop()))
    }
}

/// What ends a recording.
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
        // The model knows the price of an interrupt from CPU to CPU; a device's is handled alike.
        Simulated::interrupt(Simulated::cpu());
    }

    fn preempted(ns: u64) {
        Simulated::charge(ns);
    }

    fn kernel_work(ns: u64) {
        Simulated::charge(ns);
    }
}

/// How programs submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InterfaceKind {
    /// One I/O at a time, a system call each.
    Sync,
    /// Linux's asynchronous I/O as \[MQ\] found it.
    Libaio,
    /// Linux's asynchronous I/O with \[MQ\]'s fixes.
    LibaioFixed,
    /// Shared memory rings, as millrace's channels: no system call, nothing shared.
    #[default]
    Ring,
}

impl InterfaceKind {
    /// All, with their names.
    pub const NAMES: [(InterfaceKind, &'static str); 4] = [
        (InterfaceKind::Sync, "sync"),
        (InterfaceKind::Libaio, "libaio"),
        (InterfaceKind::LibaioFixed, "libaio-fixed"),
        (InterfaceKind::Ring, "ring"),
    ];
}

impl fmt::Display for InterfaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = InterfaceKind::NAMES.iter().find(|(kind, _)| kind == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for InterfaceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<InterfaceKind, String> {
        let found = InterfaceKind::NAMES.iter().find(|(_, name)| *name == text);
        let names = InterfaceKind::NAMES.map(|(_, name)| name).join(", ");
        found.map(|(kind, _)| *kind).ok_or_else(|| format!("one of {names}"))
    }
}

/// The count of requests in the kernel's hands, one line for all submitters.
pub(crate) struct SharedCounters<M: Machine> {
    count: M::Word,
    counts: DioCount,
}

impl<M: Machine> SharedCounters<M> {
    pub(crate) fn new(counts: DioCount) -> Arc<Self> {
        Arc::new(SharedCounters { count: M::Word::new(0), counts })
    }

    /// A request goes in: the inode is looked at on its way, and counts it.
    fn begin(&self) {
        if self.counts != DioCount::None {
            // Relaxed: it counts, and orders nothing.
            (0..HOST_READS).for_each(|_| _ = self.count.load(Order::Relaxed));
            self.add(1);
        }
    }

    /// Requests are counted, fewer by so many if that is negative.
    fn add(&self, requests: i64) {
        if self.counts != DioCount::None {
            // Relaxed: it counts, and orders nothing.
            self.count.fetch_add(requests as u64, Order::Relaxed);
        }
    }
}

/// One job's process, as its submission interface sees it.
pub(crate) struct Interface<M: Host> {
    kind: InterfaceKind,
    shared: Arc<SharedCounters<M>>,
    context_list: M::Lock<u64>,
    ring: M::Lock<u64>,
    /// Head of the lockless context list.
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

    /// A batch of `requests` goes in, just before the block layer gets it.
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

    /// A batch of `requests`, 1 or more, is reaped.
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

    /// Puts one request on the lockless list; only this job does.
    fn push(&self) {
        // Relaxed: the list stands for the kernel's, whose entries nobody reads here.
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
