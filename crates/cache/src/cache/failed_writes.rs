//! `FailedWrites`: tracks drives that fail writes or are stuck, and the dirty pages that wait for
//! them.
//!
//! A drive counts as failing after a failed write. The drive recovers when one of its writes has
//! succeeded and `RETRY_NS` have passed. A drive is stuck if it has writes in flight and has
//! completed none of them for a second. Dirty pages of failing or stuck drives are stranded:
//! - The dirty limit excludes stranded pages, so that writers to other drives are not slowed down.
//!   Instead, each drive has a share, the maximum number of its stranded pages.
//! - A write beyond the share waits. If the drive is failing, the write fails once `PROBES` probes
//!   (trial writes) have failed and no write has succeeded. So if a drive fails only some writes,
//!   the cache delays the drive's writers, but refuses no write.
//! - The flusher writes stranded pages only as probes, a few extents at a time. A stuck drive gets
//!   no probes, because its writes in flight may still complete.
//!
//! After a failed write over several drives, or after a drive was stuck, no write spans two drives
//! any more. So the failing drive is always known.
//!
//! A page belongs to the drive of its first sector. Counts change with the page's shard locked.
//! When a drive begins to fail, `settle` locks each shard and strands the pages that are already
//! dirty. A writer that locks the shard earlier is seen by `settle`; a later writer sees the
//! drive's new state. Lock order: `watch`, then a shard.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_block::{Disk, Op, Status, Unwritten};
use millrace_machine::{Lock, Machine, Order, Word};

use crate::cache::Cache;
use crate::memory::extent::{ALL_PAGES, EXTENT_PAGES, Extent, place_of};
use crate::memory::shard::Shard;
use crate::stats::{AtRisk, DriveAtRisk};

/// Minimum time for which a drive counts as failing, in nanoseconds. Also the minimum time between
/// two probes (trial writes) of a drive.
pub(crate) const RETRY_NS: u64 = 100_000_000;
/// Number of probes of a drive that must fail before the cache fails writes to it.
const PROBES: u32 = 3;
/// Value that a write has instead of a drive index if the write spans several drives.
pub(crate) const NO_MEMBER: u16 = u16::MAX;

const FINE: u64 = 0;
const FAILS: u64 = 1;
/// State of a drive that became stuck, from then until the drive works again or fails a write.
const WAS_STUCK: u64 = 2;
/// State of a failing drive whose writes beyond its share of dirty pages are refused. Either
/// `PROBES` probes (trial writes) have failed, or no flusher exists to send probes.
const REFUSES: u64 = 3;

pub(crate) struct FailedWrites<M: Machine> {
    members: Box<[MemberState<M>]>,
    failing: M::Word,
    /// Number of stranded pages: dirty pages that wait for failing drives.
    pages: M::Word,
    /// Number of pages whose write-back has begun, but is held up, or may be held up, by a stuck
    /// drive. The dirty limit does not count these pages.
    inside: M::Word,
    stuck_changes: M::Word,
    /// Set to 1 once a write over several drives has failed, or a drive has been stuck. From then
    /// on, no write spans two drives.
    is_cautious: M::Word,
    /// Errno of the last failed write on any drive.
    last: M::Word,
    watch: M::Lock<Vec<MemberRecord>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriveProgress {
    /// The drive has ended a write in the last `STUCK_NS`, or has no write in flight.
    Answers,
    Stuck,
}

struct MemberState<M: Machine> {
    /// Condition of the drive: `FINE`, `FAILS`, `WAS_STUCK` or `REFUSES`.
    state: M::Word,
    is_stuck: M::Word,
    /// Number of stranded pages: dirty pages that wait because this drive is failing or stuck.
    pages: M::Word,
    probing: M::Word,
    errors: M::Word,
    /// Number of the drive's successful writes, counted only while some drive of the cache is
    /// failing or stuck.
    good: M::Word,
    last: M::Word,
}

/// Progress of a drive since it began to fail or became stuck. Protected by the lock `watch`.
#[derive(Debug, Clone, Copy, Default)]
struct MemberRecord {
    /// Value of `MemberState::errors` when the drive last recovered.
    errors: u64,
    /// Number of successful writes (`MemberState::good`) when the drive last began to fail or
    /// became stuck.
    good: u64,
    /// Earliest time of the next probe (trial write) of the drive.
    retry_ns: u64,
    /// Number of probes since the drive began to fail.
    probes: u32,
}

impl<M: Machine> MemberState<M> {
    fn new() -> MemberState<M> {
        let zero = || M::Word::new(0);
        MemberState {
            state: zero(),
            is_stuck: zero(),
            pages: zero(),
            probing: zero(),
            errors: zero(),
            good: zero(),
            last: zero(),
        }
    }
}

impl<M: Machine> FailedWrites<M> {
    pub(crate) fn new(drives: usize) -> FailedWrites<M> {
        FailedWrites {
            members: (0..drives).map(|_| MemberState::new()).collect(),
            failing: M::Word::new(0),
            pages: M::Word::new(0),
            inside: M::Word::new(0),
            stuck_changes: M::Word::new(0),
            is_cautious: M::Word::new(0),
            last: M::Word::new(0),
            watch: M::Lock::new("cache-watch", alloc::vec![MemberRecord::default(); drives]),
        }
    }

