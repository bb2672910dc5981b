//! Software queues and hardware queues, and the map from one to the other.
//!
//! A `SoftwareQueue` (per core, per node or one) is where bios wait, first in first out, under one
//! lock taken once a batch. A `HardwareQueue` (per core, per node or one, as far as the driver has
//! them) is where they become requests and go to the driver, under its serve lock. Owned by a
//! `Disk`; used by dispatch.rs. Lock order: serve lock, then a software queue's lock; flush lock
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

use crate::chain::slot::{BioList, Slot};
use crate::queue::controller::QueueTags;
use crate::queue::driver::{DriverQueue, QueueKind};
use crate::queue::in_flight::InFlight;
use crate::queue::io_thread::IoThread;
use crate::queue::pending::Pending;
use crate::queue::request::RequestRef;
use crate::queue::scheduler::Scheduling;
use crate::queue::serve::{ServeGuard, ServeLock};
use crate::queue::tag::TagSet;

/// How soon a thread looks again at a queue that another was inside: that one may leave without
/// what this one waits for, and have rung before this one slept.
pub(crate) const INSIDE_LOOK_NS: u64 = 10_000;

/// How queues are spread over a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// One for each core.
    #[default]
    Core,
    /// One for each NUMA node.
    Node,
    /// One in all.
    One,
}

impl Spread {
    /// How many queues that is; `threads` counts I/O threads where those own queues.
    #[must_use]
    pub fn count(self, topology: &Topology, threads: u16) -> usize {
        match self {
            Spread::Core => topology.cpus().len().max(threads.into()),
            Spread::Node => topology.nodes(),
            Spread::One => 1,
        }
    }

    /// Which of `count` queues a submitter at position `place` (of the CPUs, or of the I/O threads)
    /// on `node` uses.
    #[must_use]
    pub fn index(self, place: usize, node: usize, count: usize) -> usize {
        match self {
            Spread::Core => place % count,
            Spread::Node => node % count,
            Spread::One => 0,
        }
    }
}

/// Software and hardware queue of a submitter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) ctx: u16,
    pub(crate) hctx: u16,
    /// How many submitters came before this one and with it: tells those of a queue apart.
    pub(crate) number: u32,
}

/// Where bios wait.
pub(crate) struct SoftwareQueue<M: Machine> {
    pub(crate) ctx: M::Lock<Ctx<M>>,
}

/// What the lock of a software queue protects.
pub(crate) struct Ctx<M: Machine> {
    /// A list for each hardware queue, by its number, or one if queues are pairs, and then perhaps
    /// one more for the drive's worker: a bio goes through the hardware queue that its submitter
    /// polls, or through the worker's.
    lists: Box<[BioList<M>]>,
    /// The hardware queue that the last list is for, if it is the worker's.
    worker: Option<u16>,
    /// Takes nothing new.
    pub(crate) frozen: bool,
}

impl<M: Machine> SoftwareQueue<M> {
    /// `feeds` is how many hardware queues there are, or 1 if queues are pairs; those have a list
    /// more if a worker has the hardware queue named.
    pub(crate) fn new(feeds: usize, worker: Option<u16>) -> Self {
        let worker = worker.filter(|_| feeds == 1);
        let lists = (0..feeds + usize::from(worker.is_some())).map(|_| BioList::new()).collect();
        let ctx = Ctx { lists, worker, frozen: false };
        SoftwareQueue { ctx: M::Lock::new("software-queue", ctx) }
    }
}

impl<M: Machine> Ctx<M> {
    /// What waits for a hardware queue.
    #[inline]
    pub(crate) fn list(&mut self, hctx: u16) -> &mut BioList<M> {
        let last = self.lists.len() - 1;
        let at = match self.worker {
            Some(worker) => {
                if worker == hctx {
                    last
                } else {
                    0
                }
            }
            None => last.min(hctx.into()),
        };
        &mut self.lists[at]
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(BioList::is_empty)
    }

