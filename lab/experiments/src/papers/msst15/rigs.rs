//! What a point of \[MIOT\]'s repetition is: device, load, processes, and who serves them.
//!
//! Plain values; `plan` and `host_plan` make of one what a simulation runs. Settings of the
//! policies are the same wherever they are on.

use millrace_block::{Layout, Spread, Stack, Stamp};

use crate::load::workload::{Rw, Workload};
use crate::simulation::{InterfaceKind, Irq, Length, Service, SimPlan, Watch};
use crate::vm::{Effects, Mode, QueueService, VmPlan, WAIT_MAX_NS};

/// Longest polling: KVM's `halt_poll_ns` on x86.
const POLL_MAX_NS: u64 = 200_000;
/// Measured time of a row: that a vCPU loses its CPU under a lock happens some hundred times a
/// second.
const LENGTH_NS: u64 = 300_000_000;
/// Outstanding I/Os of a process.
const DEPTH: u32 = 32;
/// Cores of the host.
pub(super) const CORES: u32 = 4;
/// CPUs of the host in the order in which Linux gives them to processes: one to a core, then their
/// siblings.
const CPUS: [u32; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// vCPUs of the guest.
const VCPUS: u32 = 8;
/// Most processes.
pub(super) const PROCESSES: u32 = 8;

/// What the guest's device stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Null,
    Nvme,
}

impl Device {
    pub(super) const ALL: [Device; 2] = [Device::Null, Device::Nvme];

    pub(super) fn name(self) -> &'static str {
        match self {
            Device::Null => "null device",
            Device::Nvme => "NVMe SSD",
        }
    }

    /// The host, whose driver is another.
    pub(super) fn machine(self) -> &'static str {
        match self {
            Device::Null => "miot",
            Device::Nvme => "miot-nvme",
        }
    }

    fn drive(self) -> &'static str {
        match self {
            Device::Null => "null",
            Device::Nvme => "model:preset=miot-nvme",
        }
    }
}

/// What each process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) name: &'static str,
    rw: Rw,
    pub(super) bs_bytes: u32,
}

impl Load {
    /// Random loads are counted in I/Os, sequential ones in bytes.
    pub(super) fn is_sequential(self) -> bool {
        self.rw.is_sequential()
    }
}

/// The four loads.
pub(super) const LOADS: [Load; 4] = [
    Load { name: "random read", rw: Rw::RandRead, bs_bytes: 4096 },
    Load { name: "random write", rw: Rw::RandWrite, bs_bytes: 4096 },
    Load { name: "sequential read", rw: Rw::Read, bs_bytes: 32_768 },
    Load { name: "sequential write", rw: Rw::Write, bs_bytes: 32_768 },
];

/// One queue, one thread.
pub(super) const BASELINE: QueueService = QueueService::of(Mode::Baseline, VCPUS);
/// A queue for each vCPU, one thread.
pub(super) const MQ: QueueService = QueueService::of(Mode::Mq, VCPUS);
/// A queue and a thread for each vCPU, without further optimisation.
pub(super) const PLAIN: QueueService = QueueService { threads: VCPUS, steered: false, ..MQ };
/// \[MIOT\].
pub(super) const MIOT: QueueService = QueueService::of(Mode::Miot, VCPUS);

/// The modes that are compared, with their names.
pub(super) const MODES: [(&str, QueueService); 3] =
    [("baseline", BASELINE), ("mq", MQ), ("miot", MIOT)];

/// With aware batching.
const fn aware(served: QueueService) -> QueueService {
    QueueService { wait_max_ns: WAIT_MAX_NS, ..served }
}

/// With polling.
const fn polling(served: QueueService) -> QueueService {
    QueueService { poll_max_ns: POLL_MAX_NS, ..served }
}

/// Optimisations alone and together, in words.
pub(super) const VARIANTS: [(&str, QueueService); 12] = [
    ("baseline", BASELINE),
    ("baseline, aware batching alone", aware(BASELINE)),
    ("baseline, polling alone", polling(BASELINE)),
    ("queues alone, interrupts to vCPU 0", QueueService { steered: false, ..MQ }),
    ("mq: queues with steered interrupts", MQ),
    ("mq with aware batching", aware(MQ)),
    ("mq with polling", polling(MQ)),
    ("queues and threads, no optimisation", PLAIN),
    ("queues and threads, aware batching alone", aware(PLAIN)),
    ("miot without aware batching", QueueService { wait_max_ns: 0, ..MIOT }),
    ("miot", MIOT),
    ("miot with polling", polling(MIOT)),
];

