//! A disk's queues: their numbers, how they are connected, and a batch's path through them.
//!
//! Numbers, connections and path follow from the disk's settings, the driver's queues and the
//! machine. `Disk::new` computes the numbers of queues. The queues themselves are made by
//! `Disk::new` or when a thread first needs them. Making them late saves memory for unused disks.
//! With a hardware queue for each of 64 I/O threads, the tables take a megabyte.

use alloc::boxed::Box;

use millrace_machine::{Machine, Meter, Topology};

use crate::bio::error::Error;
use crate::disk::made_later::MadeLater;
use crate::disk::{Disk, DiskConfig, SubmitPath};
use crate::queue::controller::queue_tags;
use crate::queue::driver::{Driver, HwQueues, QueueKind};
use crate::queue::{HardwareQueue, SoftwareQueue, Spread};

/// The CPUs and threads among which a disk's queues are divided.
#[derive(Clone, Copy)]
pub(crate) struct QueueUsers<'a> {
    pub(crate) topology: &'a Topology,
    /// Number of I/O threads, or 0 if queues do not belong to threads.
    pub(crate) threads: u16,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueShape {
    pub(crate) hw: HwQueues,
    /// Number of software queues, and number of hardware queues. A queue that only a worker uses is
    /// not counted.
    pub(crate) shared: (usize, usize),
    pub(crate) worker: Option<u16>,
}

impl QueueShape {
    /// Returns the number of software queues and the number of hardware queues. A queue that only a
    /// worker uses is counted, too.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let (ctxs, shared) = self.shared;
        (ctxs, shared.max(self.worker.map_or(0, |hctx| usize::from(hctx) + 1)))
    }
}

pub(crate) struct DiskQueues<M: Machine> {
    pub(crate) ctxs: Box<[M::Lock<SoftwareQueue<M>>]>,
    pub(crate) hctxs: Box<[HardwareQueue<M>]>,
    path: SubmitPath,
}

impl<M: Machine> DiskQueues<M> {
    pub(crate) fn new(config: &DiskConfig<M>, shape: &QueueShape) -> Self {
        let hctxs = hardware_queues(config, shape.hw, shape.counts());
        let path = path_of(config, shape.shared, &hctxs[0]);
        let is_pairs = one_to_one(config, shape.shared.0, shape.shared.1);
        let feeds = if is_pairs { 1 } else { hctxs.len() };
        Self::of(shape, hctxs, feeds, path)
    }

    /// Combines the hardware queues with new software queues. Each software queue feeds `feeds`
    /// hardware queues.
    pub(crate) fn of(
        shape: &QueueShape,
        hctxs: Box<[HardwareQueue<M>]>,
        feeds: usize,
        path: SubmitPath,
    ) -> Self {
        if M::Meter::is_on() {
            hctxs.iter().for_each(|hctx| hctx.serve.meter());
        }
        let ctx = |_| SoftwareQueue::<M>::new(feeds, shape.worker);
        DiskQueues { ctxs: (0..shape.shared.0).map(ctx).collect(), hctxs, path }
    }

    /// Opens all hardware queues. Called only for a drive with queues that any thread may run.
    ///
    /// # Errors
    /// If the driver cannot open a queue.
    pub(crate) fn open_all(&self, driver: &dyn Driver<M>) -> Result<(), Error> {
        for (index, hctx) in self.hctxs.iter().enumerate() {
            let depth = hctx.tags.depth_with_reserved();
            hctx.serve.enter().queue = Some(driver.open_queue(index as u16, depth)?);
        }
        Ok(())
    }
}

pub(crate) struct LazyQueues<M: Machine> {
    pub(crate) shape: QueueShape,
    queues: MadeLater<M, DiskQueues<M>>,
}

impl<M: Machine> LazyQueues<M> {
    pub(crate) fn later(shape: QueueShape) -> Self {
        let (ctxs, hctxs) = (Box::new([]), Box::new([]));
        let empty = DiskQueues { ctxs, hctxs, path: SubmitPath::Queues };
        LazyQueues { shape, queues: MadeLater::later(empty) }
    }

    pub(crate) fn made(shape: QueueShape, queues: DiskQueues<M>) -> Self {
        LazyQueues { shape, queues: MadeLater::made(queues) }
    }

    pub(crate) fn get(&self) -> Option<&DiskQueues<M>> {
        self.queues.get()
    }

    #[inline(always)]
    pub(crate) fn ctxs(&self) -> &[M::Lock<SoftwareQueue<M>>] {
        &self.queues.known().ctxs
    }

    #[inline(always)]
    pub(crate) fn ctx(&self, ctx: u16) -> &M::Lock<SoftwareQueue<M>> {
        &self.ctxs()[usize::from(ctx)]
    }

    #[inline(always)]
    pub(crate) fn hctxs(&self) -> &[HardwareQueue<M>] {
        &self.queues.known().hctxs
    }

