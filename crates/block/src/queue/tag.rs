//! `TagSet`: tags, their requests, and the queues that wait for a free tag.
//!
//! Owned by a hardware queue, by all queues of a drive, or by several drives. Tags are taken only
//! for requests that are ready for dispatch, and the unused rest of a batch is returned at once. A
//! queue that finds no free tag joins a list in order of arrival; the thread that frees tags wakes
//! the first queue of the list, which passes the wake-up on. Two reserved tags serve flushes, so a
//! flush never waits behind data. Kernel counterpart: `struct blk_mq_tags`.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Weak;
use core::any::Any;

use millrace_machine::{Line, Lock, Machine, Order, Word, debug_fields};

use crate::chain::slot::BioRef;
use crate::queue::request::{Request, RequestRef, Tag};
use crate::queue::sbitmap::{Sbitmap, TagBits};

pub(crate) trait TagUser: Any + Send + Sync {
    /// Wakes a thread that may run hardware queue `hctx`, so that the thread tries again to take a
    /// tag. The queue is no longer in the tag set's list of waiting queues.
    fn look_for_tag(&self, hctx: u16);
}

pub(crate) struct WaitingQueue {
    pub(crate) drive: Weak<dyn TagUser>,
    pub(crate) hctx: u16,
}

/// A set of tags, with one request for each tag.
#[doc(alias = "blk_mq_tags")]
pub struct TagSet<M: Machine> {
    map: Sbitmap<M>,
    requests: Box<[M::Line<Request<M>>]>,
    /// Bitmap of the reserved tags, whose numbers follow those of the ordinary tags.
    reserved: Sbitmap<M>,
    /// Length of `waiters`, kept here to be read without the lock.
    waiting: M::Word,
    waiters: M::Lock<VecDeque<WaitingQueue>>,
}

debug_fields!(TagSet<M: Machine>);

/// Number of additional tags that are reserved for flushes.
const RESERVED: u32 = 2;

