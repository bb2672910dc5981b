//! `Writeout`: sorts dirty pages, merges them into large writes, sends them, and tracks each page
//! until it is written.
//!
//! The flusher has a `Writeout`. Each queue of the cache also has one, for small flushes and for
//! the data of a write-through cache. Each run of sectors up to 512 KiB becomes one write. The
//! number of writes in flight to a drive is limited to its slots (see write_queues.rs).
//!
//! A write may span drives if stripe chunks are small, or if all drives share a list of waiting
//! writes (`WriteLists::Shared`). After a write over several drives has failed, or a drive was
//! stuck, no write spans drives any more. A page whose last write failed is written alone, because
//! a neighbour may have caused the failure.
#![allow(unsafe_code)]

use alloc::vec::Vec;

use millrace_block::{Bio, Channel, Op, OpFlags, Reject, Rejected, Segment, Status};
use millrace_machine::{Lock, Machine, Order, Word};
use slab::Slab;

use crate::cache::Cache;
use crate::cache::failed_writes::NO_MEMBER;
use crate::memory::extent::place_of;
use crate::memory::page::PageSize;
use crate::memory::shard::{DirtyPage, WriteOutcome};
use crate::write_back::write_queues::{FlusherConfig, WriteLists, WriteQueues};

const SECTORS_MAX: u32 = 1024;
const SEGMENTS_MAX: usize = 256;

struct WriteBatch {
    items: Vec<DirtyPage>,
    /// For each page, three values:
    /// - number of the page's writes that have not ended
    /// - worst result of the page's ended writes
    /// - mask of the page's eighths for which a write failed
    states: Vec<(u8, WriteOutcome, u8)>,
    left: usize,
}

struct WriteBio {
    batch: usize,
    /// Indexes in `WriteBatch::items` of the write's first and last page.
    pages: (usize, usize),
    /// Number of pages that this write adds to the page count of its queue. A page in several
    /// writes is counted once. A page of a probe (trial write to a failing drive) is not counted.
    counted: usize,
    sector: u64,
    /// End sector of the range that the write may cover. Later sectors may lie on another drive.
    /// `u64::MAX` if the write may span drives.
    until: u64,
    /// Drive that has all sectors of the write, or `NO_MEMBER` if the write may span several
    /// drives.
    member: u16,
    place: WriteSlot,
    is_alone: bool,
    flags: OpFlags,
    segments: Vec<Segment>,
}

// SAFETY: the pointers of the segments lead into the frames of the cache, which any thread may use.
unsafe impl Send for WriteBio {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteSlot {
    Waits,
    Taken,
    /// In flight without a slot. The write had a slot (permit for one write in flight) of the
    /// shared queue, but `Writeout::cut` has freed the slot.
    None,
}

pub(crate) struct Writeout {
    batches: Slab<WriteBatch>,
    bios: Slab<WriteBio>,
    pub(crate) write_queues: WriteQueues,
    is_cut: bool,
    is_single: bool,
    /// Number of pages that wait to be written or are being written.
    pub(crate) pages: usize,
}

impl Writeout {
    pub(crate) fn new<M: Machine>(cache: &Cache<M>, config: FlusherConfig) -> Writeout {
        let drives = cache.below.disks().len();
        let is_divided = config.lists == WriteLists::PerDrive && !cache.has_small_chunks();
        Writeout {
            batches: Slab::new(),
            bios: Slab::new(),
            write_queues: WriteQueues::new(drives, config),
            is_cut: drives == 1 || is_divided,
            is_single: drives == 1,
            pages: 0,
        }
    }

    /// Leaks the segment lists of writes in flight, because drives may still read them.
    pub(crate) fn forget(&mut self) {
        core::mem::forget(core::mem::take(&mut self.bios));
        core::mem::forget(core::mem::take(&mut self.batches));
        self.pages = 0;
    }

    /// Time of the next check for stuck drives; `None` if the volume has only one drive.
    pub(crate) fn look_at_ns(&self) -> Option<u64> {
        if self.is_single { None } else { self.write_queues.stuck_at_ns() }
    }

    pub(crate) fn start<M: Machine>(&mut self, cache: &Cache<M>, items: Vec<DirtyPage>) {
        self.start_with(cache, items, OpFlags::NONE);
    }

