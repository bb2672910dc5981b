//! Writes of a cache queue: data are copied to memory, and are dirty from then on.
//!
//! A write to a page that is being written to a drive goes to a new frame (memory of one page). A
//! write to a clean page waits while the dirty limit is reached or no frame is free. If the page's
//! drive refuses writes and has used up its share of dirty pages, the write fails. After the copy,
//! FUA writes and all writes of a write-through cache continue to the volume (sync.rs).
#![allow(unsafe_code)]

use core::ops::Range;

use millrace_block::{Op, OpFlags, Request, Status};
use millrace_machine::{Lock, Machine};

use crate::cache::Cache;
use crate::front::jobs::{CacheJob, JobStep};
use crate::front::queue::CacheQueue;
use crate::memory::cursor::{CopyDirection, RequestCursor, span_of, wanted_of};
use crate::memory::extent::{EXTENT_PAGES, Extent, place_of};

impl<M: Machine> CacheQueue<M> {
    pub(crate) fn is_durable(&self, rq: &Request<M>) -> bool {
        self.cache.is_write_through() || rq.flags().has(OpFlags::FUA)
    }

    /// Copies pages of a write to memory, up to the first page that must wait. Returns the
    /// remaining pages. In a write-through cache, the request then counts as a writer
    /// (`FailedPages::claims`) of each extent that it copies to. `claims_from` is the first page
    /// that the request has not finished; 0 for a new request.
    #[inline]
    pub(crate) fn write_pages(
        &mut self,
        rq: &Request<M>,
        mut pages: Range<u64>,
        claims_from: u64,
    ) -> Range<u64> {
        let cache = &*self.cache;
        let (mut cursor, first) =
            (RequestCursor::new(rq), self.pages_of(rq).start.max(claims_from));
        let (mut newly_dirty, written_from) = (0, pages.start);
        while !pages.is_empty() {
            let (number, place) = place_of(pages.start);
            let mut shard = cache.shard(number).lock();
            if cache.clearing.has(pages.start) {
                break;
            }
            let at = shard.find_or_insert(number);
            let extent = shard.extent(at);
            let fits = needs_no_room(cache, extent, pages.start)
                || cache.has_room(pages.start, newly_dirty);
            let frame = fits.then(|| shard.frame_to_write(&cache.frames, at, place)).flatten();
            let Some(frame) = frame else {
                shard.forget_if_empty(at);
                break;
            };
            let way = CopyDirection::FromRequest;
            // SAFETY: the request is in flight, and the shard is locked.
            unsafe { cursor.copy_page(way, &cache.frames, pages.start, frame) };
            let wanted = wanted_of(cache.page, rq, pages.start);
            let was_clean = shard.note_written(at, place, wanted, cache.dirtied());
            if was_clean {
                cache.strand(&mut shard, at, pages.start);
            }
            shard.extent_mut(at).note_hit(place);
            if cache.is_write_through() && (place == 0 || pages.start == first) {
                shard.extent_mut(at).failed.claims += 1;
            }
            shard.stats.written += 1;
            shard.stats.overwritten += u64::from(!was_clean);
            newly_dirty += u64::from(was_clean);
            pages.start += 1;
        }
        if newly_dirty > 0 {
            cache.add_dirty(newly_dirty);
        } else if pages.start > written_from {
            // Another thread may just have made these pages dirty, and still run the callback.
            cache.first_dirty.note();
        }
        pages
    }

    pub(crate) fn advance_write(&mut self, at: usize) {
        let rq = self.jobs[at].rq();
        let before: Range<u64> = self.jobs[at].todo.pop().unwrap_or(0..0);
        let rest = self.write_pages(rq, before, self.jobs[at].claims_from);
        if !rest.is_empty() && self.cache.is_write_through() {
            return wait_for_room(self, at, rest);
        }
        if !rest.is_empty() {
            let refusal = self.refusal(rest.start);
            self.jobs[at].todo.push(rest);
            if let Some(status) = refusal {
                return self.end_job(at, status);
            }
            return self.wait_for_memory(at);
        }
        if self.is_durable(rq) {
            return begin_sync(self, at);
        }
        self.jobs.remove(at);
        self.end_write(rq);
    }

    fn wait_for_memory(&mut self, at: usize) {
        match self.cache.flusher.is_there() {
            true => self.cache.flusher.ask_memory(),
            false => self.write_some_back(),
        }
        self.block(at);
    }

