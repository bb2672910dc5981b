//! `Signal`: wakes a queue that has blocked jobs when something happens that these jobs may wait
//! for.
//!
//! Each queue has one signal. A queue that is about to wait sets a flag and then checks its
//! condition once more; a thread that changes something checks the flags afterwards. So at least
//! one of the two sees the other. While no queue waits, a change costs one load for each queue.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Doorbell, Lock, Machine, Order, Word};

pub(crate) struct Signal<M: Machine> {
    bell: Arc<Doorbell<M>>,
    waits: M::Word,
    woken: M::Word,
}

impl<M: Machine> Signal<M> {
    /// `bell` wakes the queue's thread.
    pub(crate) fn new(bell: &Arc<Doorbell<M>>) -> Arc<Signal<M>> {
        let (waits, woken) = (M::Word::new(0), M::Word::new(0));
        Arc::new(Signal { bell: Arc::clone(bell), waits, woken })
    }

    /// Announces that the queue may wait from now on.
    pub(crate) fn begin_wait(&self) {
        // SeqCst: ordered before the checks of shards that follow; pairs with the load in `wake`.
        self.waits.store(1, Order::SeqCst);
    }

    pub(crate) fn end_wait(&self) {
        self.waits.store(0, Order::SeqCst);
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Order::Acquire) != 0
    }

    /// Returns true if something happened since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        self.is_woken() && self.woken.swap(0, Order::AcqRel) != 0
    }

    fn wake(&self) {
        // SeqCst: ordered after the change to a shard; pairs with the store in `begin_wait`.
        if self.waits.load(Order::SeqCst) != 0 {
            self.woken.store(1, Order::Release);
            self.bell.ring();
        }
    }
}

pub(crate) struct Signals<M: Machine> {
    all: M::Lock<Vec<Arc<Signal<M>>>>,
}

impl<M: Machine> Signals<M> {
    pub(crate) fn new() -> Signals<M> {
        Signals { all: M::Lock::new("cache-signals", Vec::new()) }
    }

    pub(crate) fn join(&self, signal: &Arc<Signal<M>>) {
        self.all.lock().push(Arc::clone(signal));
    }

    pub(crate) fn leave(&self, signal: &Arc<Signal<M>>) {
        self.all.lock().retain(|other| !Arc::ptr_eq(other, signal));
    }

    /// Wakes the queues that wait. Call it after a change that they may wait for.
    pub(crate) fn wake(&self) {
        self.all.lock().iter().for_each(|signal| signal.wake());
    }
}
