//! `LazyQueues`: the software and hardware queues of a disk, made when the first thread needs them.
//!
//! A disk with one hardware queue for each I/O thread has tables for every one of them: a megabyte
//! for 64 threads. A disk that nobody uses has none. `Disk::make_queues` makes them, once, under a
//! lock; whatever runs on the way of an I/O reads them without one.
//!
//! Invariant: a caller of `Disk::ctxs`, `hctxs` and `path` has called `make_queues` before, or holds
//! something that only exists since another thread did and that came to it under a lock or through
//! a word: a route, an owned queue, a bio or a waiter of the disk. All others ask `LazyQueues::get`.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use core::cell::UnsafeCell;

use millrace_machine::{Lock, Machine, Meter, Order, Word};

use crate::bio::error::Error;
use crate::disk::baseline::{self, Baseline};
use crate::disk::{Disk, DiskConfig, SubmitPath, queues};
use crate::queue::driver::{Driver, HwQueues};
use crate::queue::{HardwareQueue, SoftwareQueue};

/// What is known of the queues of a disk before they are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueShape {
    /// What the driver has.
    pub(crate) hw: HwQueues,
    /// Software queues, and hardware queues without that of a worker.
    pub(crate) shared: (usize, usize),
    /// The hardware queue of a worker.
    pub(crate) worker: Option<u16>,
}

impl QueueShape {
    /// Software queues, and hardware queues with that of a worker.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let (ctxs, shared) = self.shared;
        (ctxs, shared.max(self.worker.map_or(0, |hctx| usize::from(hctx) + 1)))
    }
}

/// The queues of a disk.
pub(crate) struct DiskQueues<M: Machine> {
    pub(crate) ctxs: Box<[SoftwareQueue<M>]>,
    pub(crate) hctxs: Box<[HardwareQueue<M>]>,
    pub(crate) path: SubmitPath,
}

impl<M: Machine> DiskQueues<M> {
    /// Queues of this shape.
    pub(crate) fn new(
        config: &DiskConfig<M>,
        shape: &QueueShape,
        baseline: Option<&Baseline<M>>,
    ) -> Self {
        let (hw, (ctxs, shared), worker) = (shape.hw, shape.shared, shape.worker);
        let lanes = baseline::lanes(baseline);
        let hctxs = match lanes {
            Some(lanes) => lanes.open(config, hw),
            None => queues::hardware_queues(config, hw, shape.counts()),
        };
        if M::Meter::is_on() {
            hctxs.iter().for_each(|hctx| hctx.serve.meter());
        }
        let is_pairs = lanes.is_none() && queues::one_to_one(config, ctxs, shared);
        let feeds = if is_pairs { 1 } else { hctxs.len() };
        let path = match baseline {
            Some(baseline) => baseline.stack.submit_path(config, &hctxs[0]),
            None => queues::path_of(config, (ctxs, shared), &hctxs[0]),
        };
        let ctxs = (0..ctxs).map(|_| SoftwareQueue::new(feeds, worker)).collect();
        DiskQueues { ctxs, hctxs, path }
    }

    /// Opens all hardware queues, which any thread may run.
    ///
    /// # Errors
    /// If the driver cannot open one.
    pub(crate) fn open_all(&self, driver: &dyn Driver<M>) -> Result<(), Error> {
        for (index, hctx) in self.hctxs.iter().enumerate() {
            let depth = hctx.tags.depth_with_reserved();
            hctx.serve.enter().queue = Some(driver.open_queue(index as u16, depth)?);
        }
        Ok(())
    }

    /// No queues.
    fn none() -> Self {
        DiskQueues { ctxs: Box::new([]), hctxs: Box::new([]), path: SubmitPath::Queues }
    }
}

/// The place of the queues of a disk.
pub(crate) struct LazyQueues<M: Machine> {
    shape: QueueShape,
    /// Written once, by whoever holds `making`, before `is_made` becomes 1.
    queues: UnsafeCell<DiskQueues<M>>,
    is_made: M::Word,
    making: M::Lock<()>,
}

