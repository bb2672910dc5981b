//! Reads of a cache queue: copies pages that are in memory, and reads missing pages from the volume
//! below.
//!
//! A missing page is read into a free frame (memory of one page). The cache tracks valid data in
//! eighths of a page (see page.rs). A write may give the page another frame during the read. The
//! written data are newer, so the read fills only the eighths that are not valid in the new frame.
//!
//! Once reads in flight use half of a shard's frames, a page with no data in memory is read
//! straight into the request's memory, so that a hanging drive leaves memory for other drives. A
//! read of the volume below covers one drive only, unless the stripe chunks are small.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::ops::Range;

use millrace_block::{Request, Segment, Status};
use millrace_machine::{Lock, Machine};

use crate::cache::Cache;
use crate::front::jobs::VolumeRead;
use crate::front::queue::CacheQueue;
use crate::memory::cursor::{CopyDirection, RequestCursor, part_of, wanted_of};
use crate::memory::extent::{EXTENT_PAGES, place_of};
use crate::memory::shard::Shard;

/// Maximum length of one read of the volume below, in bytes.
const FILL_BYTES: u64 = 1 << 20;

enum PageLookup {
    /// All data of the page that the request wants are in this frame.
    Hit(u32),
    Filling,
    /// The page must be read from the volume into this frame. The page is marked as being read.
    Missing(u32),
    NoMemory,
    /// No part of the page is in memory, and pages being read already occupy half of the frames.
    /// The caller reads the page straight into the request's memory.
    Crowded,
    /// The request must wait: a part of the page is in memory and may be newer than on the volume,
    /// but no frame is free to read the rest of the page.
    Torn,
}

fn look_up(shard: &mut Shard, page: u64, wanted: u8) -> PageLookup {
    let (number, place) = place_of(page);
    let at = shard.find_or_insert(number);
    let extent = shard.extent_mut(at);
    if let Some(frame) = extent.frame_of(place, wanted) {
        extent.note_hit(place);
        return PageLookup::Hit(frame);
    }
    if extent.filling & 1 << place != 0 {
        return PageLookup::Filling;
    }
    let is_empty = extent.valid[place] == 0;
    if is_empty && shard.is_crowded() {
        shard.forget_if_empty(at);
        return PageLookup::Crowded;
    }
    match shard.take_frame(at) {
        Some(frame) => {
            shard.begin_fill(at, place);
            PageLookup::Missing(frame)
        }
        None => {
            shard.forget_if_empty(at);
            if is_empty { PageLookup::NoMemory } else { PageLookup::Torn }
        }
    }
}

impl<M: Machine> CacheQueue<M> {
    #[inline]
    pub(crate) fn read_hits(&mut self, rq: &Request<M>, mut pages: Range<u64>) -> Range<u64> {
        let (mut cursor, frames) = (RequestCursor::new(rq), &self.cache.frames);
        while !pages.is_empty() {
            let (number, first) = place_of(pages.start);
            let mut shard = self.cache.shard(number).lock();
            let Some(at) = shard.find(number) else { return pages };
            let last = (first as u64 + (pages.end - pages.start)).min(EXTENT_PAGES as u64) as usize;
            for place in first..last {
                let (extent, page) = (shard.extent_mut(at), pages.start);
                let Some(frame) = extent.frame_of(place, wanted_of(self.cache.page, rq, page))
                else {
                    return pages;
                };
                extent.note_hit(place);
                // SAFETY: the request was just handed over, and the shard is locked.
                unsafe { cursor.copy_page(CopyDirection::ToRequest, frames, page, frame) };
                shard.stats.read_hits += 1;
                pages.start += 1;
            }
        }
        pages
    }

    /// Advances a read: copies pages in memory, reads missing ones, and waits for reads of other
    /// jobs.
    pub(crate) fn advance_read(&mut self, at: usize) {
        let rq = self.jobs[at].rq();
        let mut cursor = RequestCursor::new(rq);
        let (mut run, mut waits, mut around) = (FillRun::default(), Vec::new(), Vec::new());
        for page in core::mem::take(&mut self.jobs[at].todo).into_iter().flatten() {
            let wanted = wanted_of(self.cache.page, rq, page);
            let mut shard = self.cache.shard(place_of(page).0).lock();
            let found = look_up(&mut shard, page, wanted);
            if let PageLookup::Hit(frame) = found {
                let frames = &self.cache.frames;
                // SAFETY: the request is in flight, and the shard is locked.
                unsafe { cursor.copy_page(CopyDirection::ToRequest, frames, page, frame) };
                shard.stats.read_hits += 1;
                continue;
            }
            shard.stats.read_misses +=
                u64::from(!matches!(found, PageLookup::Filling | PageLookup::Torn));
            drop(shard);
            match found {
                PageLookup::Missing(frame) => {
                    if !run.follows(page, &self.cache) {
                        self.start_run(core::mem::take(&mut run), Some(at));
                    }
                    run.push(page, frame);
                }
                PageLookup::NoMemory => {
                    self.cache.flusher.ask_memory();
                    around.push(page);
                }
                PageLookup::Crowded => around.push(page),
                PageLookup::Filling | PageLookup::Torn => waits.push(page..page + 1),
                PageLookup::Hit(_) => unreachable!("answered above"),
            }
        }
        self.start_run(run, Some(at));
        let mut left = &around[..];
        while let Some((page, pages)) = reach_around(&self.cache, left) {
            self.read_around(at, page..page + pages as u64, &mut cursor);
            left = &left[pages..];
        }
        let job = &mut self.jobs[at];
        job.todo = waits;
        match (job.todo.is_empty(), job.fills) {
            (true, 0) => {
                let status = job.status;
                self.end_job(at, status);
            }
            (true, _) => {}
            (false, _) => self.block(at),
        }
    }

