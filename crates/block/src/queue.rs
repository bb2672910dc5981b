//! Software queues, hardware queues, and the mapping between them.
//!
//! Bios wait in a `SoftwareQueue`, first in first out, under a lock taken once for each batch. In a
//! `HardwareQueue` they become requests and go to the driver, under the queue's serve lock, which
//! admits one thread at a time. There is one queue of either kind per core, per NUMA node or for
//! the whole machine; the driver limits the number of hardware queues. A `Disk` owns both kinds of
//! queue; dispatch.rs uses them. Lock order: serve lock, then a software queue's lock; flush lock
//! last. Source: \[MQ\] design points 1-3. Kernel counterpart: `blk_mq_ctx`, `blk_mq_hw_ctx`.

pub(crate) mod controller;
pub(crate) mod driver;
pub(crate) mod in_flight;
pub(crate) mod io_thread;
pub(crate) mod pending;
pub(crate) mod request;
pub(crate) mod sbitmap;
pub(crate) mod scheduler;
pub(crate) mod serve;
pub(crate) mod tag;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use millrace_machine::{Doorbell, Lock, Machine, Order, Topology, Word};

use crate::chain::slot::{BioList, BioSlot};
use crate::queue::controller::QueueTags;
use crate::queue::driver::{DriverQueue, QueueKind};
use crate::queue::in_flight::InFlight;
use crate::queue::io_thread::IoThread;
use crate::queue::pending::PendingQueues;
use crate::queue::request::RequestRef;
use crate::queue::scheduler::QueueScheduler;
use crate::queue::serve::{ServeGuard, ServeLock};
use crate::queue::tag::TagSet;

/// Time, in nanoseconds, after which a thread polls a hardware queue again that it found served by
/// another thread. The other thread may stop serving and leave work in the queue.
pub(crate) const INSIDE_LOOK_NS: u64 = 10_000;

/// Distribution of queues over the CPUs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spread {
    /// One queue for each core.
    #[default]
    Core,
    /// One queue for each NUMA node.
    Node,
    /// A single queue.
    One,
}

impl Spread {
    /// Returns the number of software or hardware queues that a disk gets with this setting.
    /// `threads` is the number of threads, or 0 if only the CPUs count. `Core` gives one queue for
    /// each CPU, or for each thread if there are more threads than CPUs. The driver may allow fewer
    /// hardware queues. A disk whose hardware queues belong to I/O threads does not use this number
    /// for `Core`: such a disk gets one hardware queue for each I/O thread.
    #[must_use]
    pub fn count(self, topology: &Topology, threads: u16) -> usize {
        match self {
            Spread::Core => topology.cpus().len().max(threads.into()),
            Spread::Node => topology.nodes(),
            Spread::One => 1,
        }
    }