    #[inline]
    pub(crate) fn has_failing(&self) -> bool {
        // SeqCst: `settle` raises the number of failing drives and then locks each shard. A writer
        // with a shard locked either sees the new number here, or `settle` sees the page that the
        // writer has made dirty.
        self.failing.load(Order::SeqCst) != 0
    }

    /// Returns the number of dirty pages that wait for failing or stuck drives.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        // Relaxed: a decision based on slightly outdated counts does no harm.
        self.pages.load(Order::Relaxed) + self.inside.load(Order::Relaxed)
    }

    pub(crate) fn note_progress(&self, member: usize, answers: DriveProgress) {
        let is_stuck = u64::from(answers == DriveProgress::Stuck);
        if self.members[member].is_stuck.swap(is_stuck, Order::SeqCst) != is_stuck {
            self.stuck_changes.fetch_add(1, Order::SeqCst);
        }
    }

    pub(crate) fn stuck_changes(&self) -> u64 {
        self.stuck_changes.load(Order::SeqCst)
    }

    pub(crate) fn add_inside(&self, pages: i64) {
        self.inside.fetch_add(pages.cast_unsigned(), Order::SeqCst);
    }

    fn is_stuck(&self, member: usize) -> bool {
        self.members[member].is_stuck.load(Order::SeqCst) != 0
    }

    /// Returns the status of the cache's last failed write if any drive is in the state `REFUSES`.
    pub(crate) fn refusal(&self) -> Option<Status> {
        let refuses = |member| self.state(member) == REFUSES;
        (0..self.members.len()).any(refuses).then(|| self.last_status())
    }

    pub(crate) fn is_cautious(&self) -> bool {
        self.is_cautious.load(Order::SeqCst) != 0
    }

    pub(crate) fn be_cautious(&self) {
        self.is_cautious.store(1, Order::SeqCst);
    }

    pub(crate) fn last_status(&self) -> Status {
        status_of(self.last.load(Order::SeqCst))
    }

    pub(crate) fn note_error(&self, member: u16, status: Status) {
        let of = &self.members[usize::from(member)];
        let errno = u64::from(status.errno().unsigned_abs());
        of.last.store(errno, Order::SeqCst);
        self.last.store(errno, Order::SeqCst);
        of.errors.fetch_add(1, Order::SeqCst);
    }

    pub(crate) fn note_good(&self, member: u16) {
        if member != NO_MEMBER && self.has_failing() {
            self.members[usize::from(member)].good.fetch_add(1, Order::SeqCst);
            self.note_progress(member.into(), DriveProgress::Answers);
        }
    }

    fn state(&self, member: usize) -> u64 {
        self.members[member].state.load(Order::SeqCst)
    }

    fn fails(&self, member: usize) -> bool {
        matches!(self.state(member), FAILS | REFUSES)
    }

    /// Returns true if the drive that stores `page` fails writes. A stuck drive does not count as
    /// failing.
    pub(crate) fn fails_at(&self, cache: &Cache<M>, page: u64) -> bool {
        cache.failing_member(page).is_some_and(|member| self.fails(member))
    }

    fn add(&self, member: usize, pages: i64) {
        self.members[member].pages.fetch_add(pages.cast_unsigned(), Order::SeqCst);
        self.pages.fetch_add(pages.cast_unsigned(), Order::SeqCst);
    }
}