impl<M: Machine> TagSet<M> {
    /// Creates a set of `depth` tags, 1 to 65,536. Two reserved tags with higher numbers are added.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        let map = Sbitmap::new(depth.clamp(1, 65_536));
        let request = |tag| {
            let bits = if tag < map.depth() { map.bit_of(tag) } else { TagBits::RESERVED };
            M::Line::new(Request::idle(Tag(tag), bits))
        };
        TagSet {
            requests: (0..map.depth() + RESERVED).map(request).collect(),
            map,
            reserved: Sbitmap::new(RESERVED),
            waiting: M::Word::new(0),
            waiters: M::Lock::new("tag-waiters", VecDeque::with_capacity(64)),
        }
    }

    /// Returns the number of tags, including the reserved ones.
    #[must_use]
    pub fn depth_with_reserved(&self) -> u32 {
        self.map.depth() + RESERVED
    }

    /// Returns the number of tags in use.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.map.weight() + self.reserved.weight()
    }

    #[inline(always)]
    pub(crate) fn take(&self, hint: &mut u32, want: u32) -> Option<TagBatch> {
        self.map.take(hint, want).map(|bits| TagBatch { bits, base: self.map.number(bits.word, 0) })
    }

    #[inline(always)]
    pub(crate) fn take_one(&self, hint: &mut u32) -> Option<RequestRef<M>> {
        self.take(hint, 1).and_then(|mut one| self.next(&mut one))
    }

    /// Removes the first tag from a batch that was taken from this set, and returns its request.
    #[inline(always)]
    pub(crate) fn next(&self, batch: &mut TagBatch) -> Option<RequestRef<M>> {
        let bit = batch.bits.mask.trailing_zeros();
        if batch.bits.mask == 0 {
            return None;
        }
        batch.bits.mask &= batch.bits.mask - 1;
        // SAFETY: the tag was taken with the batch and has just been removed from it.
        Some(unsafe { self.reclaim(Tag(batch.base + bit)) })
    }

    pub(crate) fn give_rest(&self, batch: TagBatch) {
        if batch.bits.mask != 0 {
            self.map.give(batch.bits);
        }
    }

    pub(crate) fn take_reserved(&self) -> Option<RequestRef<M>> {
        let bits = self.reserved.take(&mut 0, 1)?;
        let bit = bits.mask.trailing_zeros();
        let tag = Tag(self.map.depth() + self.reserved.number(bits.word, bit));
        // SAFETY: the tag was taken just now.
        Some(unsafe { self.reclaim(tag) })
    }

    /// Adds the request's tag to `gather`, a batch of tags to free. If `gather` holds tags of
    /// another bitmap word, frees these first.
    #[inline(always)]
    pub(crate) fn give(&self, gather: &mut TagBatch, rq: RequestRef<M>) {
        let bits = rq.bits;
        if bits.word != gather.bits.word {
            return self.give_of_other_word(gather, rq);
        }
        assert!(gather.bits.mask & bits.mask == 0, "tag {} completed twice", rq.tag().0);
        core::mem::forget(rq);
        gather.bits.mask |= bits.mask;
    }

    /// Frees the tag of `rq` at once if the tag is reserved. Otherwise frees the tags collected in
    /// `gather`, which belong to another bitmap word. The tag of `rq` then becomes the first of a
    /// new batch in `gather`.
    #[inline(never)]
    fn give_of_other_word(&self, gather: &mut TagBatch, rq: RequestRef<M>) {
        let (tag, bits) = (rq.tag(), rq.bits);
        core::mem::forget(rq);
        if bits == TagBits::RESERVED {
            return self.reserved.give(self.reserved.bit_of(tag.0 - self.map.depth()));
        }
        if gather.bits.mask != 0 {
            self.map.give(gather.bits);
        }
        gather.bits = bits;
    }

    /// Frees a single tag at once. The tag must not be reserved.
    #[inline(always)]
    pub(crate) fn give_one(&self, rq: RequestRef<M>) {
        let bits = rq.bits;
        core::mem::forget(rq);
        self.map.give(bits);
    }

    /// Takes the bios out of a request that was not dispatched, and frees the request's tag.
    pub(crate) fn take_apart(&self, mut rq: RequestRef<M>) -> BioRef<M> {
        rq.touch();
        let chain = rq.empty();
        let mut batch = TagBatch::EMPTY;
        self.give(&mut batch, rq);
        self.give_rest(batch);
        chain
    }

    /// Returns true if a tag other than the reserved ones is free at this moment.
    pub(crate) fn has_free(&self) -> bool {
        self.map.weight() < self.map.depth()
    }

    /// Creates the handle of a tag's request.
    ///
    /// # Safety
    /// The caller owns the tag: it has just taken the tag, or the driver that had the request has
    /// given it back. No other handle of the request exists.
    #[inline(always)]
    pub(crate) unsafe fn reclaim(&self, tag: Tag) -> RequestRef<M> {
        // SAFETY: by the contract above.
        unsafe { RequestRef::of(&self.requests[tag.0 as usize]) }
    }

    /// Returns a request that was dispatched to a driver.
    ///
    /// # Safety
    /// The request is in flight in a queue that the caller serves, and the caller makes no second
    /// reference to it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn lent(&self, tag: Tag) -> &mut Request<M> {
        // SAFETY: exclusive by the contract above; the driver only reads the request.
        unsafe { &mut *self.requests[tag.0 as usize].write() }
    }

    /// Adds a queue to the list of waiters. The caller must then try once more to take a tag.
    /// Either this attempt finds a tag that was freed meanwhile, or the thread that frees a tag
    /// sees the waiter, because all accesses of both threads are SeqCst.
    pub(crate) fn wait(&self, waiter: WaitingQueue) {
        let mut waiters = self.waiters.lock();
        waiters.push_back(waiter);
        self.waiting.store(waiters.len() as u64, Order::SeqCst);
    }

    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Order::SeqCst) != 0
    }

    /// Wakes all waiting queues. Usually, only the first waiting queue is woken, and the others are
    /// woken later, one by one. Called where no thread would wake the others: for example, after
    /// the first queue was closed.
    pub(crate) fn wake_all(&self) {
        while let Some(waiter) = self.wake_one() {
            if let Some(drive) = waiter.drive.upgrade() {
                drive.look_for_tag(waiter.hctx);
            }
        }
    }

    /// Removes the first queue from the list of waiters, and returns it for a wake-up.
    pub(crate) fn wake_one(&self) -> Option<WaitingQueue> {
        let mut waiters = self.waiters.lock();
        let first = waiters.pop_front();
        self.waiting.store(waiters.len() as u64, Order::SeqCst);
        first
    }
}

impl<M: Machine> Drop for TagSet<M> {
    /// Leaks the bios of requests that a drive never completed. Each bio's memory belongs to a
    /// `BioSet`, which is leaked as well if its channel goes away while I/O is in flight.
    fn drop(&mut self) {
        for line in &self.requests {
            // SAFETY: no other thread has the tag set any more.
            core::mem::forget(unsafe { &mut *line.write() }.chain.take());
        }
    }
}