    /// Returns the index, below `count`, of a submitter's queue. `place` is the index of the
    /// submitter's CPU or the number of its I/O thread; `node` is the submitter's NUMA node.
    #[must_use]
    pub fn index(self, place: usize, node: usize, count: usize) -> usize {
        match self {
            Spread::Core => place % count,
            Spread::Node => node % count,
            Spread::One => 0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueRoute {
    pub(crate) ctx: u16,
    pub(crate) hctx: u16,
    /// Serial number of the submitter, to tell submitters of the same queue apart.
    pub(crate) number: u32,
}

/// A queue in which bios wait for a hardware queue.
pub(crate) struct SoftwareQueue<M: Machine> {
    /// Lists of waiting bios, one for each hardware queue that this software queue feeds. A
    /// software queue that feeds a single hardware queue may have a second list, for the drive's
    /// worker.
    lists: Box<[BioList<M>]>,
    /// Number of the hardware queue that uses the second list in `lists`: the queue of the drive's
    /// worker. `None` if there is no such list.
    worker: Option<u16>,
    pub(crate) frozen: bool,
}

impl<M: Machine> SoftwareQueue<M> {
    /// Creates a software queue with one list of bios for each of `feeds` hardware queues. If
    /// `feeds` is 1 and the drive has a worker, adds a second list. The second list is for hardware
    /// queue `worker`, which the drive's worker serves.
    pub(crate) fn new(feeds: usize, worker: Option<u16>) -> M::Lock<Self> {
        let worker = worker.filter(|_| feeds == 1);
        let lists = (0..feeds + usize::from(worker.is_some())).map(|_| BioList::new()).collect();
        M::Lock::new("software-queue", SoftwareQueue { lists, worker, frozen: false })
    }

    #[inline]
    pub(crate) fn list(&mut self, hctx: u16) -> &mut BioList<M> {
        let last = self.lists.len() - 1;
        let at = match self.worker {
            Some(worker) if worker == hctx => last,
            Some(_) => 0,
            None => last.min(hctx.into()),
        };
        &mut self.lists[at]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(BioList::is_empty)
    }

    /// Forgets the waiting bios without dropping them. The bios' memory belongs to channels, which
    /// have leaked it (`BioSet`).
    pub(crate) fn leak(&mut self) {
        self.lists.iter_mut().for_each(BioList::leak);
    }
}

pub(crate) type LockGuard<'a, M, T> = <<M as Machine>::Lock<T> as Lock<T>>::Guard<'a>;

/// Value of `owner` while a thread is opening the queue; never the identity of a thread.
const RESERVED: u64 = u64::MAX;

/// A queue through which requests are handed to the driver.
pub(crate) struct HardwareQueue<M: Machine> {
    pub(crate) number: u16,
    /// Index of the software queue that `mark_own` marks as pending. The mark makes a thread serve
    /// this hardware queue again.
    pub(crate) own_ctx: u16,
    pub(crate) kind: QueueKind,
    pub(crate) serve: ServeLock<M, HctxState<M>>,
    /// Software queues that have bios for this hardware queue.
    pub(crate) pending: PendingQueues<M>,
    /// Identity of the I/O thread that owns the queue; 0 if no thread owns it.
    owner: M::Word,
    /// 1 while the queue is in its tag set's list of waiters.
    waiting: M::Word,
    bell: M::Lock<Option<Arc<Doorbell<M>>>>,
    pub(crate) tags: Arc<TagSet<M>>,
    /// Largest number of requests in flight, flushes not counted; `u32::MAX` if the number of tags
    /// is the only limit.
    pub(crate) depth_max: u32,
}

/// State of a hardware queue; only the holder of the queue's serve lock may use the state.
pub(crate) struct HctxState<M: Machine> {
    /// The driver's queue; `None` until the owner has opened it.
    pub(crate) queue: Option<Box<dyn DriverQueue<M>>>,
    /// Bio chains (each becomes one request) that wait for dispatch, in order. If the queue has a
    /// scheduler, only flushes wait here.
    pub(crate) staged: BioList<M>,
    pub(crate) scheduling: Option<Box<QueueScheduler<M>>>,
    /// Filled requests that the driver returned as busy; they are dispatched first.
    pub(crate) requeued: VecDeque<RequestRef<M>>,
    pub(crate) in_flight: InFlight,
    pub(crate) quiesced: bool,
    /// True while the queue accepts no new bios; used only if bios bypass the software queues.
    pub(crate) frozen: bool,
    /// Number of bio chains that this queue has taken from software queues, without those that were
    /// returned to a software queue. Counted only in the hardware queue of the drive's worker, even
    /// while there is no worker.
    pub(crate) taken: u64,
    /// True while bio chains for the drive's worker may wait in this queue or be in flight.
    pub(crate) holds_handed: bool,
    /// Number of times that waiting bio chains were moved because the drive's worker had stopped
    /// serving. `Disk::is_drained` compares two readings to notice a move during its check.
    pub(crate) moves: u64,
    /// Time at which the serving thread inserted its batch, in nanoseconds. The next dispatch uses
    /// this time instead of reading the clock. 0 if no batch was inserted since the last dispatch.
    pub(crate) inserted_ns: u64,
}

impl<M: Machine> HctxState<M> {
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.staged.is_empty()
            || !self.requeued.is_empty()
            || self.scheduling.as_ref().is_some_and(|scheduling| scheduling.len > 0)
    }

    /// Takes out all waiting bio chains that have no tag. The scheduler, if any, stays.
    pub(crate) fn take_chains(&mut self) -> BioList<M> {
        let mut left = self.scheduling.as_mut().map_or(BioList::new(), |inside| inside.empty());
        left.append(&mut self.staged);
        left
    }

    pub(crate) fn first_waiting(&self) -> Option<&BioSlot<M>> {
        let picked =
            || self.scheduling.as_ref().and_then(|scheduling| scheduling.picked.as_deref());
        self.staged.first().or_else(picked)
    }

    pub(crate) fn chains(&self) -> u32 {
        self.staged.len() + self.scheduling.as_ref().map_or(0, |scheduling| scheduling.len)
    }
}

impl<M: Machine> HardwareQueue<M> {
    pub(crate) fn new(number: u16, kind: QueueKind, ctxs: usize, queue: QueueTags<M>) -> Self {
        let tags = queue.tags;
        let depth = tags.depth_with_reserved() as usize;
        let serve = HctxState {
            queue: None,
            staged: BioList::new(),
            scheduling: None,
            requeued: VecDeque::with_capacity(depth),
            in_flight: InFlight::new(depth),
            quiesced: false,
            frozen: false,
            taken: 0,
            holds_handed: false,
            moves: 0,
            inserted_ns: 0,
        };
        HardwareQueue {
            number,
            own_ctx: (usize::from(number) % ctxs) as u16,
            kind,
            serve: ServeLock::new(serve),
            pending: PendingQueues::new(ctxs),
            owner: M::Word::new(0),
            waiting: M::Word::new(0),
            bell: M::Lock::new("hardware-queue-bell", None),
            tags,
            depth_max: queue.depth_max.unwrap_or(u32::MAX),
        }
    }

    /// Turns the queue into a lane, the part of a hardware queue that one thread serves. `ctx` is
    /// the index of the software queue that feeds the lane. `pending` is the lane's bit in a bitmap
    /// that lanes share.
    pub(crate) fn lane(self, ctx: usize, pending: PendingQueues<M>) -> Self {
        HardwareQueue { own_ctx: ctx as u16, pending, ..self }
    }

    #[inline]
    pub(crate) fn room(&self, serve: &HctxState<M>) -> u32 {
        self.depth_max.saturating_sub(serve.in_flight.count())
    }

    #[inline]
    pub(crate) fn may_serve(&self, owner: u64) -> bool {
        self.kind == QueueKind::AnyThread || self.is_owned_by(owner)
    }

    /// Returns true if thread `owner` may run the queue and work is pending. Returns false while
    /// another thread serves the queue, so that a spinning caller does not take that thread's CPU.
    pub(crate) fn has_pending_for(&self, owner: u64) -> bool {
        self.may_serve(owner) && self.pending.is_any() && !self.is_being_served()
    }

    /// Returns true if work is pending and a thread is serving the queue. The serving thread may
    /// leave that work undone, so the caller checks again soon. Always false for `OwnerOnly`
    /// queues, and in simulations.
    pub(crate) fn is_being_served(&self) -> bool {
        M::THREADS_MOVE
            && self.kind == QueueKind::AnyThread
            && self.pending.is_any()
            && self.serve.is_held()
    }

    /// Returns true if the thread `owner` owns the queue and a poll of the driver would find work.
    pub(crate) fn driver_has_work(&self, owner: u64) -> bool {
        if !self.is_owned_by(owner) {
            return false;
        }
        // The driver call `has_work` needs the serve lock. While another thread holds the lock, the
        // owner must poll again instead of sleeping.
        let Some(serve) = self.serve.try_enter() else { return true };
        let has_work = serve.queue.as_ref().is_some_and(|queue| queue.has_work());
        let flagged = self.leave(serve);
        if flagged {
            self.ring();
        }
        has_work || flagged
    }

    /// Returns true if thread `owner` owns the queue, and the queue's tag set has tags in use.
    pub(crate) fn has_tags_of(&self, owner: u64) -> bool {
        self.is_owned_by(owner) && self.tags.in_use() > 0
    }

    /// Returns true if the queue has an owner or needs none.
    pub(crate) fn is_served(&self) -> bool {
        self.kind == QueueKind::AnyThread || self.has_owner()
    }

    /// Changes the queue's state under the serve lock, without serving the queue. Another thread
    /// may find the lock held meanwhile, and leave work in the queue. In that case, rings the
    /// doorbell of the queue's owner or worker, which does the work. In a queue without a doorbell,
    /// the work waits until a channel polls the queue.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut HctxState<M>) -> R) -> R {
        let mut serve = self.serve.enter();
        let result = change(&mut serve);
        if self.leave(serve) {
            // The thread that left work in the queue has marked it in `pending`. The owner checks
            // `pending` before it sleeps.
            self.ring();
        }
        result
    }

    /// Releases the serve lock, which admits one serving thread at a time. Returns true if another
    /// thread found the lock held and left work for its holder.
    pub(crate) fn leave(&self, mut serving: ServeGuard<'_, M, HctxState<M>>) -> bool {
        let mut flagged = false;
        while let Some(held) = serving.leave() {
            (serving, flagged) = (held, true);
        }
        flagged
    }

    /// Returns true if nothing waits in this queue and no request is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.change(|serve| !serve.has_waiting() && serve.in_flight.count() == 0)
    }