    /// Forgets what waits: it belongs to sets that were leaked.
    pub(crate) fn leak(&mut self) {
        self.lists.iter_mut().for_each(BioList::leak);
    }
}

/// No thread's identity: a queue that its owner-to-be is opening.
const RESERVED: u64 = u64::MAX;

/// Where requests are handed to the driver.
pub(crate) struct HardwareQueue<M: Machine> {
    /// Its number among the drive's.
    pub(crate) number: u16,
    /// A software queue in which only this queue finds its list.
    pub(crate) own_ctx: u16,
    pub(crate) kind: QueueKind,
    pub(crate) serve: ServeLock<M, Serve<M>>,
    /// The software queues that have something for this one.
    pending: Pending<M>,
    /// Identity of the I/O thread that owns the queue; 0: none yet, or anybody.
    owner: M::Word,
    /// 1 while it is on its tag set's list of waiters.
    waiting: M::Word,
    bell: M::Lock<Option<Arc<Doorbell<M>>>>,
    pub(crate) tags: Arc<TagSet<M>>,
    /// Most requests in flight, flushes apart, where its set has more tags than the driver takes;
    /// else `u32::MAX`.
    pub(crate) depth_max: u32,
}

/// What the serve lock of a hardware queue protects.
pub(crate) struct Serve<M: Machine> {
    /// None until the owner has brought the queue up.
    pub(crate) queue: Option<Box<dyn DriverQueue<M>>>,
    /// Taken from software queues, without a tag yet.
    pub(crate) staged: BioList<M>,
    /// Orders what was staged, if the drive has a scheduler.
    pub(crate) scheduling: Option<Box<Scheduling<M>>>,
    /// Filled requests that the driver gave back as busy; they go first.
    pub(crate) requeued: VecDeque<RequestRef<M>>,
    /// What the driver has.
    pub(crate) in_flight: InFlight,
    pub(crate) quiesced: bool,
    /// Takes nothing new; for the stack that has no software queue.
    pub(crate) frozen: bool,
    /// Chains taken from the lists for a worker so far.
    pub(crate) taken: u64,
    /// Some of those may still be here.
    pub(crate) holds_handed: bool,
    /// How often work went from here, or from before it, back to a software queue.
    pub(crate) moves: u64,
    /// When whoever serves put its own batch in: its requests are dispatched with the same stamp.
    pub(crate) inserted_ns: u64,
}

impl<M: Machine> Serve<M> {
    /// Whether chains or filled requests wait here.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.staged.is_empty() || !self.requeued.is_empty() || self.has_scheduled()
    }

    /// Whether chains wait in a scheduler.
    #[inline]
    fn has_scheduled(&self) -> bool {
        self.scheduling.as_ref().is_some_and(|scheduling| scheduling.len() > 0)
    }

    /// Takes out all chains that wait here without a tag. The scheduler stays, empty.
    pub(crate) fn take_chains(&mut self) -> BioList<M> {
        let mut left = self.scheduling.as_mut().map_or(BioList::new(), |inside| inside.empty());
        left.append(&mut self.staged);
        left
    }

    /// The chain that is to get a tag first.
    pub(crate) fn first_waiting(&self) -> Option<&Slot<M>> {
        let picked = || self.scheduling.as_ref().and_then(|scheduling| scheduling.picked());
        self.staged.first().or_else(picked)
    }

    /// Chains that wait here without a tag.
    pub(crate) fn chains(&self) -> u32 {
        self.staged.len() + self.scheduling.as_ref().map_or(0, |scheduling| scheduling.len())
    }
}

impl<M: Machine> HardwareQueue<M> {
    /// Queue `number` of a drive that has `ctxs` software queues.
    pub(crate) fn new(number: u16, kind: QueueKind, ctxs: usize, queue: QueueTags<M>) -> Self {
        let tags = queue.tags;
        let depth = tags.depth_with_reserved() as usize;
        let serve = Serve {
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
            pending: Pending::new(ctxs),
            owner: M::Word::new(0),
            waiting: M::Word::new(0),
            bell: M::Lock::new("hardware-queue-bell", None),
            tags,
            depth_max: queue.depth_max.unwrap_or(u32::MAX),
        }
    }