    /// Starts writing pages. With flags (FUA), no write spans two drives, so that a failed write
    /// shows which drive has failed.
    pub(crate) fn start_with<M: Machine>(
        &mut self,
        cache: &Cache<M>,
        mut items: Vec<DirtyPage>,
        flags: OpFlags,
    ) {
        if items.is_empty() {
            return;
        }
        items.sort_unstable_by_key(|item| item.page);
        self.pages += items.len();
        let states = alloc::vec![(0, WriteOutcome::Ok, 0); items.len()];
        let batch = self.batches.insert(WriteBatch { left: items.len(), states, items });
        let mut open: Option<WriteBio> = None;
        for at in 0..self.batches[batch].items.len() {
            let item = self.batches[batch].items[at];
            if item.is_probe {
                cache.begin_probe(item.page);
            }
            let (frame, first) = (cache.frames.at(item.frame), cache.page.start_of(item.page));
            for (mut sector, mut len) in cache.page.sector_runs(item.page, item.mask) {
                while len > 0 {
                    let (member, run) = self.reach_of(cache, sector, flags);
                    let take = run.min(len);
                    let start = frame.wrapping_add((sector - first) as usize * 512);
                    let piece = Segment { start, len_bytes: take as u32 * 512 };
                    self.batches[batch].states[at].0 += 1;
                    let is_alone = item.is_alone;
                    let mut last = open.as_mut().filter(|_| !is_alone);
                    if !last.as_mut().is_some_and(|bio| bio.append(sector, piece, at)) {
                        let new = WriteBio {
                            batch,
                            pages: (at, at),
                            counted: 0,
                            sector,
                            until: sector.saturating_add(run),
                            member,
                            place: WriteSlot::Waits,
                            is_alone,
                            flags,
                            segments: alloc::vec![piece],
                        };
                        self.push(cache, open.replace(new));
                    }
                    (sector, len) = (sector + take, len - take);
                }
            }
        }
        self.push(cache, open);
    }

    /// Returns the drive of a sector, and the maximum length in sectors of a write from there on.
    /// Returns `NO_MEMBER` and no limit if writes may span drives.
    fn reach_of<M: Machine>(&self, cache: &Cache<M>, sector: u64, flags: OpFlags) -> (u16, u64) {
        if flags == OpFlags::NONE && !self.is_cut && !cache.failed_writes.is_cautious() {
            return (NO_MEMBER, u64::MAX);
        }
        let (member, run) = cache.below.drive_at(sector);
        (member as u16, run)
    }

    fn push<M: Machine>(&mut self, cache: &Cache<M>, bio: Option<WriteBio>) {
        if let Some(mut bio) = bio {
            let (drive, run) = cache.below.drive_at(bio.sector);
            if bio.end() <= bio.sector.saturating_add(run) {
                bio.member = drive as u16;
            }
            let pages = &self.batches[bio.batch].items[bio.pages.0..=bio.pages.1];
            let is_first = |item: &&DirtyPage| {
                let first = cache.page.sector_runs(item.page, item.mask).next();
                !item.is_probe && first.is_some_and(|(first, _)| bio.sector <= first)
            };
            bio.counted = pages.iter().filter(is_first).count();
            let (member, counted) = (bio.member, bio.counted);
            self.write_queues.push(member, self.bios.insert(bio), counted);
        }
    }

    /// Sends waiting writes to a channel of the volume. Stops when the channel is full, or when
    /// each drive has no waiting write or no free slot. `user_data` returns a bio's `user_data`
    /// field for the index of a write. Returns true if any write was sent.
    pub(crate) fn send<M: Machine>(
        &mut self,
        (cache, below): (&Cache<M>, &mut Channel<M>),
        user_data: impl Fn(usize) -> u64,
    ) -> bool {
        if self.pages == 0 && !self.write_queues.has_stuck() {
            return false;
        }
        let now_ns = M::now();
        let order = self.write_queues.turn(now_ns);
        self.look_for_stuck(cache, now_ns);
        let mut has_sent = false;
        for queue in order {
            while let Some(at) = self.write_queues.next(queue) {
                let bio = &mut self.bios[at];
                bio.place = WriteSlot::Taken;
                let (list, is_alone) = (&raw const bio.segments[..], bio.is_alone);
                let flags = bio.flags;
                // SAFETY: until the write has `ended`, its list and its frames do not change.
                let bio = unsafe { Bio::foreign_vectored(Op::Write, bio.sector, list) };
                match below.submit(bio.with_flags(flags).with_user_data(user_data(at))) {
                    Ok(()) => {
                        // Relaxed: no other memory access depends on this number.
                        cache.counts.write_requests.fetch_add(1, Order::Relaxed);
                        has_sent = true;
                        if is_alone {
                            // The page's last write failed, so it must not share a write with other
                            // pages. `flush` starts the write now, so that the channel cannot merge
                            // the write with the next one.
                            below.flush();
                        }
                    }
                    Err(Rejected { reason: Reject::Full, .. }) => {
                        self.bios[at].place = WriteSlot::Waits;
                        self.write_queues.push_back(queue, at);
                        return has_sent;
                    }
                    Err(Rejected { reason: Reject::Invalid(status), .. }) => {
                        self.ended(cache, at, status);
                    }
                }
            }
        }
        has_sent
    }