/// Tags of one bitmap word that were taken together or will be freed together.
#[derive(Debug)]
pub(crate) struct TagBatch {
    bits: TagBits,
    base: u32,
}

impl TagBatch {
    pub(crate) const EMPTY: TagBatch = TagBatch { bits: TagBits::NONE, base: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bits.mask == 0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use millrace_machine::Native;
    use proptest::prelude::*;

    struct GoneDrive;

    impl TagUser for GoneDrive {
        fn look_for_tag(&self, _: u16) {}
    }

    /// Creates an entry for the list of hardware queues that wait for a tag. Tests check only the
    /// list, so the entry has no drive to wake.
    pub(crate) fn waiter(hctx: u16) -> WaitingQueue {
        WaitingQueue { drive: Weak::<GoneDrive>::new(), hctx }
    }

    /// Returns the number of a request's tag. Forgets the request's handle, so the tag stays in
    /// use.
    fn number(rq: Option<RequestRef<Native>>) -> Option<u32> {
        let rq = rq?;
        let tag = rq.tag().0;
        core::mem::forget(rq);
        Some(tag)
    }

    #[test]
    fn who_waits_for_a_tag_is_woken_in_the_order_of_coming() {
        let tags = TagSet::<Native>::new(1);
        assert!(!tags.has_waiters());
        (1..4).for_each(|hctx| tags.wait(waiter(hctx)));
        for hctx in 1..3 {
            assert!(tags.has_waiters());
            assert_eq!(tags.wake_one().map(|waiter| waiter.hctx), Some(hctx));
        }
        tags.wait(waiter(4));
        tags.wake_all();
        assert!(!tags.has_waiters() && tags.wake_one().is_none());
    }

    #[test]
    #[should_panic(expected = "tag 0 completed twice")]
    fn a_tag_given_back_twice_in_a_batch_is_a_bug() {
        let tags = TagSet::<Native>::new(4);
        let rq = tags.take_one(&mut 0).expect("it is free");
        // SAFETY: only this thread uses both handles of the request, and only to read.
        // A second handle breaks the rule of `reclaim` on purpose: `give` must detect a double
        // free.
        let (second, mut batch) = (unsafe { tags.reclaim(rq.tag()) }, TagBatch::EMPTY);
        tags.give(&mut batch, rq);
        tags.give(&mut batch, second);
    }

    proptest! {
        #[test]
        fn tags_of_both_kinds_agree_with_a_set(
            depth in 1u32..150,
            steps in proptest::collection::vec((0u8..4, 0u32..40, 1u32..70), 1..100),
        ) {
            let tags = TagSet::<Native>::new(depth);
            prop_assert_eq!(tags.depth_with_reserved(), depth + RESERVED);
            let mut taken = BTreeSet::new();
            for (step, hint, want) in steps {
                let data = taken.iter().filter(|tag| **tag < depth).count() as u32;
                match step {
                    0 => match tags.take(&mut hint.clone(), want) {
                        Some(mut batch) => {
                            prop_assert!(!batch.is_empty());
                            let each = || number(tags.next(&mut batch));
                            let all: Vec<u32> = core::iter::from_fn(each)
                                // `give_rest` below frees the unused rest of the batch.
                                .take(want as usize / 2 + 1)
                                .collect();
                            prop_assert!(all.iter().all(|tag| *tag < depth && taken.insert(*tag)));
                            tags.give_rest(batch);
                        }
                        None => prop_assert_eq!(data, depth),
                    },
                    1 => match tags.take_reserved() {
                        Some(rq) => {
                            let tag = number(Some(rq)).expect("it has one");
                            prop_assert!(tag >= depth && taken.insert(tag));
                        }
                        None => prop_assert_eq!(taken.len() as u32 - data, RESERVED),
                    },
                    _ => {
                        let mut batch = TagBatch::EMPTY;
                        let some = taken.iter().skip(hint as usize / 4).take(want as usize);
                        let back: Vec<u32> = some.copied().collect();
                        for tag in back {
                            // SAFETY: the tag was taken above, and its handle forgotten.
                            let rq = unsafe { tags.reclaim(Tag(tag)) };
                            prop_assert_eq!(rq.tag(), Tag(tag));
                            tags.give(&mut batch, rq);
                            taken.remove(&tag);
                        }
                        tags.give_rest(batch);
                    }
                }
                let data = taken.iter().filter(|tag| **tag < depth).count() as u32;
                prop_assert_eq!(tags.in_use() as usize, taken.len());
                prop_assert_eq!(tags.has_free(), data < depth);
                prop_assert!(taken.iter().all(|tag| *tag < tags.depth_with_reserved()));
            }
        }
    }
}