    /// One of several ways into a hardware queue: a thread's own, for software queue `ctx`, with
    /// its bit in the map of software queues that they share.
    pub(crate) fn lane(self, ctx: usize, pending: Pending<M>) -> Self {
        HardwareQueue { own_ctx: ctx as u16, pending, ..self }
    }

    /// How many more requests it may hand to the driver.
    #[inline]
    pub(crate) fn room(&self, serve: &Serve<M>) -> u32 {
        self.depth_max.saturating_sub(serve.in_flight.count())
    }

    /// Whether the thread of this identity may run the queue.
    #[inline]
    pub(crate) fn may_serve(&self, owner: u64) -> bool {
        self.kind == QueueKind::AnyThread || self.is_owned_by(owner)
    }

    /// Whether a queue that the thread may run has been given work that nobody took yet, nor is
    /// about to: where threads may be interrupted anywhere, who spins keeps the one inside from its
    /// CPU. Such a thread sleeps, and not for long ([`HardwareQueue::is_being_served`]).
    pub(crate) fn has_pending_for(&self, owner: u64) -> bool {
        self.may_serve(owner) && self.has_pending() && !self.is_being_served()
    }

    /// Whether another thread is inside a queue that any may run, natively, and has yet to take
    /// what was given: it may leave without.
    pub(crate) fn is_being_served(&self) -> bool {
        M::THREADS_MOVE
            && self.kind == QueueKind::AnyThread
            && self.has_pending()
            && self.serve.is_held()
    }

    /// Whether the driver's queue, of a disk over a volume, has something to do for its owner.
    pub(crate) fn driver_has_work(&self, owner: u64) -> bool {
        if !self.is_owned_by(owner) {
            return false;
        }
        // Somebody who looks at the queue is gone in a moment: the owner asks again.
        let mut has_work = true;
        if let Some(serve) = self.serve.try_enter() {
            has_work = serve.queue.as_ref().is_some_and(|queue| queue.has_work());
            if self.leave(serve) {
                self.ring();
                has_work = true;
            }
        }
        has_work
    }

    /// Whether the queue belongs to the thread and has tags in use, as far as its set tells.
    pub(crate) fn has_tags_of(&self, owner: u64) -> bool {
        self.is_owned_by(owner) && self.tags.in_use() > 0
    }

    /// Whether some thread serves the queue.
    pub(crate) fn is_served(&self) -> bool {
        self.kind == QueueKind::AnyThread || self.has_owner()
    }