    /// Marks the queue as pending: a thread must serve it again, for example because a tag is free.
    pub(crate) fn mark_own(&self) {
        self.pending.mark(self.own_ctx.into());
    }

    /// Reserves the queue for the calling thread, which is about to become its owner. Returns false
    /// if the queue has an owner or is reserved already.
    pub(crate) fn reserve(&self) -> bool {
        // Relaxed: the reservation publishes no data. `set_owner` publishes the opened queue.
        self.owner.compare_exchange(0, RESERVED, Order::Relaxed, Order::Relaxed).is_ok()
    }

    /// Removes `thread` as the queue's owner, and returns true. Returns false, and changes nothing,
    /// if `thread` does not own the queue, or if the queue's doorbell is not the doorbell of
    /// `thread`.
    pub(crate) fn give_up(&self, thread: &IoThread<M>) -> bool {
        let is_threads = |bell: &Arc<Doorbell<M>>| Arc::ptr_eq(bell, &thread.bell);
        let gives =
            self.is_owned_by(thread.owner) && self.bell.lock().as_ref().is_some_and(is_threads);
        if gives {
            self.clear_owner();
        }
        gives
    }

    pub(crate) fn set_owner(&self, owner: u64, bell: Arc<Doorbell<M>>) {
        *self.bell.lock() = Some(bell);
        // Release pairs with the Acquire in `is_owned_by`.
        self.owner.store(owner, Order::Release);
    }

