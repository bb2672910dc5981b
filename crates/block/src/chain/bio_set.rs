//! `BioSet`: the part of a channel that other threads share: its slots and its completion list.
//!
//! Owned by a `Channel`, or by a `Worker` as a set without slots. Other threads reach it through
//! `BioSlot::bio_set`: they push completed bios onto a lock-free list (many producers, one consumer
//! that takes all bios at once) and ring the channel's doorbell. Invariant: the set is freed only
//! when no slot is in use and no drive may still write memory of its bios; otherwise the set is
//! leaked. Lock order: none. Kernel counterpart: `llist_head` of the completion softirq.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::sync::Arc;

use millrace_machine::{Doorbell, Line, Machine, Order, Word};

use crate::chain::slot::{BioList, BioRef, BioSlot};

pub(crate) struct BioSet<M: Machine> {
    /// Head of the linked list of completed bios, the newest first; 0 if the list is empty.
    completed: M::Word,
    /// Number of `BioSetRef`s: one for each bio of the set whose request was abandoned after a
    /// timeout, and that the drive has not completed yet.
    pub(crate) abandoned: M::Word,
    pub(crate) bell: Arc<Doorbell<M>>,
    slots: Box<[M::Line<BioSlot<M>>]>,
}

impl<M: Machine> BioSet<M> {
    pub(crate) fn new(slots: usize, bell: Arc<Doorbell<M>>) -> Box<Self> {
        let make = |_| M::Line::new(BioSlot::empty(core::ptr::null()));
        Box::new(BioSet {
            completed: M::Word::new(0),
            abandoned: M::Word::new(0),
            bell,
            slots: (0..slots).map(make).collect(),
        })
    }

    /// Creates the handles of the slots in `range`, once: no slot may have two handles.
    pub(crate) fn handles(&self, range: core::ops::Range<usize>) -> BioList<M> {
        let mut list = BioList::new();
        for line in &self.slots[range] {
            // SAFETY: no handle of this slot exists yet, and the set does not move (it is boxed).
            unsafe { (*line.write()).bio_set = self };
            list.push_back(BioRef::first(line));
        }
        list
    }

    pub(crate) fn deliver_to(bio_set: *const BioSet<M>, list: BioList<M>) {
        // SAFETY: a set outlives its bios in use, and the list holds some of them.
        unsafe { &*bio_set }.deliver(list);
    }

    /// Returns the doorbell of the channel that submitted `bio`. Callers get the doorbell before
    /// they hand over the bio, because the channel may then be freed at once.
    pub(crate) fn bell_of(bio: &BioSlot<M>) -> Arc<Doorbell<M>> {
        // SAFETY: a set outlives its bios in use, and this is one.
        Arc::clone(unsafe { &(*bio.bio_set).bell })
    }

    /// Hands a list of completed bios to the channel's thread and wakes the thread if it sleeps.
    pub(crate) fn deliver(&self, mut list: BioList<M>) {
        // The doorbell is cloned first, because this set may be freed once its last bio is
        // delivered.
        let bell = Arc::clone(&self.bell);
        while let Some(mut bio) = list.pop_front() {
            let mut old = self.completed.load(Order::Relaxed); // Relaxed: the exchange decides
            let bits = bio.as_bits();
            loop {
                // SAFETY: `old` is 0 or a pushed bio, and a failed exchange forgets the handle.
                bio.link(unsafe { BioRef::from_bits(old) });
                // Release pairs with the Acquire of `take_delivered`.
                match self.completed.compare_exchange(old, bits, Order::Release, Order::Relaxed) {
                    Ok(_) => break,
                    Err(now) => old = now,
                }
            }
            core::mem::forget(bio);
        }
        bell.ring();
    }