/// Effects of the host, all and all but one, in words.
pub(super) const EFFECTS: [(&str, Effects); 7] = [
    ("nothing", Effects::ALL),
    ("holders of the guest's locks keep their CPU", Effects { preemption: false, ..Effects::ALL }),
    ("threads stay where they began", Effects { roaming: false, ..Effects::ALL }),
    ("hyper-threads are cores", Effects { sharing: false, ..Effects::ALL }),
    ("batching may wait for 20 us", Effects { bound: false, ..Effects::ALL }),
    ("a map of the guest's memory for each thread", Effects { translation: false, ..Effects::ALL }),
    ("one signal for all that is done", Effects { signals: false, ..Effects::ALL }),
];

/// The place of the processes that do the I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessPlace {
    /// Processes on the host itself.
    Host,
    /// A guest with so many vCPUs.
    Guest { vcpus: u32, served: QueueService },
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) device: Device,
    pub(super) load: Load,
    pub(super) who: ProcessPlace,
    pub(super) processes: u32,
    /// Times what guest and exits cost: 1 wherever something is compared with the paper.
    pub(super) dearer: u32,
    /// Effects of the host: all wherever something is compared with the paper.
    pub(super) effects: Effects,
}

impl Point {
    /// The guest with 8 vCPUs.
    pub(super) fn guest(device: Device, load: Load, served: QueueService, processes: u32) -> Point {
        let who = ProcessPlace::Guest { vcpus: VCPUS, served };
        Point { device, load, who, processes, dearer: 1, effects: Effects::ALL }
    }

    /// The host itself.
    pub(super) fn host(device: Device, load: Load, processes: u32) -> Point {
        Point { device, load, who: ProcessPlace::Host, processes, dearer: 1, effects: Effects::ALL }
    }

    /// 4 vCPUs with a queue each and 4 processes, on so many I/O threads.
    pub(super) fn threads(device: Device, threads: u32) -> Point {
        let served = QueueService { queues: 4, threads, ..MIOT };
        let who = ProcessPlace::Guest { vcpus: 4, served };
        Point { device, load: LOADS[0], who, processes: 4, dearer: 1, effects: Effects::ALL }
    }

    /// In words, for a progress bar.
    pub(super) fn in_words(&self) -> String {
        let Point { device, load, processes, .. } = self;
        let who = match self.who {
            ProcessPlace::Host => "host",
            ProcessPlace::Guest { served, .. } => {
                let named = VARIANTS.iter().find(|(_, other)| *other == served);
                named.map_or("guest", |(name, _)| name)
            }
        };
        format!("{}, {}, {processes} processes, {who}", device.name(), load.name)
    }

    /// This point with a guest and exits that cost so many times as much.
    pub(super) fn dearer(self, dearer: u32) -> Point {
        Point { dearer, ..self }
    }

    /// This point with other effects.
    pub(super) fn with(self, effects: Effects) -> Point {
        Point { effects, ..self }
    }

    fn workload(&self, seed: u64) -> Workload {
        let Load { rw, bs_bytes, .. } = self.load;
        Workload { rw, bs_bytes, iodepth: DEPTH, verify: false, seed }
    }

    /// What a virtual machine runs.
    pub(super) fn plan(&self, vcpus: u32, served: QueueService, seed: u64) -> VmPlan {
        VmPlan {
            vcpus,
            processes: self.processes,
            served,
            effects: self.effects,
            workload: self.workload(seed),
            drive: self.device.drive().parse().expect("a drive of the model's"),
            interrupts: self.device == Device::Nvme,
            length: Length::Time(LENGTH_NS),
        }
    }

    /// What the host runs itself.
    pub(super) fn host_plan(&self, seed: u64) -> SimPlan {
        SimPlan {
            drives: vec![self.device.drive().parse().expect("a drive of the model's")],
            layout: Layout::Linear,
            service: Service::default(),
            stack: Stack::Mq,
            software_queues: Spread::Core,
            hardware_queues: Spread::Core,
            cpus: CPUS.to_vec(),
            jobs: self.processes,
            workload: self.workload(seed),
            length: Length::Time(LENGTH_NS),
            stamp: Stamp::Batch,
            // Linux 3.17 has the fixes.
            interface: InterfaceKind::LibaioFixed,
            batch: Some(1),
            irq: if self.device == Device::Nvme { Irq::Poller } else { Irq::Submitter },
            watch: Watch::default(),
        }
    }
}
