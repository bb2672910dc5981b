//! `DiscardRanges`: ranges that are being discarded or zeroed on the volume below.
//!
//! A write into such a range waits, and no dirty page of it is written back, because the drive
//! could execute the discard and the write in either order. A discard registers its range before it
//! examines the range's shards; a writer checks for registered ranges with the shard locked. So
//! either the discard sees the write, or the write sees the discard.

use alloc::vec::Vec;

use millrace_machine::{Lock, Machine, Order, Word};

use crate::memory::extent::EXTENT_PAGES;
use crate::memory::page::PageSize;

/// Ranges being discarded or zeroed, each as its first sector and the sector after its last.
/// `count` is the length of `spans`: a thread that finds 0 need not lock the list.
pub(crate) struct DiscardRanges<M: Machine> {
    page: PageSize,
    count: M::Word,
    spans: M::Lock<Vec<(u64, u64)>>,
}

impl<M: Machine> DiscardRanges<M> {
    pub(crate) fn new(page: PageSize) -> DiscardRanges<M> {
        let spans = M::Lock::new("cache-clearing", Vec::new());
        DiscardRanges { page, count: M::Word::new(0), spans }
    }

    pub(crate) fn join(&self, span: (u64, u64)) {
        self.spans.lock().push(span);
        self.count.fetch_add(1, Order::SeqCst);
    }

    pub(crate) fn leave(&self, span: (u64, u64)) {
        let mut spans = self.spans.lock();
        let at = spans.iter().position(|other| *other == span);
        spans.swap_remove(at.expect("a range must be registered before it is removed"));
        drop(spans);
        self.count.fetch_add(u64::MAX, Order::SeqCst);
    }

    #[inline]
    pub(crate) fn has(&self, page: u64) -> bool {
        self.count.load(Order::SeqCst) != 0 && self.look(page, 1)
    }

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