    /// Takes all delivered bios in order. Only the channel's thread calls this function.
    pub(crate) fn take_delivered(&self) -> BioList<M> {
        let mut list = BioList::new();
        // Relaxed: a quick check. The Acquire of the `swap` orders all accesses to the bios.
        if self.completed.load(Order::Relaxed) == 0 {
            return list;
        }
        // Acquire pairs with the Release of `deliver`.
        let bits = self.completed.swap(0, Order::Acquire);
        // SAFETY: the swap took the list away from everybody else.
        let mut next = unsafe { BioRef::from_bits(bits) };
        while let Some(mut bio) = next {
            next = bio.next.take();
            bio.touch();
            list.push_front(bio);
        }
        list
    }

    /// Returns true if other threads have delivered bios. Called last before the thread sleeps.
    pub(crate) fn has_delivered(&self) -> bool {
        // Relaxed: the fence of `Doorbell::arm` orders this load.
        self.completed.load(Order::Relaxed) != 0
    }
}

/// Keeps a `BioSet` allocated while a drive may still use memory of a timed-out request.
pub(crate) struct BioSetRef<M: Machine>(*const BioSet<M>);

// SAFETY: it only counts in an atomic of a set that is not freed while this exists.
unsafe impl<M: Machine> Send for BioSetRef<M> {}

impl<M: Machine> BioSetRef<M> {
    /// Creates a reference to `bio_set`, for a bio whose request was abandoned after a timeout. The
    /// drive may still use the bio's memory, if the bio has any. The field `abandoned` counts these
    /// references. The set is not freed while the count is not 0.
    pub(crate) fn new(bio_set: *const BioSet<M>) -> Self {
        // SAFETY: the bio is still in use, so its set exists.
        unsafe { &*bio_set }.abandoned.fetch_add(1, Order::SeqCst);
        BioSetRef(bio_set)
    }
}

impl<M: Machine> Drop for BioSetRef<M> {
    fn drop(&mut self) {
        // SAFETY: counted up in `new`, so the set has not been freed.
        unsafe { &*self.0 }.abandoned.fetch_add(u64::MAX, Order::SeqCst);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec::Vec;
    use millrace_machine::{Native, Parker};

    pub(crate) fn bio_set(slots: usize) -> Box<BioSet<Native>> {
        BioSet::new(slots, Arc::new(Doorbell::new(<Native as Machine>::Parker::new())))
    }

    #[test]
    fn what_is_delivered_comes_in_its_order_and_sleeper_is_woken() {
        let bio_set = bio_set(4);
        let (mut slots, mut first, mut second) =
            (bio_set.handles(0..4), BioList::new(), BioList::new());
        for number in 0..4 {
            let mut slot = slots.pop_front().expect("one of four");
            slot.dev_sector = number;
            if number < 2 { first.push_back(slot) } else { second.push_back(slot) }
        }
        assert!(!bio_set.has_delivered() && bio_set.take_delivered().is_empty());
        bio_set.bell.arm();
        BioSet::deliver_to(&raw const *bio_set, first);
        // The doorbell was rung after it was armed, so this call does not sleep.
        bio_set.bell.sleep_unless(None, || false);
        assert!(bio_set.has_delivered());
        bio_set.deliver(second);
        let mut list = bio_set.take_delivered();
        let mut order = Vec::new();
        list.for_each(|slot| order.push(slot.dev_sector));
        assert_eq!(order, [0, 1, 2, 3]);
        assert!(!bio_set.has_delivered() && bio_set.take_delivered().is_empty());
        list.unlink();
    }

    #[test]
    fn requests_given_up_on_count_until_the_drive_confirms_them() {
        let bio_set = bio_set(0);
        let count = || bio_set.abandoned.load(Order::SeqCst);
        let (first, second) =
            (BioSetRef::new(&raw const *bio_set), BioSetRef::new(&raw const *bio_set));
        assert_eq!(count(), 2);
        drop(first);
        assert_eq!(count(), 1);
        drop(second);
        assert_eq!(count(), 0);
    }
}