    #[inline(always)]
    pub(crate) fn hctx(&self, hctx: u16) -> &HardwareQueue<M> {
        &self.hctxs()[usize::from(hctx)]
    }

    /// Returns the path of a batch from the plug to the driver, if the submitting thread serves the
    /// hardware queue itself. The caller makes sure that the queues exist.
    #[inline(always)]
    pub(crate) fn path(&self) -> SubmitPath {
        self.queues.known().path
    }
}

/// Makes the queues of a disk if they do not exist yet. A multi-queue disk whose queues belong to
/// threads gets its queues on first use.
pub(crate) fn make_queues<M: Machine>(disk: &Disk<M>) {
    let lazy = &disk.queues;
    if lazy.get().is_none() {
        lazy.queues.make(|| DiskQueues::new(&disk.config, &lazy.shape));
    }
}

pub(crate) fn queue_counts<M: Machine>(
    config: &DiskConfig<M>,
    hw: HwQueues,
    QueueUsers { topology, threads }: QueueUsers<'_>,
) -> (usize, usize) {
    let wanted = match (hw.kind, config.hardware_queues) {
        (QueueKind::OwnerOnly, Spread::Core) => threads.into(),
        (_, spread) => spread.count(topology, threads),
    };
    (config.software_queues.count(topology, threads), wanted.clamp(1, hw.count.max(1).into()))
}

pub(crate) fn hardware_queues<M: Machine>(
    config: &DiskConfig<M>,
    hw: HwQueues,
    (ctxs, hctxs): (usize, usize),
) -> Box<[HardwareQueue<M>]> {
    let tags = queue_tags(config.tag_settings(), hw, hctxs).into_iter();
    let queue = |(tags, number)| HardwareQueue::new(number, hw.kind, ctxs, tags);
    tags.zip(0..).map(queue).collect()
}

/// Returns the number of the hardware queue for the drive's worker; `None` if the drive cannot have
/// a worker. If threads own the queues, it is the queue after those of the I/O threads. If any
/// thread may run the queues, there are two cases:
/// - Threads stay on their CPU: the queue of the worker's CPU.
/// - Threads move between CPUs: the last queue.
pub(crate) fn worker_queue<M: Machine>(
    config: &DiskConfig<M>,
    hw: HwQueues,
    topology: &Topology,
    shared: usize,
) -> Option<u16> {
    let cpu = config.worker?;
    let (place, node) = (topology.index_of(cpu), topology.node_of(cpu).0 as usize);
    match hw.kind {
        QueueKind::OwnerOnly if shared < usize::from(hw.count) => Some(shared as u16),
        QueueKind::OwnerOnly => None,
        QueueKind::AnyThread if M::THREADS_MOVE => Some(shared as u16 - 1),
        QueueKind::AnyThread => Some(config.hardware_queues.index(place, node, shared) as u16),
    }
}

pub(crate) fn one_to_one<M: Machine>(config: &DiskConfig<M>, ctxs: usize, hctxs: usize) -> bool {
    let same = config.software_queues == config.hardware_queues;
    same && config.software_queues == Spread::Core && ctxs == hctxs
}

/// Returns the path that a batch takes from the plug to the driver in the multi-queue design. The
/// path bypasses the software queues in two cases, both only if the settings of software queues and
/// of hardware queues are `Spread::Core`:
/// - Software queues and hardware queues are paired one to one.
/// - Each hardware queue has a thread that owns it. Only the owner's batches bypass the software
///   queues. Bios of other threads wait there until the owner takes them.
pub(crate) fn path_of<M: Machine>(
    config: &DiskConfig<M>,
    (ctxs, hctxs): (usize, usize),
    first: &HardwareQueue<M>,
) -> SubmitPath {
    let spread = (config.software_queues, config.hardware_queues);
    let is_owned = first.kind == QueueKind::OwnerOnly && spread == (Spread::Core, Spread::Core);
    match is_owned || one_to_one(config, ctxs, hctxs) {
        true => bypass(config, first),
        false => SubmitPath::Queues,
    }
}