    /// Detects stuck drives. After a drive was stuck once, no write spans two drives any more, so
    /// that a stuck drive cannot delay data of other drives.
    fn look_for_stuck<M: Machine>(&mut self, cache: &Cache<M>, now_ns: u64) {
        if self.is_single {
            return;
        }
        if self.look_at_ns().is_some_and(|stuck_ns| now_ns >= stuck_ns) {
            cache.failed_writes.be_cautious();
        }
        if !self.is_cut && cache.failed_writes.is_cautious() {
            self.cut(cache);
        }
        if self.is_cut {
            let before = cache.failed_writes.stuck_changes();
            let note = |drive, answers| cache.failed_writes.note_progress(drive, answers);
            let more = self.write_queues.held(now_ns, note);
            if more != 0 {
                cache.failed_writes.add_inside(more);
                // The number of pages that wait for stuck drives has changed. The dirty limit
                // excludes these pages, so writers that wait at the limit must check again.
                cache.signals.wake();
            }
            if before != cache.failed_writes.stuck_changes() {
                cache.flusher.ring();
            }
        }
    }

    /// Gives each drive a queue of its own, and splits waiting writes that span drives. Writes in
    /// flight from the shared queue no longer count toward that queue's limit of writes in flight.
    fn cut<M: Machine>(&mut self, cache: &Cache<M>) {
        self.is_cut = true;
        for (_, bio) in &mut self.bios {
            if bio.place == WriteSlot::Taken && self.write_queues.is_shared(bio.member) {
                bio.place = WriteSlot::None;
                self.write_queues.ended(bio.member, bio.counted);
                cache.failed_writes.add_inside(bio.counted as i64);
            }
        }
        cache.signals.wake();
        let ready = self.write_queues.take_ready();
        for at in &ready {
            let bio = &self.bios[*at];
            self.write_queues.forget(bio.member, bio.counted);
        }
        self.write_queues.divide();
        for at in ready {
            let mut rest = self.bios.remove(at);
            loop {
                let (_, run) = cache.below.drive_at(rest.sector);
                let Some(behind) = rest.split_off(cache.page, rest.sector.saturating_add(run))
                else {
                    break;
                };
                // If the split is inside a page, both writes contain that page, so the page waits
                // for one more write.
                if behind.pages.0 == rest.pages.1 {
                    self.batches[rest.batch].states[behind.pages.0].0 += 1;
                }
                self.push(cache, Some(core::mem::replace(&mut rest, behind)));
            }
            self.push(cache, Some(rest));
        }
    }

    pub(crate) fn ended<M: Machine>(&mut self, cache: &Cache<M>, at: usize, status: Status) {
        let bio = self.bios.remove(at);
        match bio.place {
            WriteSlot::Taken => self.write_queues.ended(bio.member, bio.counted),
            WriteSlot::None => cache.failed_writes.add_inside(-(bio.counted as i64)),
            WriteSlot::Waits => {}
        }
        let batch = &mut self.batches[bio.batch];
        let ended = note_end(cache, bio.member, status);
        let mut clean = 0;
        for page in bio.pages.0..=bio.pages.1 {
            let item = batch.items[page];
            let (left, state, failed) = &mut batch.states[page];
            *left -= 1;
            *state = state.and(ended);
            if ended != WriteOutcome::Ok {
                *failed |= cache.page.mask_of(item.page, bio.sector, bio.end()) & item.mask;
            }
            if *left == 0 {
                // After a failure, only the eighths of the page whose writes failed are written
                // again.
                let mask = if *state == WriteOutcome::Ok { item.mask } else { *failed };
                clean += u64::from(give_back(cache, &DirtyPage { mask, ..item }, *state));
                (batch.left, self.pages) = (batch.left - 1, self.pages - 1);
            }
        }
        if status.is_ok() {
            cache.counts.written_back.fetch_add(clean, Order::Relaxed);
        }
        if batch.left == 0 {
            self.batches.remove(bio.batch);
        }
        if clean > 0 {
            cache.sub_dirty(clean);
        }
    }
}

fn note_end<M: Machine>(cache: &Cache<M>, member: u16, status: Status) -> WriteOutcome {
    if status.is_ok() {
        cache.failed_writes.note_good(member);
        return WriteOutcome::Ok;
    }
    if member == NO_MEMBER {
        cache.failed_writes.be_cautious();
        return WriteOutcome::Again;
    }
    cache.failed_writes.note_error(member, status);
    // SeqCst: the count changes before `QueueSignals::wake` checks for waiting queues, so a queue
    // either sees the new count or is woken.
    cache.counts.write_errors.fetch_add(1, Order::SeqCst);
    // Wakes the flusher, which updates the states of the drives.
    cache.flusher.ring();
    WriteOutcome::Failed(status)
}

fn give_back<M: Machine>(cache: &Cache<M>, item: &DirtyPage, ended: WriteOutcome) -> u32 {
    let (number, _) = place_of(item.page);
    let mut shard = cache.shard(number).lock();
    let mut clean = shard.end_write(item, ended);
    if item.is_probe {
        cache.end_probe(item.page);
    }
    if ended != WriteOutcome::Ok
        && let Some(at) = shard.find(number)
    {
        cache.strand(&mut shard, at, item.page);
        clean += cache.drop_failed(&mut shard, at);
    }
    clean
}

impl WriteBio {
    /// Splits off and returns the part of the write from `sector` on. Returns `None` if the write
    /// ends at or before `sector`.
    fn split_off(&mut self, size: PageSize, sector: u64) -> Option<WriteBio> {
        if self.end() <= sector {
            return None;
        }
        let mut left = (sector - self.sector) as usize * 512;
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for piece in self.segments.drain(..) {
            let take = left.min(piece.len_bytes as usize);
            left -= take;
            let (first, rest) = (take as u32, piece.len_bytes - take as u32);
            if first > 0 {
                before.push(Segment { start: piece.start, len_bytes: first });
            }
            if rest > 0 {
                behind.push(Segment { start: piece.start.wrapping_add(take), len_bytes: rest });
            }
        }
        // A write covers consecutive pages, so the index of the page at `sector` is its distance in
        // pages from the write's first page.
        let page_of = |sector: u64| (size.page_at(sector) - size.page_at(self.sector)) as usize;
        let pages = (self.pages.0 + page_of(sector), self.pages.1);
        self.pages.1 = self.pages.0 + page_of(sector - 1);
        self.segments = before;
        Some(WriteBio { pages, sector, segments: behind, ..*self })
    }

