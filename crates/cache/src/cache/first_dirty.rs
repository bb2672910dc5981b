//! `FirstDirty`: a call before a cache answers the first write that is in memory only.
//!
//! A program that must know after a crash whether a cache may have lost something makes a durable
//! mark in this call. No write is answered before it has returned once. Afterwards each batch of
//! newly dirty pages pays a load of a word that never changes. Called by cache.rs; no lock of a
//! shard is held meanwhile.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Word};

/// A function that any thread may call.
pub type DirtyCall = Arc<dyn Fn() + Send + Sync>;

/// The call, until it has returned.
pub(crate) struct FirstDirty<M: Machine> {
    is_due: M::Word,
    call: M::Lock<Option<DirtyCall>>,
}

impl<M: Machine> FirstDirty<M> {
    pub(crate) fn new() -> Self {
        FirstDirty { is_due: M::Word::new(0), call: M::Lock::new("cache-first-dirty", None) }
    }

    pub(crate) fn set(&self, call: DirtyCall) {
        *self.call.lock() = Some(call);
        self.is_due.store(1, Order::Release);
    }

    /// Pages have become dirty, of writes that are not answered yet.
    #[inline]
    pub(crate) fn note(&self) {
        // Acquire pairs with the Release below: the call has returned.
        if self.is_due.load(Order::Acquire) != 0 {
            self.run();
        }
    }

    /// Threads that come meanwhile call it, too, and wait in there for the first.
    #[cold]
    fn run(&self) {
        let call = self.call.lock().clone();
        if let Some(call) = call {
            call();
        }
        self.is_due.store(0, Order::Release);
    }
}