    fn read_around(&mut self, job: usize, pages: Range<u64>, cursor: &mut RequestCursor<'_, M>) {
        let rq = self.jobs[job].rq();
        let (at, into, _) = part_of(self.cache.page, rq, pages.start);
        let (last, _, len) = part_of(self.cache.page, rq, pages.end - 1);
        let segments = cursor.cut(at, last + len - at);
        let (page, sectors) = (pages.start, self.cache.sectors());
        let fill = VolumeRead { job: Some(job), page, frames: Vec::new(), segments, sectors };
        self.start_fill(fill, self.cache.page.start_of(page) + into as u64 / 512);
    }

    fn start_run(&mut self, run: FillRun, job: Option<usize>) {
        let (Some(mut page), mut frames) = (run.page, run.frames) else { return };
        while !frames.is_empty() {
            let reach = reach_of(&self.cache, page).min(frames.len());
            let behind = frames.split_off(reach);
            let part = core::mem::replace(&mut frames, behind);
            let sector = self.cache.page.start_of(page);
            self.start_fill(fill_of(&self.cache, (page, part), job), sector);
            page += reach as u64;
        }
    }

    pub(crate) fn read_ahead(&mut self, pages: &Range<u64>) {
        let Some(ahead) = self.reads.streams.note(pages) else { return };
        let sectors = self.cache.sectors();
        let last = self.cache.page.pages_of(0, sectors).end;
        let mut run = FillRun::default();
        for page in ahead.start..ahead.end.min(last) {
            let whole = self.cache.page.whole(sectors, page);
            let mut shard = self.cache.shard(place_of(page).0).lock();
            let PageLookup::Missing(frame) = look_up(&mut shard, page, whole) else { continue };
            shard.stats.read_ahead += 1;
            drop(shard);
            if !run.follows(page, &self.cache) {
                self.start_run(core::mem::take(&mut run), None);
            }
            run.push(page, frame);
        }
        self.start_run(run, None);
    }

    pub(crate) fn end_fill(&mut self, at: usize, status: Status) {
        let fill = self.fills.remove(at);
        let mut cursor = fill.job.map(|job| RequestCursor::new(self.jobs[job].rq()));
        let (frames, mut stale) = (&self.cache.frames, Vec::new());
        for (frame, page) in fill.frames.iter().zip(fill.page..) {
            let whole = self.cache.page.whole(fill.sectors, page);
            let mut shard = self.cache.shard(place_of(page).0).lock();
            let filled = if status.is_ok() { whole } else { 0 };
            let kept = shard.end_fill(frames, page, filled, *frame);
            match (&mut cursor, kept) {
                (Some(cursor), Some(kept)) => {
                    // SAFETY: the request is in flight, and the shard is locked.
                    unsafe { cursor.copy_page(CopyDirection::ToRequest, frames, page, kept) };
                }
                (Some(_), None) if status.is_ok() => stale.push(page..page + 1),
                _ => {}
            }
        }
        let Some(job) = fill.job else { return };
        let of = &mut self.jobs[job];
        of.fills -= 1;
        of.todo.append(&mut stale);
        if of.status.is_ok() {
            of.status = status;
        }
        if of.fills == 0 && !of.is_blocked {
            self.advance(job);
        }
    }
}

/// Returns the maximum number of pages of one read that starts at `page`. Usually, a read covers
/// only one drive, so that it never waits for two drives. If the stripe chunks are small, a read
/// may span drives until a write over several drives fails or a drive is stuck
/// (`FailedWrites::is_cautious`).
fn reach_of<M: Machine>(cache: &Cache<M>, page: u64) -> usize {
    let may_span = cache.has_small_chunks() && !cache.failed_writes.is_cautious();
    if cache.below.disks().len() == 1 || may_span {
        return usize::MAX;
    }
    let (_, run) = cache.below.drive_at(cache.page.start_of(page));
    usize::try_from(cache.page.page_at(run)).unwrap_or(usize::MAX).max(1)
}

/// Returns the first of `pages`, and the number of consecutive pages from there that one read may
/// cover.
fn reach_around<M: Machine>(cache: &Cache<M>, pages: &[u64]) -> Option<(u64, usize)> {
    let first = *pages.first()?;
    let follow = (first..).zip(pages).take_while(|(next, page)| next == *page).count();
    Some((first, follow.min(reach_of(cache, first))))
}

fn fill_of<M: Machine>(
    cache: &Cache<M>,
    (page, frames): (u64, Vec<u32>),
    job: Option<usize>,
) -> VolumeRead {
    let sectors = cache.sectors();
    let mut segments: Vec<Segment> = Vec::with_capacity(frames.len());
    for (frame, page) in frames.iter().zip(page..) {
        let start = cache.frames.at(*frame);
        let eighths = cache.page.whole(sectors, page).count_ones();
        let len_bytes = cache.page.eighths_bytes(eighths) as u32;
        match segments.last_mut() {
            Some(last) if last.start.wrapping_add(last.len_bytes as usize) == start => {
                last.len_bytes += len_bytes;
            }
            _ => segments.push(Segment { start, len_bytes }),
        }
    }
    VolumeRead { job, page, frames, segments, sectors }
}

#[derive(Default)]
struct FillRun {
    page: Option<u64>,
    frames: Vec<u32>,
}

impl FillRun {
    fn follows<M: Machine>(&self, page: u64, cache: &Cache<M>) -> bool {
        let next = |first: u64| first + self.frames.len() as u64 == page;
        let most = cache.page.fit(FILL_BYTES) as usize;
        self.page.is_none_or(next) && self.frames.len() < most
    }

    fn push(&mut self, page: u64, frame: u32) {
        self.page.get_or_insert(page);
        self.frames.push(frame);
    }
}