fn status_of(errno: u64) -> Status {
    match errno {
        0 => Status::IoError,
        errno => Status::from_errno(errno as i32),
    }
}

impl<M: Machine> Cache<M> {
    fn member_of(&self, page: u64) -> usize {
        self.below.drive_at(self.page.start_of(page)).0
    }

    /// Returns the index of the drive that stores `page` if that drive is failing or stuck.
    fn failing_member(&self, page: u64) -> Option<usize> {
        if !self.failed_writes.has_failing() {
            return None;
        }
        let member = self.member_of(page);
        (self.failed_writes.state(member) != FINE).then_some(member)
    }

    /// Returns the maximum number of stranded pages of one drive: dirty pages that wait because the
    /// drive is failing or stuck.
    fn share(&self) -> u64 {
        match self.below.disks().len() {
            1 => self.dirty_max_pages(),
            // At least one page must be allowed, because only a write can show that a failing drive
            // works again.
            _ => (self.dirty_max_pages() / 4).max(1),
        }
    }

    /// Returns true if the clean page `page` may become dirty. If the page's drive is failing or
    /// stuck, the drive's share of stranded pages must not be used up. Otherwise, the dirty limit
    /// must not be reached. `newly_dirty` is the number of pages that the caller has made dirty,
    /// but not yet counted.
    #[inline]
    pub(crate) fn has_room(&self, page: u64, newly_dirty: u64) -> bool {
        match self.failing_member(page) {
            Some(member) => self.share_is_free(member),
            None => self.live_pages(newly_dirty) < self.dirty_max_pages(),
        }
    }

    fn share_is_free(&self, member: usize) -> bool {
        self.failed_writes.members[member].pages.load(Order::SeqCst) < self.share()
    }

    /// Returns the number of dirty pages that do not wait for a failing or stuck drive.
    #[inline]
    pub(crate) fn live_pages(&self, newly_dirty: u64) -> u64 {
        (self.dirty_pages() + newly_dirty).saturating_sub(self.failed_writes.pages())
    }

    /// Returns the error for a write to `page` that must fail. A write must fail if its drive
    /// refuses writes (state `REFUSES`) and the drive's share of stranded pages is used up. `None`
    /// means that the write may be accepted or may wait.
    pub(crate) fn refusal(&self, page: u64) -> Option<Status> {
        let refuses = |member: &usize| self.failed_writes.state(*member) == REFUSES;
        let member = self.failing_member(page).filter(refuses)?;
        let last = &self.failed_writes.members[member].last;
        (!self.share_is_free(member)).then(|| status_of(last.load(Order::SeqCst)))
    }

    /// Marks a dirty page as stranded (waiting for a failing drive) if its drive is failing. The
    /// caller must hold the lock of the page's shard.
    #[inline]
    pub(crate) fn strand(&self, shard: &mut Shard, at: u32, page: u64) {
        if let Some(member) = self.failing_member(page)
            && shard.strand(at, place_of(page).1)
        {
            self.failed_writes.add(member, 1);
        }
    }

    /// Removes the mark that shows that a dirty page waits for a failing drive. The caller must
    /// hold the lock of the page's shard.
    pub(crate) fn unstrand(&self, shard: &mut Shard, at: u32, page: u64) {
        if shard.unstrand(at, place_of(page).1) {
            self.failed_writes.add(self.member_of(page), -1);
        }
    }

    /// In a write-through cache, drops an extent's failed pages once all their writers have
    /// received the error. Returns the number of dropped pages.
    pub(crate) fn drop_failed(&self, shard: &mut Shard, at: u32) -> u32 {
        let extent = shard.extent(at);
        if !self.is_write_through() || extent.failed.claims > 0 {
            return 0;
        }
        let pages = extent.dirty_bits() & !extent.writing;
        for (page, place) in extent.page_range().zip(0..).filter(|(_, at)| pages & 1 << at != 0) {
            self.unstrand(shard, at, page);
            shard.drop_page(at, place);
        }
        pages.count_ones()
    }

    pub(crate) fn begin_probe(&self, page: u64) {
        self.failed_writes.members[self.member_of(page)].probing.fetch_add(1, Order::SeqCst);
    }