    #[inline]
    pub(crate) fn is_owned_by(&self, owner: u64) -> bool {
        // Acquire pairs with the Release in `set_owner`.
        owner != 0 && self.owner.load(Order::Acquire) == owner
    }

    /// Returns true if any thread owns or has reserved the queue.
    pub(crate) fn has_owner(&self) -> bool {
        // Acquire pairs with the Release in `set_owner`.
        self.owner.load(Order::Acquire) != 0
    }

    /// Sets the doorbell of the drive's worker, or removes it if `bell` is `None`. Called only for
    /// a queue that any thread may run.
    pub(crate) fn set_bell(&self, bell: Option<Arc<Doorbell<M>>>) {
        *self.bell.lock() = bell;
    }

    pub(crate) fn clear_owner(&self) {
        *self.bell.lock() = None;
        // Release pairs with the Acquire in `is_owned_by`.
        self.owner.store(0, Order::Release);
    }

    /// Marks the queue as waiting for a tag. Returns true if it was not marked before.
    pub(crate) fn start_waiting(&self) -> bool {
        self.waiting.swap(1, Order::SeqCst) == 0
    }

    pub(crate) fn stop_waiting(&self) {
        self.waiting.store(0, Order::SeqCst);
    }

    pub(crate) fn ring(&self) {
        if let Some(bell) = &*self.bell.lock() {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use millrace_machine::{Native, NativeParker, Parker};

    #[test]
    fn spreads_count_cores_nodes_and_one_and_go_round() {
        let topology = Topology::uniform(2, 4);
        let counts = |threads| {
            [Spread::Core, Spread::Node, Spread::One].map(|s| s.count(&topology, threads))
        };
        assert_eq!((counts(0), counts(8), counts(11)), ([8, 2, 1], [8, 2, 1], [11, 2, 1]));
        let index = |place, node| {
            [Spread::Core, Spread::Node, Spread::One].map(|s| s.index(place, node, 3))
        };
        assert_eq!((index(2, 1), index(7, 5)), ([2, 1, 0], [1, 2, 0]));
    }

    /// Returns the index of the list that a software queue uses for each hardware queue.
    fn lists(feeds: usize, worker: Option<u16>, hctxs: u16) -> Vec<usize> {
        let queue = SoftwareQueue::<Native>::new(feeds, worker);
        let mut ctx = queue.lock();
        let at: Vec<*const _> =
            (0..hctxs).map(|hctx| core::ptr::from_ref(ctx.list(hctx))).collect();
        let place = |list: &*const _| ctx.lists.iter().position(|one| core::ptr::eq(one, *list));
        at.iter().map(|list| place(list).expect("one of its own")).collect()
    }

    #[test]
    fn bios_of_hardware_queues_wait_apart_unless_in_pairs() {
        assert_eq!(lists(3, None, 3), [0, 1, 2]);
        assert_eq!(lists(3, Some(1), 3), [0, 1, 2]);
        assert_eq!(lists(1, None, 3), [0, 0, 0]);
        // With a worker, there is a second list.
        assert_eq!(lists(1, Some(2), 4), [0, 0, 1, 0]);
    }

    fn hardware_queue(ctxs: usize, depth_max: Option<u32>) -> HardwareQueue<Native> {
        let tags = QueueTags { tags: Arc::new(TagSet::new(4)), depth_max };
        HardwareQueue::new(0, QueueKind::AnyThread, ctxs, tags)
    }

    #[test]
    fn each_software_queue_that_was_marked_is_named_once() {
        for marks in [&[0][..], &[3, 63, 64, 130, 199], &[1, 2, 3], &[127, 128], &[]] {
            let queue = hardware_queue(200, None);
            marks.iter().chain(marks).for_each(|ctx| queue.pending.mark(*ctx));
            assert_eq!(queue.pending.is_any(), !marks.is_empty());
            let mut named = Vec::new();
            queue.pending.take(|ctx| named.push(ctx));
            assert_eq!(named, marks);
            assert!(!queue.pending.is_any());
            queue.pending.take(|ctx| panic!("{ctx} was taken"));
        }
    }

    #[test]
    fn a_queue_is_kept_then_owned_by_one_thread_and_free_after_that() {
        let queue = hardware_queue(1, None);
        let state = || (queue.has_owner(), queue.is_owned_by(5), queue.is_owned_by(0));
        for _ in 0..2 {
            assert_eq!(state(), (false, false, false));
            assert!(queue.reserve() && !queue.reserve());
            assert_eq!(state(), (true, false, false));
            queue.set_owner(5, Arc::new(Doorbell::new(NativeParker::new())));
            assert_eq!(state(), (true, true, false));
            assert!(!queue.is_owned_by(6) && !queue.reserve());
            queue.clear_owner();
        }
    }

    #[test]
    fn a_queue_joins_those_who_wait_once_until_it_was_taken_off() {
        let queue = hardware_queue(1, None);
        for _ in 0..2 {
            assert!(queue.start_waiting() && !queue.start_waiting());
            queue.stop_waiting();
        }
    }

    #[test]
    fn a_queue_has_room_for_what_its_driver_takes_and_does_not_have() {
        for (depth_max, in_flight, room) in
            [(Some(4), 0, 4), (Some(4), 3, 1), (Some(4), 6, 0), (None, 3, u32::MAX - 3)]
        {
            let queue = hardware_queue(1, depth_max);
            let mut serve = queue.serve.enter();
            serve.in_flight.pretend(in_flight);
            assert_eq!(queue.room(&serve), room);
        }
    }
}
