//! `Mailbox`: a few things on their way to an I/O thread, which is rung.
//!
//! Connections that another thread accepted, orders of a device's control thread: rare, so a lock
//! and a list do. Used by both servers.
//!
//! Lock order: its lock is taken alone, and for a few instructions. Invariant: looking whether
//! there is something costs the owner one relaxed load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_machine::{Doorbell, Native};

/// Things for one I/O thread.
pub(crate) struct Mailbox<T> {
    /// How many there are, so that looking costs no lock.
    count: AtomicUsize,
    things: Mutex<VecDeque<T>>,
    bell: OnceLock<Arc<Doorbell<Native>>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        let (count, bell) = (AtomicUsize::new(0), OnceLock::new());
        Mailbox { count, things: Mutex::default(), bell }
    }
}

impl<T> Mailbox<T> {
    /// Adds something and wakes the owner.
    pub(crate) fn put(&self, thing: T) {
        lock(&self.things).push_back(thing);
        // SeqCst: ordered against the owner's last look by the fences of the doorbell.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.ring();
    }

    /// Takes what came first.
    pub(crate) fn take(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let taken = lock(&self.things).pop_front()?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(taken)
    }

    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: a look; the lock orders the contents, the doorbell's fence the last look.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Says how the thread that owns the mailbox is woken.
    pub(crate) fn set_bell(&self, bell: Arc<Doorbell<Native>>) {
        // A mailbox has one owner, which calls this once.
        let _ = self.bell.set(bell);
    }

    /// Wakes the owner.
    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }
}

/// Takes a lock; the data behind these locks are whole whatever a panicking thread did.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