    /// Records that a probe (trial write of a page to a failing drive) has ended, in success or
    /// failure. The caller must hold the lock of the page's shard.
    pub(crate) fn end_probe(&self, page: u64) {
        let member = self.member_of(page);
        self.failed_writes.members[member].probing.fetch_add(u64::MAX, Order::SeqCst);
        self.failed_writes.add(member, -1);
    }

    pub(crate) fn settle(&self, now_ns: u64) -> bool {
        // Without a flusher, no thread sends probes (trial writes) to a failing drive, and a write
        // that waits for the drive could wait for ever. So writes beyond the drive's share of dirty
        // pages fail at once.
        let failed = if self.flusher.is_there() { FAILS } else { REFUSES };
        let Some(mut watch) = self.failed_writes.watch.try_lock() else { return false };
        let mut has_changed = false;
        for (number, of) in watch.iter_mut().enumerate() {
            let member = &self.failed_writes.members[number];
            let load = |word: &M::Word| word.load(Order::SeqCst);
            let (errors, good, state) =
                (load(&member.errors), load(&member.good), load(&member.state));
            let (has_failed, is_stuck) = (errors != of.errors, load(&member.is_stuck) != 0);
            let is_over = match state {
                FINE => false,
                FAILS | REFUSES => now_ns >= of.retry_ns && good != of.good,
                _ => !is_stuck && !has_failed,
            };
            let retry_ns = now_ns + RETRY_NS;
            let begins = state == FINE && (has_failed || is_stuck);
            if begins || state == WAS_STUCK && has_failed {
                *of = MemberRecord { errors: of.errors, good, retry_ns, probes: 0 };
                member.state.store(if has_failed { failed } else { WAS_STUCK }, Order::SeqCst);
                if begins {
                    self.failed_writes.failing.fetch_add(1, Order::SeqCst);
                    for_listed(self, number, |shard, at, page| self.strand(shard, at, page));
                }
            } else if state == FAILS && good == of.good && of.probes > PROBES {
                member.state.store(REFUSES, Order::SeqCst);
            } else if is_over {
                of.errors = errors;
                member.state.store(FINE, Order::SeqCst);
                self.failed_writes.failing.fetch_add(u64::MAX, Order::SeqCst);
                for_listed(self, number, |shard, at, page| self.unstrand(shard, at, page));
            } else {
                continue;
            }
            has_changed = true;
        }
        has_changed
    }

    /// Returns the counts of pages that are not on the volume yet. `untried` excludes pages whose
    /// last write failed. If any write has ever failed, all pages in memory are visited to count
    /// `untried`.
    pub(crate) fn unwritten(&self) -> Unwritten {
        let (pages, written) = (self.dirty_pages(), self.written_back());
        // Relaxed: these are statistics; no other memory access depends on them.
        if self.counts.write_errors.load(Order::Relaxed) == 0 {
            return Unwritten { pages, untried: pages, written };
        }
        let untried_of = |extent: &Extent| {
            // A timed-out write does not count as failed, because the drive has not answered it.
            let has_timed_out = extent.failed.status == Status::TimedOut;
            let tried = if has_timed_out { 0 } else { extent.failed.pages };
            u64::from(((extent.dirty_bits() | extent.writing) & !tried).count_ones())
        };
        let shards = self.shards.iter();
        let untried = shards.map(|shard| shard.lock().all().map(untried_of).sum::<u64>()).sum();
        Unwritten { pages, untried, written }
    }

    /// Returns the indexes of the drives that have writes in flight and have completed none for a
    /// second or more. A volume's only drive is never checked.
    #[must_use]
    pub fn stuck_drives(&self) -> Vec<usize> {
        (0..self.failed_writes.members.len())
            .filter(|member| self.failed_writes.is_stuck(*member))
            .collect()
    }

