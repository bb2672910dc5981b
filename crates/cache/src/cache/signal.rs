//! `Signal`: tells a queue that waits that something it may wait for has happened.
//!
//! One for each queue. A queue that is about to wait says so first and looks once more; whoever
//! changes something looks who waits afterwards: one of the two sees the other. Nobody pays but a
//! load while nobody waits.

use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_machine::{Doorbell, Lock, Machine, Order, Word};

/// Tells one queue.
pub(crate) struct Signal<M: Machine> {
    bell: Arc<Doorbell<M>>,
    waits: M::Word,
    woken: M::Word,
}

impl<M: Machine> Signal<M> {
    /// The signal of a queue whose owner this bell wakes.
    pub(crate) fn new(bell: &Arc<Doorbell<M>>) -> Arc<Signal<M>> {
        let (waits, woken) = (M::Word::new(0), M::Word::new(0));
        Arc::new(Signal { bell: Arc::clone(bell), waits, woken })
    }

    /// The queue may wait from now on.
    pub(crate) fn begin_wait(&self) {
        // SeqCst: before the look at shards that follows; pairs with the load in `wake`.
        self.waits.store(1, Order::SeqCst);
    }

    /// The queue waits for nothing.
    pub(crate) fn end_wait(&self) {
        self.waits.store(0, Order::SeqCst);
    }

    /// Whether something has happened, without forgetting it.
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Order::Acquire) != 0
    }

    /// Whether something has happened; forgets it.
    pub(crate) fn take_woken(&self) -> bool {
        self.is_woken() && self.woken.swap(0, Order::AcqRel) != 0
    }

    fn wake(&self) {
        // SeqCst: after the change of a shard; pairs with the store in `begin_wait`.
        if self.waits.load(Order::SeqCst) != 0 {
            self.woken.store(1, Order::Release);
            self.bell.ring();
        }
    }
}

/// The signals of all queues of a cache.
pub(crate) struct Signals<M: Machine> {
    all: M::Lock<Vec<Arc<Signal<M>>>>,
}

impl<M: Machine> Signals<M> {
    pub(crate) fn new() -> Signals<M> {
        Signals { all: M::Lock::new("cache-signals", Vec::new()) }
    }

    /// A queue is there from now on.
    pub(crate) fn join(&self, signal: &Arc<Signal<M>>) {
        self.all.lock().push(Arc::clone(signal));
    }

    /// A queue is gone.
    pub(crate) fn leave(&self, signal: &Arc<Signal<M>>) {
        self.all.lock().retain(|other| !Arc::ptr_eq(other, signal));
    }

    /// Something has happened that queues may wait for.
    pub(crate) fn wake(&self) {
        self.all.lock().iter().for_each(|signal| signal.wake());
    }
}
