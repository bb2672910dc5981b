//! `Mechanism`: a part of a simulated machine or kernel that can be switched off.
//!
//! A second run without a mechanism shows how much a result depends on the mechanism.
//! `Mechanism::take_from` switches off mechanisms of a machine, in the machine's `Model`. Other
//! mechanisms belong to a guest, a host adapter or an old kernel. The file of each paper, such as
//! atc17.rs, switches these off. points.rs calls this file.

use millrace_drives::Words;
use millrace_simulator::Model;

use crate::vm;

/// A mechanism of the simulated machine or kernel that a run can switch off; [`Mechanism::about`]
/// describes each.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    Spinners,
    Distance,
    Links,
    Queueing,
    Lines,
    Sharing,
    Fairness,
    LookupLock,
    HostBusy,
    ControllerLock,
    Coalescing,
    Dies,
    Preemption,
    Roaming,
    Bound,
    Translation,
    Signals,
    Copies,
    Kernel,
    DriverLock,
    AdapterCommand,
    AdapterBandwidth,
    Crowd,
    DioCount,
    QueueCounters,
    Noise,
}

impl Words for Mechanism {
    const WORDS: &'static [(Mechanism, &'static str)] = &[
        (Mechanism::Spinners, "spinners"),
        (Mechanism::Distance, "distance"),
        (Mechanism::Links, "links"),
        (Mechanism::Queueing, "queueing"),
        (Mechanism::Lines, "lines"),
        (Mechanism::Sharing, "sharing"),
        (Mechanism::Fairness, "fairness"),
        (Mechanism::LookupLock, "lookup-lock"),
        (Mechanism::HostBusy, "host-busy"),
        (Mechanism::ControllerLock, "controller-lock"),
        (Mechanism::Coalescing, "coalescing"),
        (Mechanism::Dies, "dies"),
        (Mechanism::Preemption, "preemption"),
        (Mechanism::Roaming, "roaming"),
        (Mechanism::Bound, "bound"),
        (Mechanism::Translation, "translation"),
        (Mechanism::Signals, "signals"),
        (Mechanism::Copies, "copies"),
        (Mechanism::Kernel, "kernel"),
        (Mechanism::DriverLock, "driver-lock"),
        (Mechanism::AdapterCommand, "adapter-command"),
        (Mechanism::AdapterBandwidth, "adapter-bandwidth"),
        (Mechanism::Crowd, "crowd"),
        (Mechanism::DioCount, "dio-count"),
        (Mechanism::QueueCounters, "queue-counters"),
        (Mechanism::Noise, "noise"),
    ];
}

/// Bandwidth, in bytes per nanosecond, of links without a limit. Transfers at this bandwidth take
/// almost no time.
const ENDLESS: f64 = 999_999.0;

impl Mechanism {
    /// Returns a description of the mechanism, and of the behaviour without the mechanism.
    pub fn about(self) -> &'static str {
        match self {
            Mechanism::Spinners => {
                "re-reads of a ticket lock's cache line by the CPUs that spin on the lock"
            }
            Mechanism::Distance => {
                "distance between sockets (without it, a cache line moves between sockets as fast \
                 as between cores of one socket)"
            }
            Mechanism::Links => "the bandwidth limit of links and buses between sockets",
            Mechanism::Queueing => "queueing of the CPUs that contend for a cache line",
            Mechanism::Lines => {
                "transfers of the cache lines that the single queue's lock protects (without them, \
                 one line moves)"
            }
            Mechanism::Sharing => {
                "sharing of a core by its hyper-threads (without it, each hyper-thread is as fast \
                 as a core)"
            }
            Mechanism::Fairness => {
                "preemption by threads that wake up (without it, threads run in order of arrival)"
            }
            Mechanism::LookupLock => {
                "the lock under which the host adapter's driver looks up commands"
            }
            Mechanism::HostBusy => {
                "the SCSI mid-layer's counts of commands in flight for the host and for each device"
            }
            Mechanism::ControllerLock => {
                "the lock around all functions of the driver of Intel's SCU (a SATA controller)"
            }
            Mechanism::Coalescing => "interrupt coalescing of the SCU",
            Mechanism::Dies => {
                "waiting for a flash die and for the drain of the write buffer (without it, each \
                 drive has as many dies as the model allows)"
            }
            Mechanism::Preemption => "preemption of vCPUs that hold a lock of the guest's kernel",
            Mechanism::Roaming => {
                "wake-up of threads on idle CPUs (without it, threads stay on their first CPU)"
            }
            Mechanism::Bound => {
                "the limit that workload-aware batching waits no longer than it can gain (without \
                 it, batching may wait 20 us)"
            }
            Mechanism::Translation => "the map of the guest's memory that all I/O threads share",
            Mechanism::Signals => {
                "an interrupt of the guest for each request (without it, one for all completed \
                 requests)"
            }
            Mechanism::Copies => "copying to and from bounce buffers, but not their allocation",
            Mechanism::Kernel => {
                "Linux 2.4's work outside of the block layer: the adapters' drivers, the bottom \
                 half, and buffer heads before the lock is taken"
            }
            Mechanism::DriverLock => {
                "the lock that the drivers of all adapters share (without it, each adapter has a \
                 lock)"
            }
            Mechanism::AdapterCommand => "the time that an adapter takes for each command",
            Mechanism::AdapterBandwidth => "the bandwidth limit of the adapters",
            Mechanism::Crowd => {
                "competition of processes for CPUs (without it, only 7 processes run, one on each \
                 CPU except the first, which takes the interrupts)"
            }
            Mechanism::DioCount => {
                "the inode's count of direct I/Os, a cache line that all CPUs write"
            }
            Mechanism::QueueCounters => "the kernel's statistics counters of a hardware queue",
            Mechanism::Noise => "a kernel thread that preempts the job once on each CPU",
        }
    }

    pub(crate) fn take_from(self, model: &mut Model) {
        let cache = &mut model.cache;
        match self {
            Mechanism::Spinners => cache.spinner.share = 0.0,
            Mechanism::Distance if model.sockets > 1 => {
                cache.one_hop = cache.socket.clone();
                cache.two_hops = cache.socket.clone();
                cache.board = cache.socket.clone();
            }
            Mechanism::Links if model.sockets > 1 => {
                cache.link.bytes_per_ns = ENDLESS;
                cache.board_link.bytes_per_ns = ENDLESS;
            }
            Mechanism::Queueing => cache.queueing = false,
            Mechanism::Lines => model.work.request_queue.lines = 1,
            Mechanism::Sharing => vm::share_nothing(model),
            Mechanism::Fairness => model.threads.fairness = None,
            _ => {}
        }
    }

    pub(crate) fn is_in(self, model: &Model) -> bool {
        let mut without = model.clone();
        self.take_from(&mut without);
        without != *model
    }
}

pub(crate) fn words(mechanisms: &[Mechanism]) -> String {
    mechanisms.iter().map(|mechanism| mechanism.word()).collect::<Vec<_>>().join(",")
}

pub(crate) fn in_words(mechanisms: &[Mechanism]) -> String {
    mechanisms.iter().map(|mechanism| mechanism.about()).collect::<Vec<_>>().join("; ")
}
