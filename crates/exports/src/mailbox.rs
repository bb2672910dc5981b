//! `Mailbox`: a queue of messages to one I/O thread, which is woken by a doorbell.
//!
//! Messages are rare, so a list under a lock is fast enough. Lock order: the mailbox's lock is
//! taken alone and briefly. Invariant: a check for messages costs the owner one relaxed load.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub(crate) use millrace_machine::lock_unpoisoned as lock;
use millrace_machine::{Doorbell, Native};

pub(crate) struct Mailbox<T> {
    /// Length of the queue, readable without the lock.
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
    pub(crate) fn put(&self, thing: T) {
        lock(&self.things).push_back(thing);
        // SeqCst: pairs with the fences of the doorbell. Before the mailbox's owner sleeps, it arms
        // its doorbell and then checks `count`, so it sees this message or is woken by `ring`.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.ring();
    }

    pub(crate) fn take(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let taken = lock(&self.things).pop_front()?;
        self.count.fetch_sub(1, Ordering::SeqCst);
        Some(taken)
    }

    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: `count` is a hint. The lock of `things` orders access to the messages. Before
        // the mailbox's owner sleeps, it arms its doorbell and checks `count` again. The doorbell's
        // fence orders that last check.
        self.count.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn set_bell(&self, bell: Arc<Doorbell<Native>>) {
        // Setting the doorbell cannot fail, because only the owner of the mailbox sets it, and only
        // once.
        let _ = self.bell.set(bell);
    }

    pub(crate) fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }
}
