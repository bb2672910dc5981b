//! `Mechanism`: a mechanism of a paper's machine or kernel that can be switched off, to measure how
//! much a result depends on the mechanism.
//!
//! Mechanisms of machines are switched off here, in the machine's `Model`. Mechanisms of one
//! paper's points (a guest, a host adapter, an old kernel) are switched off by the points, with the
//! switches that the parts `effects` of `msst15` and `ablations` of `ols02` have. Called by
//! points.rs.

use millrace_drives::Words;
use millrace_simulator::Model;

use crate::vm;

/// A mechanism that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// CPUs that spin on a ticket lock read the lock's cache line again before the next holder
    /// does.
    Spinners,
    /// Sockets are farther from each other than cores of one.
    Distance,
    /// Links between sockets have a limited bandwidth.
    Links,
    /// CPUs that contend for a cache line get the line one after the other.
    Queueing,
    /// Cache lines that follow the single queue's lock.
    Lines,
    /// Hyper-threads of a core share its execution.
    Sharing,
    /// A thread that wakes may take the CPU of another.
    Fairness,
    /// The lock of the host adapter's table of commands.
    LookupLock,
    /// The SCSI mid-layer's count of commands.
    HostBusy,
    /// The lock around the driver of a controller.
    ControllerLock,
    /// A controller interrupts once for many completions.
    Coalescing,
    /// A die of a drive reads one page at a time.
    Dies,
    /// The host takes the CPU of a vCPU that holds a lock of the guest.
    Preemption,
    /// vCPUs and a lone I/O thread wake on idle CPUs.
    Roaming,
    /// Aware batching waits for no longer than it can gain.
    Bound,
    /// I/O threads share QEMU's map of the guest's memory.
    Translation,
    /// QEMU interrupts for each request, not for all that are done.
    Signals,
    /// Copies through bounce buffers.
    Copies,
    /// Work that Linux 2.4 does outside of the block layer.
    Kernel,
    /// The one lock of all adapters' drivers.
    DriverLock,
    /// The adapters' time for a command.
    AdapterCommand,
    /// The adapters' bandwidth.
    AdapterBandwidth,
    /// More processes than CPUs.
    Crowd,
    /// The inode's count of direct I/Os.
    DioCount,
    /// The kernel's own counters of a hardware queue.
    QueueCounters,
    /// Kernel threads that take a CPU.
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

/// Bandwidth of a link that is never full, in bytes per nanosecond: the largest that a model may
/// have, so that the transfer of a cache line takes almost no time.
const ENDLESS: f64 = 999_999.0;

impl Mechanism {
    /// Returns a description of the mechanism, and of the behaviour without it.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Mechanism::Spinners => "re-reads of a ticket lock's cache line by CPUs that spin on it",
            Mechanism::Distance => {
                "distance: cache lines cross sockets as fast as cores of a socket"
            }
            Mechanism::Links => "the bandwidth of links and buses between sockets",
            Mechanism::Queueing => "waiting for a cache line that several CPUs contend for",
            Mechanism::Lines => "cache lines that follow the single queue's lock, except one",
            Mechanism::Sharing => "sharing of a core by its hyper-threads: each gets its own core",
            Mechanism::Fairness => "wake-up preemption: threads run in order of arrival",
            Mechanism::LookupLock => "the lookup lock of the host adapter's driver",
            Mechanism::HostBusy => "the mid-layer's counts of commands, of host and device",
            Mechanism::ControllerLock => "the lock around the driver of the SCU",
            Mechanism::Coalescing => "interrupts of the SCU that wait for more completions",
            Mechanism::Dies => {
                "waiting for a die, and slow draining of buffers: as many dies as there can be"
            }
            Mechanism::Preemption => "preemption of vCPUs that hold a lock of the guest",
            Mechanism::Roaming => "waking on idle CPUs: threads stay where they began",
            Mechanism::Bound => "the bound of aware batching: it may wait for 20 us",
            Mechanism::Translation => "the map of the guest's memory that I/O threads share",
            Mechanism::Signals => "interrupts for each request: one for all that are done",
            Mechanism::Copies => "copies of bounces; their pages stay",
            Mechanism::Kernel => "adapters' drivers, bottom half, buffer heads before the lock",
            Mechanism::DriverLock => "the one lock of all adapters' drivers: one for each",
            Mechanism::AdapterCommand => "the adapters' time for a command",
            Mechanism::AdapterBandwidth => "the adapters' bandwidth",
            Mechanism::Crowd => "processes that wait for a CPU: 7 of them instead of 32",
            Mechanism::DioCount => "the inode's count of direct I/Os, one cache line for all CPUs",
            Mechanism::QueueCounters => "the kernel's own counters of a hardware queue",
            Mechanism::Noise => "kernel threads that take the CPU for a time, once on each",
        }
    }

    /// Switches the mechanism off in a machine's model. Changes nothing if the machine lacks it.
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
            Mechanism::Distance
            | Mechanism::Links
            | Mechanism::LookupLock
            | Mechanism::HostBusy
            | Mechanism::ControllerLock
            | Mechanism::Coalescing
            | Mechanism::Dies
            | Mechanism::Preemption
            | Mechanism::Roaming
            | Mechanism::Bound
            | Mechanism::Translation
            | Mechanism::Signals
            | Mechanism::Copies
            | Mechanism::Kernel
            | Mechanism::DriverLock
            | Mechanism::AdapterCommand
            | Mechanism::AdapterBandwidth
            | Mechanism::Crowd
            | Mechanism::DioCount
            | Mechanism::QueueCounters
            | Mechanism::Noise => {}
        }
    }

    /// Returns true if a machine has the mechanism.
    pub(crate) fn is_in(self, model: &Model) -> bool {
        let mut without = model.clone();
        self.take_from(&mut without);
        without != *model
    }
}

/// Returns the words of some mechanisms, as on the command line.
pub(crate) fn words(mechanisms: &[Mechanism]) -> String {
    mechanisms.iter().map(|mechanism| mechanism.word()).collect::<Vec<_>>().join(",")
}

/// Describes mechanisms in words, as one list.
pub(crate) fn in_words(mechanisms: &[Mechanism]) -> String {
    mechanisms.iter().map(|mechanism| mechanism.about()).collect::<Vec<_>>().join("; ")
}