    /// Changes what the serve lock protects; goes on behind a latecomer's flag.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Serve<M>)) {
        let mut serve = self.serve.enter();
        change(&mut serve);
        if self.leave(serve) {
            // The latecomer's work is marked, and it looks for marks before it sleeps.
            self.ring();
        }
    }

    /// Leaves the queue for good, also over flags; whether there were any.
    pub(crate) fn leave(&self, serving: ServeGuard<'_, M, Serve<M>>) -> bool {
        let mut flagged = false;
        let mut inside = Some(serving);
        while let Some(serving) = inside.take() {
            inside = serving.leave();
            flagged |= inside.is_some();
        }
        flagged
    }

    /// Whether nothing waits here, and nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        let mut empty = false;
        self.change(|serve| empty = !serve.has_waiting() && serve.in_flight.count() == 0);
        empty
    }

    /// Has the queue looked at: there is something to do, but nothing new.
    pub(crate) fn mark_own(&self) {
        self.mark_pending(self.own_ctx.into());
    }

    /// Says that software queue `ctx` has something for this queue. After the insertion.
    pub(crate) fn mark_pending(&self, ctx: usize) {
        self.pending.mark(ctx);
    }

    /// Calls `f` for each software queue that has something, and forgets them.
    #[inline]
    pub(crate) fn take_pending(&self, f: impl FnMut(usize)) {
        self.pending.take(f);
    }

    /// Whether any software queue has something.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.is_any()
    }

    /// Keeps the queue for the calling thread, which is about to become its owner; false if it
    /// has an owner, or is kept for another thread.
    pub(crate) fn reserve(&self) -> bool {
        // Relaxed: nothing was written that its owner-to-be publishes; `set_owner` does.
        self.owner.compare_exchange(0, RESERVED, Order::Relaxed, Order::Relaxed).is_ok()
    }

    /// The owner goes away; false if the thread is not the owner. Its number alone proves nothing.
    pub(crate) fn give_up(&self, thread: &IoThread<M>) -> bool {
        if !self.is_owned_by(thread.owner) {
            return false;
        }
        let mut bell = self.bell.lock();
        if !bell.as_ref().is_some_and(|bell| Arc::ptr_eq(bell, &thread.bell)) {
            return false;
        }
        *bell = None;
        drop(bell);
        // Release pairs with the Acquire in `is_owned_by`.
        self.owner.store(0, Order::Release);
        true
    }

    /// Makes a thread the queue's owner.
    pub(crate) fn set_owner(&self, owner: u64, bell: Arc<Doorbell<M>>) {
        *self.bell.lock() = Some(bell);
        // Release pairs with the Acquire in `is_owned_by`.
        self.owner.store(owner, Order::Release);
    }

    /// Whether this thread is the owner.
    #[inline]
    pub(crate) fn is_owned_by(&self, owner: u64) -> bool {
        // Acquire pairs with the Release in `set_owner`.
        owner != 0 && self.owner.load(Order::Acquire) == owner
    }

    /// Whether any thread is.
    pub(crate) fn has_owner(&self) -> bool {
        // Acquire pairs with the Release in `set_owner`.
        self.owner.load(Order::Acquire) != 0
    }

    /// Names the bell to ring for a queue that has no owner: its worker's, or none any more.
    pub(crate) fn set_bell(&self, bell: Option<Arc<Doorbell<M>>>) {
        *self.bell.lock() = bell;
    }

    /// The owner goes away.
    pub(crate) fn clear_owner(&self) {
        *self.bell.lock() = None;
        // Release pairs with the Acquire in `is_owned_by`.
        self.owner.store(0, Order::Release);
    }

    /// Whether the queue was not on the list of those who wait for a tag; it is now.
    pub(crate) fn start_waiting(&self) -> bool {
        self.waiting.swap(1, Order::SeqCst) == 0
    }

    /// The queue was taken off the list of those that wait for a tag.
    pub(crate) fn stop_waiting(&self) {
        self.waiting.store(0, Order::SeqCst);
    }

    /// Wakes the owner, if there is one yet.
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

    /// Which of the lists that it has a software queue keeps for each hardware queue.
    fn lists(feeds: usize, worker: Option<u16>, hctxs: u16) -> Vec<usize> {
        let queue = SoftwareQueue::<Native>::new(feeds, worker);
        let mut ctx = queue.ctx.lock();
        let at: Vec<*const _> =
            (0..hctxs).map(|hctx| core::ptr::from_ref(ctx.list(hctx))).collect();
        let place = |list: &*const _| ctx.lists.iter().position(|one| core::ptr::eq(one, *list));
        at.iter().map(|list| place(list).expect("one of its own")).collect()
    }

    #[test]
    fn bios_for_different_hardware_queues_wait_apart_unless_queues_are_pairs() {
        assert_eq!(lists(3, None, 3), [0, 1, 2]);
        assert_eq!(lists(3, Some(1), 3), [0, 1, 2]);
        assert_eq!(lists(1, None, 3), [0, 0, 0]);
        // A worker has a list of its own then, too.
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
            marks.iter().chain(marks).for_each(|ctx| queue.mark_pending(*ctx));
            assert_eq!(queue.has_pending(), !marks.is_empty());
            let mut named = Vec::new();
            queue.take_pending(|ctx| named.push(ctx));
            assert_eq!(named, marks);
            assert!(!queue.has_pending());
            queue.take_pending(|ctx| panic!("{ctx} was taken"));
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