    /// Returns the amount and the place of the acknowledged data that exist only in memory. Returns
    /// `None` if there are no such data. Visits all pages in memory.
    #[must_use]
    pub fn at_risk(&self) -> Option<AtRisk> {
        if self.is_write_through() {
            return None;
        }
        let pages = self.pages_at_risk();
        let bytes_of = |mask: u8| self.page.eighths_bytes(mask.count_ones()) as u64;
        let mut pieces = pages.iter().flat_map(|(page, mask)| self.page.sector_runs(*page, *mask));
        let (start, len) = pieces.next()?;
        let end = pieces.try_fold(start + len, |end, (next, len)| match end == next {
            true => Ok(next + len),
            false => Err(end),
        });
        let end = end.unwrap_or_else(|end| end);
        let mut bytes = alloc::vec![0; self.failed_writes.members.len()];
        pages.iter().for_each(|(page, mask)| bytes[self.member_of(*page)] += bytes_of(*mask));
        let of_drive = |(drive, bytes): (usize, &u64)| {
            let last = self.failed_writes.members[drive].last.load(Order::SeqCst);
            let failed = self.failed_writes.fails(drive).then(|| status_of(last));
            (*bytes > 0).then_some(DriveAtRisk { drive, bytes: *bytes, failed })
        };
        Some(AtRisk {
            bytes: bytes.iter().sum(),
            first: (start * 512, (end - start) * 512),
            drives: bytes.iter().enumerate().filter_map(of_drive).collect(),
        })
    }

    /// Returns the pages with data only in memory, in ascending order. Each page comes with a mask
    /// of the page's eighths that have such data. Until the cache has noted that a page's write is
    /// complete, the page counts as being only in memory. There is one exception: if the drive has
    /// no I/O in flight and has never failed a write, the page's write has succeeded.
    fn pages_at_risk(&self) -> Vec<(u64, u8)> {
        let has_all = |disk: &Arc<Disk<M>>| {
            let stats = disk.stats();
            stats.in_flight() == 0 && stats.ops[Op::Write as usize].errors == 0
        };
        let has_all: Vec<bool> = self.below.disks().iter().map(has_all).collect();
        let mut pages = Vec::new();
        for shard in &self.shards {
            for extent in shard.lock().all() {
                for (page, place) in extent.page_range().zip(0..) {
                    let is_written = extent.writing & 1 << place != 0;
                    let mask = match is_written && !has_all[self.member_of(page)] {
                        // The dirty mask was cleared when the page's write began. The valid mask
                        // covers the data being written.
                        true => extent.valid[place],
                        false => extent.dirty[place],
                    };
                    if mask != 0 {
                        pages.push((page, mask));
                    }
                }
            }
        }
        pages.sort_unstable();
        pages
    }

    pub(crate) fn probes_due(&self, now_ns: u64) -> Vec<usize> {
        let Some(mut watch) = self.failed_writes.watch.try_lock() else { return Vec::new() };
        let mut due = Vec::new();
        for (number, of) in watch.iter_mut().enumerate() {
            let member = &self.failed_writes.members[number];
            let is_idle = member.probing.load(Order::SeqCst) == 0;
            if self.failed_writes.state(number) != FINE && now_ns >= of.retry_ns && is_idle {
                (of.retry_ns, of.probes) = (now_ns + RETRY_NS, of.probes + 1);
                due.push(number);
            }
        }
        due
    }

    pub(crate) fn pages_on(&self, extent: u64, is_its: impl Fn(usize) -> bool) -> u16 {
        let first = extent * EXTENT_PAGES as u64;
        let (mut pages, mut at) = (0, 0);
        while at < EXTENT_PAGES {
            let sector = self.page.start_of(first + at as u64);
            if sector >= self.sectors() {
                break;
            }
            let (drive, run) = self.below.drive_at(sector);
            let rest = (EXTENT_PAGES - at) as u64;
            let run = run.div_ceil(self.page.sectors()).min(rest) as usize;
            if is_its(drive) {
                pages |= (ALL_PAGES >> (EXTENT_PAGES - run)) << at;
            }
            at += run;
        }
        pages
    }
}

/// Calls `f` for each page that the drive `member` stores, in all extents of the dirty lists. The
/// page's shard is locked during the call.
fn for_listed<M: Machine>(cache: &Cache<M>, member: usize, f: impl Fn(&mut Shard, u32, u64)) {
    let sectors = cache.sectors();
    for shard in &cache.shards {
        let mut shard = shard.lock();
        let listed: Vec<u32> = shard.listed().collect();
        for at in listed {
            for page in shard.extent(at).page_range() {
                if cache.page.start_of(page) < sectors && cache.member_of(page) == member {
                    f(&mut shard, at, page);
                }
            }
        }
    }
}