    /// Returns the error for a write to `page` that found no room because of failing drives. `None`
    /// means that the write waits until there is room.
    fn refusal(&self, page: u64) -> Option<Status> {
        let (number, _) = place_of(page);
        let shard = self.cache.shard(number).lock();
        let extent = shard.find(number).map(|at| shard.extent(at));
        let has_room = extent.is_some_and(|extent| needs_no_room(&self.cache, extent, page));
        if has_room || self.cache.clearing.has(page) {
            return None;
        }
        let is_stranded = shard.is_stranded();
        drop(shard);
        let no_memory = || self.cache.failed_writes.refusal().filter(|_| is_stranded);
        self.cache.refusal(page).or_else(no_memory)
    }
}

/// Returns true if a write to the page needs no room under the dirty limit, for one of two reasons.
/// Either the page is dirty already, or it is being written to a failing drive. In the second case,
/// the page counts as dirty until the write to the drive succeeds.
fn needs_no_room<M: Machine>(cache: &Cache<M>, extent: &Extent, page: u64) -> bool {
    let place = place_of(page).1;
    let is_tried = || extent.writing & 1 << place != 0 && cache.failed_writes.fails_at(cache, page);
    extent.dirty[place] != 0 || is_tried()
}

/// Subtracts a write from the counts of writers of its extents (`FailedPages::claims`). Called
/// before the write is completed.
pub(crate) fn release_claims<M: Machine>(cache: &Cache<M>, job: &CacheJob<M>) {
    let rq = job.rq();
    if rq.op() != Op::Write || !cache.is_write_through() {
        return;
    }
    let (start, end) = span_of(rq);
    let pages = cache.page.pages_of(start, end);
    let end = match (job.step, job.todo.last()) {
        (JobStep::Write, Some(rest)) => rest.start,
        _ if !job.rest.is_empty() => job.rest.start,
        _ => pages.end,
    };
    release_claims_on(cache, pages.start.max(job.claims_from)..end);
}

fn release_claims_on<M: Machine>(cache: &Cache<M>, pages: Range<u64>) {
    let (mut page, mut clean) = (pages.start, 0);
    while page < pages.end {
        let (number, _) = place_of(page);
        let mut shard = cache.shard(number).lock();
        let at = shard.find(number).expect("an extent with a claim stays");
        shard.extent_mut(at).failed.claims -= 1;
        clean += u64::from(cache.drop_failed(&mut shard, at));
        shard.forget_if_empty(at);
        page = (number + 1) * EXTENT_PAGES as u64;
    }
    if clean > 0 {
        cache.sub_dirty(clean);
        cache.signals.wake();
    }
}

fn begin_sync<M: Machine>(queue: &mut CacheQueue<M>, at: usize) {
    let rq = queue.jobs[at].rq();
    let epoch = queue.cache.end_epoch();
    queue.forget_failures(rq);
    let pages = queue.pages_of(rq);
    queue.jobs[at].todo.push(pages);
    queue.jobs[at].step = JobStep::SyncRange { epoch };
    queue.advance(at);
}

/// Handles a write-through request that finds no room in memory for its pages `rest`. If the
/// request has copied other pages to memory since its last write to the volume, they are written
/// now. Otherwise, the request waits for free memory.
fn wait_for_room<M: Machine>(queue: &mut CacheQueue<M>, at: usize, rest: Range<u64>) {
    let begin = queue.pages_of(queue.jobs[at].rq()).start.max(queue.jobs[at].below_to);
    if rest.start > begin {
        (queue.jobs[at].below_to, queue.jobs[at].rest) = (rest.start, rest);
        return begin_sync(queue, at);
    }
    queue.jobs[at].todo.push(rest);
    queue.wait_for_memory(at);
}

/// Continues a write-through request with its remaining pages. Returns false if no pages remain.
/// The request no longer counts as a writer (`FailedPages::claims`) of the extents that it has
/// finished. Once an extent has no writer, its failed pages are dropped, because all writers have
/// received the error.
pub(crate) fn write_rest<M: Machine>(queue: &mut CacheQueue<M>, at: usize) -> bool {
    let rest = core::mem::replace(&mut queue.jobs[at].rest, 0..0);
    if rest.is_empty() {
        return false;
    }
    let begin = queue.pages_of(queue.jobs[at].rq()).start;
    let job = &mut queue.jobs[at];
    let claims_from = core::mem::replace(&mut job.claims_from, rest.start).max(begin);
    release_claims_on(&queue.cache, claims_from..rest.start);
    job.todo.clear();
    job.todo.push(rest);
    job.step = JobStep::Write;
    queue.advance(at);
    true
}
