//! `FirstDirty`: a callback that runs before a cache acknowledges its first write that is in memory
//! only.
//!
//! A program can leave a durable mark in the callback, and so know after a crash if the cache may
//! have lost data. No write is answered from memory before the callback has returned. No shard is
//! locked while the callback runs.

use alloc::sync::Arc;

use millrace_machine::{Lock, Machine, Order, Word};

/// Callback that runs before a cache answers its first write from memory. Any I/O thread may run
/// it.
pub type DirtyCall = Arc<dyn Fn() + Send + Sync>;

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

    /// Runs the callback unless it has already run to its end. Must be called after pages became
    /// dirty and before their writes are answered.
    #[inline]
    pub(crate) fn note(&self) {
        // Acquire pairs with the Release store in `run`. If `is_due` is 0, the callback has
        // returned or was never set, so writes may be answered from memory.
        if self.is_due.load(Order::Acquire) != 0 {
            self.run();
        }
    }

    #[cold]
    fn run(&self) {
        let call = self.call.lock().clone();
        if let Some(call) = call {
            call();
        }
        self.is_due.store(0, Order::Release);
    }
}
