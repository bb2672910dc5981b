//! `Clearing`: ranges that are being discarded or zeroed below.
//!
//! A write into such a range waits, and nothing dirty of it goes below: there, the order of the two
//! would be left to the drive. A discard joins before it looks at the shards of its range; a write,
//! and whoever collects what is dirty, looks here under the lock of the shard: either the discard
//! sees what they did, or they see the discard.

use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::memory::extent::EXTENT_PAGES;
use crate::memory::page::PageSize;

/// Ranges that are being discarded or zeroed below.
pub(crate) struct Clearing<M: Machine> {
    page: PageSize,
    count: M::Word,
    spans: M::Lock<Vec<(u64, u64)>>,
}

impl<M: Machine> Clearing<M> {
    /// Of a cache with pages of this size: nothing is being cleared.
    pub(crate) fn new(page: PageSize) -> Clearing<M> {
        let spans = M::Lock::new("cache-clearing", Vec::new());
        Clearing { page, count: M::Word::new(0), spans }
    }

    /// A range of sectors is being cleared from now on.
    pub(crate) fn join(&self, span: (u64, u64)) {
        self.spans.lock().push(span);
        self.count.fetch_add(1, Order::SeqCst);
    }

    /// A range is no longer being cleared.
    pub(crate) fn leave(&self, span: (u64, u64)) {
        let mut spans = self.spans.lock();
        let at = spans.iter().position(|other| *other == span);
        spans.swap_remove(at.expect("a range leaves that has joined"));
        drop(spans);
        self.count.fetch_add(u64::MAX, Order::SeqCst);
    }

    /// Whether some of a page is being cleared.
    #[inline]
    pub(crate) fn has(&self, page: u64) -> bool {
        self.count.load(Order::SeqCst) != 0 && self.look(page, 1)
    }

    /// Whether some of an extent is being cleared.
    #[inline]
    pub(crate) fn has_extent(&self, number: u64) -> bool {
        let pages = EXTENT_PAGES as u64;
        self.count.load(Order::SeqCst) != 0 && self.look(number * pages, pages)
    }

    #[cold]
    fn look(&self, page: u64, pages: u64) -> bool {
        let (start, end) = (self.page.start_of(page), self.page.start_of(page + pages));
        self.spans.lock().iter().any(|(from, to)| *from < end && start < *to)
    }
}