pub(crate) fn bypass<M: Machine>(config: &DiskConfig<M>, first: &HardwareQueue<M>) -> SubmitPath {
    // A disk with a trace sink or a limit on requests in flight takes no fast path, because the
    // fast path supports neither.
    match config.trace.is_some() || first.depth_max != u32::MAX {
        true => SubmitPath::Bypass,
        false => SubmitPath::Direct,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::driver::TagScope;
    use millrace_machine::{CpuId, Native};
    use millrace_simulator::Simulated;

    fn spread<M: Machine>(software: Spread, hardware: Spread) -> DiskConfig<M> {
        DiskConfig {
            software_queues: software,
            hardware_queues: hardware,
            worker: Some(CpuId(5)),
            ..DiskConfig::default()
        }
    }

    fn queues(kind: QueueKind, count: u16) -> HwQueues {
        HwQueues { count, depth: 8, kind, tags: TagScope::PerQueue }
    }

    #[test]
    fn queues_are_as_many_as_spread_and_driver_allow() {
        use QueueKind::{AnyThread, OwnerOnly};
        use Spread::{Core, Node, One};
        let topology = Topology::uniform(2, 4);
        for (spreads, hw, threads, expected) in [
            ((Core, Core), queues(AnyThread, 64), 0, (8, 8)),
            ((Core, Core), queues(AnyThread, 3), 0, (8, 3)),
            ((Core, Core), queues(AnyThread, 0), 0, (8, 1)),
            ((Core, Core), queues(AnyThread, 64), 11, (11, 11)),
            ((Node, One), queues(AnyThread, 64), 0, (2, 1)),
            ((One, Node), queues(AnyThread, 64), 0, (1, 2)),
            // `OwnerOnly` queues: one for each of three threads, fewer if the spread allows fewer.
            ((Core, Core), queues(OwnerOnly, 64), 3, (8, 3)),
            ((Core, Node), queues(OwnerOnly, 64), 3, (8, 2)),
        ] {
            let config = spread::<Native>(spreads.0, spreads.1);
            let users = QueueUsers { topology: &topology, threads };
            assert_eq!(queue_counts(&config, hw, users), expected, "{spreads:?}");
        }
    }

    #[test]
    fn worker_has_an_extra_queue_or_the_last_or_its_cpu() {
        let topology = Topology::uniform(2, 4);
        let (owned, shared) = (queues(QueueKind::OwnerOnly, 4), queues(QueueKind::AnyThread, 8));
        let (core, node) = (Spread::Core, Spread::Node);
        let native = spread::<Native>(core, core);
        assert_eq!(worker_queue(&native, owned, &topology, 3), Some(3));
        assert_eq!(worker_queue(&native, owned, &topology, 4), None);
        assert_eq!(worker_queue(&native, shared, &topology, 8), Some(7));
        assert_eq!(worker_queue(&native, shared, &topology, 1), Some(0));
        let pinned = spread::<Simulated>(core, core);
        assert_eq!(worker_queue(&pinned, shared, &topology, 8), Some(5));
        assert_eq!(worker_queue(&pinned, shared, &topology, 3), Some(2));
        assert_eq!(worker_queue(&spread::<Simulated>(core, node), shared, &topology, 2), Some(1));
        let none = DiskConfig { worker: None, ..spread::<Native>(core, core) };
        assert_eq!(worker_queue(&none, owned, &topology, 3), None);
    }

    #[test]
    fn queue_owner_bypasses_its_software_queue_at_any_number() {
        let path = |kind, spreads: (Spread, Spread), counts| {
            let config = spread::<Native>(spreads.0, spreads.1);
            let hctxs = hardware_queues(&config, queues(kind, 8), counts);
            path_of(&config, counts, &hctxs[0])
        };
        let (cores, few) = ((Spread::Core, Spread::Core), (8, 2));
        let (owned, shared) = (QueueKind::OwnerOnly, QueueKind::AnyThread);
        assert_eq!(path(owned, cores, few), SubmitPath::Direct);
        assert_eq!(path(shared, cores, few), SubmitPath::Queues);
        assert_eq!(path(shared, cores, (8, 8)), SubmitPath::Direct);
        // With this setting, several threads share a software queue.
        for spreads in [(Spread::One, Spread::Core), (Spread::Node, Spread::Core)] {
            assert_eq!(path(owned, spreads, few), SubmitPath::Queues);
        }
    }

    #[test]
    fn queues_that_are_made_later_have_the_shape_that_was_known() {
        let config = spread::<Native>(Spread::Core, Spread::Core);
        let (hw, shared) = (queues(QueueKind::OwnerOnly, 3), (2, 2));
        let shape = QueueShape { hw, shared, worker: Some(2) };
        let lazy = LazyQueues::<Native>::later(shape);
        assert!(lazy.get().is_none());
        lazy.queues.make(|| DiskQueues::new(&config, &shape));
        assert_eq!((lazy.ctxs().len(), lazy.hctxs().len()), shape.counts());
        assert_eq!((shape.counts(), lazy.path()), ((2, 3), SubmitPath::Direct));
    }

    #[test]
    fn queues_are_pairs_only_if_evenly_spread_over_cores() {
        let both = spread::<Native>;
        assert!(one_to_one(&both(Spread::Core, Spread::Core), 4, 4));
        assert!(!one_to_one(&both(Spread::Core, Spread::Core), 4, 2));
        assert!(!one_to_one(&both(Spread::Core, Spread::Node), 4, 4));
        assert!(!one_to_one(&both(Spread::Node, Spread::Node), 4, 4));
    }
}