    fn end(&self) -> u64 {
        let bytes: u32 = self.segments.iter().map(|piece| piece.len_bytes).sum();
        self.sector + u64::from(bytes / 512)
    }

    /// Appends a segment to the write. Returns false if the write is full, does not end at
    /// `sector`, must stay alone, or would cover sectors from `until` on.
    fn append(&mut self, sector: u64, piece: Segment, page: usize) -> bool {
        let nr_sectors = (self.end() - self.sector) as u32;
        let follows = self.end() == sector;
        let end = sector + u64::from(piece.len_bytes / 512);
        if self.is_alone
            || !follows
            || end > self.until
            || nr_sectors + piece.len_bytes / 512 > SECTORS_MAX
        {
            return false;
        }
        let last = self.segments.last_mut().expect("a write has memory");
        if last.start.wrapping_add(last.len_bytes as usize) == piece.start {
            last.len_bytes += piece.len_bytes;
        } else if self.segments.len() < SEGMENTS_MAX {
            self.segments.push(piece);
        } else {
            return false;
        }
        self.pages.1 = page;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_cut_inside_a_page_and_a_segment_and_loses_nothing() {
        let memory = |at: usize| core::ptr::without_provenance_mut::<u8>(at);
        // Sectors 4 to 24, pages 7 to 9 of the batch, memory in two pieces.
        let mut write = WriteBio {
            batch: 0,
            pages: (7, 9),
            counted: 0,
            sector: 4,
            until: u64::MAX,
            member: NO_MEMBER,
            place: WriteSlot::Waits,
            is_alone: false,
            flags: OpFlags::NONE,
            segments: alloc::vec![
                Segment { start: memory(1 << 20), len_bytes: 4 * 512 },
                Segment { start: memory(2 << 20), len_bytes: 16 * 512 },
            ],
        };
        assert!(write.split_off(PageSize::over(512), 24).is_none(), "it ends there");
        let behind = write.split_off(PageSize::over(512), 10).expect("it goes on");
        let pieces = |write: &WriteBio| -> Vec<(usize, u32)> {
            write.segments.iter().map(|it| (it.start.addr(), it.len_bytes / 512)).collect()
        };
        assert_eq!((write.sector, write.end(), write.pages), (4, 10, (7, 8)));
        assert_eq!(pieces(&write), [(1 << 20, 4), (2 << 20, 2)]);
        assert_eq!((behind.sector, behind.end(), behind.pages), (10, 24, (8, 9)));
        assert_eq!(pieces(&behind), [((2 << 20) + 1024, 14)]);
        let at_page = write.split_off(PageSize::over(512), 8).expect("it goes on");
        assert_eq!((write.pages, at_page.pages), ((7, 7), (8, 8)));
    }
}
