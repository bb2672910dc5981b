//! `QueueSignal`: wakes a cache queue whose requests wait (blocked jobs), after an event that may
//! let one of them continue.
//!
//! Each queue of a cache has one signal. A queue that is about to wait sets a flag and then retries
//! its blocked jobs once more. A thread that changes a condition checks the flags afterwards. So
//! either the queue sees the change, or the thread sees the flag and wakes the queue. While no
//! queue waits, a change costs one load for each queue.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Doorbell, Lock, Machine, Order, Word};

pub(crate) struct QueueSignal<M: Machine> {
    bell: Arc<Doorbell<M>>,
    waits: M::Word,
    woken: M::Word,
}

impl<M: Machine> QueueSignal<M> {
    pub(crate) fn new(bell: &Arc<Doorbell<M>>) -> Arc<QueueSignal<M>> {
        let (waits, woken) = (M::Word::new(0), M::Word::new(0));
        Arc::new(QueueSignal { bell: Arc::clone(bell), waits, woken })
    }

    pub(crate) fn begin_wait(&self) {
        // SeqCst pairs with the load in `wake`. The queue stores `waits` before it checks its
        // blocked jobs again. So either this check sees another thread's change, or the other
        // thread sees `waits`.
        self.waits.store(1, Order::SeqCst);
    }

    pub(crate) fn end_wait(&self) {
        self.waits.store(0, Order::SeqCst);
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Order::Acquire) != 0
    }

    pub(crate) fn take_woken(&self) -> bool {
        self.is_woken() && self.woken.swap(0, Order::AcqRel) != 0
    }

    fn wake(&self) {
        // SeqCst: the load follows the caller's change to a shard. Pairs with the store in
        // `begin_wait`.
        if self.waits.load(Order::SeqCst) != 0 {
            self.woken.store(1, Order::Release);
            self.bell.ring();
        }
    }
}

pub(crate) struct QueueSignals<M: Machine> {
    all: M::Lock<Vec<Arc<QueueSignal<M>>>>,
}

impl<M: Machine> QueueSignals<M> {
    pub(crate) fn new() -> QueueSignals<M> {
        QueueSignals { all: M::Lock::new("cache-signals", Vec::new()) }
    }

    pub(crate) fn join(&self, signal: &Arc<QueueSignal<M>>) {
        self.all.lock().push(Arc::clone(signal));
    }

    pub(crate) fn leave(&self, signal: &Arc<QueueSignal<M>>) {
        self.all.lock().retain(|other| !Arc::ptr_eq(other, signal));
    }

    /// Wakes the cache queues that wait with blocked requests. Call this function after a change
    /// that may let such a request continue.
    pub(crate) fn wake(&self) {
        self.all.lock().iter().for_each(|signal| signal.wake());
    }
}