// SAFETY: the queues are Sync, and written only before anybody may read them.
unsafe impl<M: Machine> Sync for LazyQueues<M> {}

impl<M: Machine> LazyQueues<M> {
    /// Queues of this shape, to be made later.
    pub(crate) fn later(shape: QueueShape) -> Self {
        Self::with(shape, DiskQueues::none(), 0)
    }

    /// These queues.
    pub(crate) fn made(shape: QueueShape, queues: DiskQueues<M>) -> Self {
        Self::with(shape, queues, 1)
    }

    fn with(shape: QueueShape, queues: DiskQueues<M>, is_made: u64) -> Self {
        LazyQueues {
            shape,
            queues: UnsafeCell::new(queues),
            is_made: M::Word::new(is_made),
            making: M::Lock::new("disk-queues", ()),
        }
    }

    /// How many there are, or will be.
    pub(crate) fn shape(&self) -> &QueueShape {
        &self.shape
    }

    /// The queues, if they are made.
    pub(crate) fn get(&self) -> Option<&DiskQueues<M>> {
        // Acquire pairs with the Release in `make`.
        let is_made = self.is_made.load(Order::Acquire) == 1;
        // SAFETY: nobody writes them any more.
        is_made.then(|| unsafe { &*self.queues.get() })
    }

    /// The queues, which are made: see the invariant above.
    #[inline(always)]
    fn known(&self) -> &DiskQueues<M> {
        // SAFETY: by the invariant, whoever asks knows that they are made, from behind the Release
        // in `make`.
        unsafe { &*self.queues.get() }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> DiskQueues<M>) {
        let making = self.making.lock();
        // Relaxed: under the lock.
        if self.is_made.load(Order::Relaxed) == 0 {
            // SAFETY: whoever reads them has seen the word below, and only this thread may set it.
            unsafe { *self.queues.get() = make() };
            // Release pairs with the Acquire in `get`.
            self.is_made.store(1, Order::Release);
        }
        drop(making);
    }
}

impl<M: Machine> Disk<M> {
    /// Makes the queues, unless they are there.
    pub(crate) fn make_queues(&self) {
        if self.queues.get().is_none() {
            let shape = self.queues.shape();
            self.queues.make(|| DiskQueues::new(&self.config, shape, self.baseline.as_ref()));
        }
    }

    /// The software queues.
    #[inline(always)]
    pub(crate) fn ctxs(&self) -> &[SoftwareQueue<M>] {
        &self.queues.known().ctxs
    }

    /// The hardware queues.
    #[inline(always)]
    pub(crate) fn hctxs(&self) -> &[HardwareQueue<M>] {
        &self.queues.known().hctxs
    }

    /// The way of a batch of whoever serves to the driver.
    #[inline(always)]
    pub(crate) fn path(&self) -> SubmitPath {
        self.queues.known().path
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    use millrace_machine::Native;

    use super::*;
    use crate::queue::driver::{QueueKind, TagScope};

    fn shape() -> QueueShape {
        let (kind, tags) = (QueueKind::OwnerOnly, TagScope::PerQueue);
        let hw = HwQueues { count: 3, depth: 4, kind, tags };
        QueueShape { hw, shared: (2, 2), worker: Some(2) }
    }

    #[test]
    fn queues_are_made_once_by_whichever_thread_comes_first() {
        extern crate std;
        let config = DiskConfig::<Native>::default();
        let lazy = Arc::new(LazyQueues::<Native>::later(shape()));
        assert!(lazy.get().is_none());
        assert_eq!(lazy.shape().counts(), (2, 3));
        let made = std::thread::scope(|scope| {
            let come = || {
                lazy.make(|| DiskQueues::new(&config, &shape(), None));
                let queues = lazy.get().expect("they were made just now");
                assert_eq!((queues.ctxs.len(), queues.hctxs.len()), (2, 3));
                core::ptr::from_ref(&queues.hctxs[0]) as usize
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(come)).collect();
            threads.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(made.iter().all(|one| *one == made[0]));
    }
}
