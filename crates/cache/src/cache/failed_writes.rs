//! `FailedWrites`: drives below that fail writes or are stuck, and dirty pages that wait for them.
//!
//! A drive whose write failed fails until one of its writes ends well and `RETRY_NS` have passed. A
//! drive that has writes and has ended none for a second counts as one that fails, but for this: a
//! write that would strand more than its share waits, and nothing is tried, since what it has may
//! end. What it has inside is counted apart, too. Dirty pages of a failing drive are stranded:
//! counted apart, so that writers to other drives are judged without them, and written only as
//! probes, a few extents at a time. Writes that would strand more than the drive's share fail at
//! once. From the first failure of a write over several drives on, or since a drive answered
//! nothing for a second, none goes over two, so that an error names its drive and no drive waits
//! for another. A page belongs to the drive of its first sector. Counts change under the lock of
//! the page's shard; `settle` marks what is there when a drive begins to fail: a writer sees the
//! drive's state under that lock, or `settle` sees what it wrote. Lock order: `watch`, then a
//! shard's.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use millrace_block::{Disk, Op, Status, Unwritten};
use millrace_machine::{Lock, Machine, Order, Word};

use crate::cache::Cache;
use crate::memory::extent::{ALL_PAGES, EXTENT_PAGES};
use crate::memory::shard::Shard;
use crate::stats::{AtRisk, DriveAtRisk};

/// Shortest time for which a drive fails, and between two probes of it.
pub(crate) const RETRY_NS: u64 = 100_000_000;
/// No drive: a write over several.
pub(crate) const NO_MEMBER: u16 = u16::MAX;

/// States of a drive: its writes end well; the last one failed; none ended for long.
const FINE: u64 = 0;
const FAILS: u64 = 1;
const WAS_STUCK: u64 = 2;

/// Which drives fail, and what waits for them.
pub(crate) struct FailedWrites<M: Machine> {
    members: Box<[Member<M>]>,
    /// How many fail.
    failing: M::Word,
    /// Pages that are stranded.
    pages: M::Word,
    /// Pages on their way to drives that are stuck.
    inside: M::Word,
    /// How often a drive was stuck, or not any more.
    stuck_changes: M::Word,
    /// Whether writes are cut where a drive ends.
    is_cautious: M::Word,
    /// Errno of the last failure.
    last: M::Word,
    watch: M::Lock<Vec<Watch>>,
}

/// Whether a drive answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriveProgress {
    /// It has ended a write, or has none.
    Answers,
    /// It has writes, and has ended none for long.
    Stuck,
}

/// One drive.
struct Member<M: Machine> {
    /// `FINE`, `FAILS` or `WAS_STUCK`.
    state: M::Word,
    /// It has writes, and has ended none for long.
    is_stuck: M::Word,
    /// Its stranded pages; of these, pages that are being written.
    pages: M::Word,
    probing: M::Word,
    /// Writes that failed, and that ended well while it failed.
    errors: M::Word,
    good: M::Word,
    /// Errno of its last failure.
    last: M::Word,
}

/// What `settle` knows of a drive.
#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    errors: u64,
    good: u64,
    retry_ns: u64,
}

impl<M: Machine> Member<M> {
    fn new() -> Member<M> {
        let zero = || M::Word::new(0);
        Member {
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
    /// Of a volume of so many drives, none of which fails.
    pub(crate) fn new(drives: usize) -> FailedWrites<M> {
        FailedWrites {
            members: (0..drives).map(|_| Member::new()).collect(),
            failing: M::Word::new(0),
            pages: M::Word::new(0),
            inside: M::Word::new(0),
            stuck_changes: M::Word::new(0),
            is_cautious: M::Word::new(0),
            last: M::Word::new(0),
            watch: M::Lock::new("cache-watch", alloc::vec![Watch::default(); drives]),
        }
    }

    /// Whether some drive fails.
    #[inline]
    pub(crate) fn has_failing(&self) -> bool {
        // SeqCst: under the lock of a shard; stored before `settle` locks that shard.
        self.failing.load(Order::SeqCst) != 0
    }

    /// Pages that are stranded, or on their way to drives that are stuck.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        // Relaxed: what it decides may be decided a moment later.
        self.pages.load(Order::Relaxed) + self.inside.load(Order::Relaxed)
    }

    /// Notes that a drive answers nothing, or does again.
    pub(crate) fn note_progress(&self, member: usize, answers: DriveProgress) {
        let is_stuck = u64::from(answers == DriveProgress::Stuck);
        if self.members[member].is_stuck.swap(is_stuck, Order::SeqCst) != is_stuck {
            self.stuck_changes.fetch_add(1, Order::SeqCst);
        }
    }

    /// How often a drive was stuck, or not any more.
    pub(crate) fn stuck_changes(&self) -> u64 {
        self.stuck_changes.load(Order::SeqCst)
    }

    /// So many pages more are on their way to drives that are stuck; may be less than none.
    pub(crate) fn add_inside(&self, pages: i64) {
        self.inside.fetch_add(pages.cast_unsigned(), Order::SeqCst);
    }

    fn is_stuck(&self, member: usize) -> bool {
        self.members[member].is_stuck.load(Order::SeqCst) != 0
    }

    /// How writes fail that strand more than memory has; none while no write fails.
    pub(crate) fn refusal(&self) -> Option<Status> {
        (0..self.members.len()).any(|member| self.fails(member)).then(|| self.last_status())
    }

    /// Whether writes are cut where a drive ends.
    pub(crate) fn is_cautious(&self) -> bool {
        self.is_cautious.load(Order::SeqCst) != 0
    }

    /// No write goes over two drives from now on.
    pub(crate) fn be_cautious(&self) {
        self.is_cautious.store(1, Order::SeqCst);
    }

    /// How the last write that failed did so.
    pub(crate) fn last_status(&self) -> Status {
        status_of(self.last.load(Order::SeqCst))
    }

    /// A drive failed a write.
    pub(crate) fn note_error(&self, member: u16, status: Status) {
        let of = &self.members[usize::from(member)];
        let errno = u64::from(status.errno().unsigned_abs());
        of.last.store(errno, Order::SeqCst);
        self.last.store(errno, Order::SeqCst);
        of.errors.fetch_add(1, Order::SeqCst);
    }

    /// A write ended well.
    pub(crate) fn note_good(&self, member: u16) {
        if member != NO_MEMBER && self.has_failing() {
            self.members[usize::from(member)].good.fetch_add(1, Order::SeqCst);
            self.note_progress(member.into(), DriveProgress::Answers);
        }
    }

    fn state(&self, member: usize) -> u64 {
        self.members[member].state.load(Order::SeqCst)
    }

    /// Whether the pages of a drive are stranded.
    fn is_failing(&self, member: usize) -> bool {
        self.state(member) != FINE
    }

    /// Whether that is since a write of it failed.
    fn fails(&self, member: usize) -> bool {
        self.state(member) == FAILS
    }

    /// So many pages of a drive more are stranded.
    fn add(&self, member: usize, pages: u64) {
        self.members[member].pages.fetch_add(pages, Order::SeqCst);
        self.pages.fetch_add(pages, Order::SeqCst);
    }

    fn sub(&self, member: usize, pages: u64) {
        self.add(member, pages.wrapping_neg());
    }
}

fn status_of(errno: u64) -> Status {
    match errno {
        0 => Status::IoError,
        errno => Status::from_errno(errno as i32),
    }
}

impl<M: Machine> Cache<M> {
    /// The drive of a page.
    fn member_of(&self, page: u64) -> usize {
        self.below.drive_at(self.page.start_of(page)).0
    }

    /// The drive of a page, if it fails.
    fn failing_member(&self, page: u64) -> Option<usize> {
        if !self.failed_writes.has_failing() {
            return None;
        }
        let member = self.member_of(page);
        self.failed_writes.is_failing(member).then_some(member)
    }

    /// Most pages that a failing drive may strand: a quarter of what may be dirty, all of it if
    /// there is no other drive.
    fn share(&self) -> u64 {
        match self.below.disks().len() {
            1 => self.dirty_max_pages(),
            // At least one: a write to the drive is how the cache learns that it fails no longer.
            _ => (self.dirty_max_pages() / 4).max(1),
        }
    }

    /// Whether a page that is clean may become dirty, beside so many that are not counted yet.
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

    /// Pages that are dirty and not stranded, beside so many that are not counted yet.
    #[inline]
    pub(crate) fn live_pages(&self, newly_dirty: u64) -> u64 {
        (self.dirty_pages() + newly_dirty).saturating_sub(self.failed_writes.pages())
    }

    /// Why a page can not become dirty, if waiting does not help.
    pub(crate) fn refusal(&self, page: u64) -> Option<Status> {
        let member =
            self.failing_member(page).filter(|member| self.failed_writes.fails(*member))?;
        let last = &self.failed_writes.members[member].last;
        (!self.share_is_free(member)).then(|| status_of(last.load(Order::SeqCst)))
    }

    /// Notes that a page of a shard is stranded, if it is dirty and its drive fails; under the lock
    /// of the shard.
    #[inline]
    pub(crate) fn strand(&self, shard: &mut Shard, at: u32, page: u64) {
        if let Some(member) = self.failing_member(page)
            && shard.strand(at, (page % EXTENT_PAGES as u64) as usize)
        {
            self.failed_writes.add(member, 1);
        }
    }

    /// Notes that a page of a shard is not stranded any more; under the lock of the shard.
    pub(crate) fn unstrand(&self, shard: &mut Shard, at: u32, page: u64) {
        if shard.unstrand(at, (page % EXTENT_PAGES as u64) as usize) {
            self.failed_writes.sub(self.member_of(page), 1);
        }
    }

    /// Drops dirty pages of an extent, where a cache writes through and all who wrote to the extent
    /// were answered: with an error, or the pages would be clean. Gives how many are clean now.
    pub(crate) fn drop_failed(&self, shard: &mut Shard, at: u32) -> u32 {
        let extent = shard.extent(at);
        if !self.is_write_through() || extent.failed.claims > 0 {
            return 0;
        }
        let pages = extent.dirty_bits() & !extent.writing;
        let first = extent.number * EXTENT_PAGES as u64;
        for place in (0..EXTENT_PAGES).filter(|place| pages & 1 << place != 0) {
            self.unstrand(shard, at, first + place as u64);
            shard.drop_page(at, place);
        }
        pages.count_ones()
    }

    /// A stranded page is being written from now on.
    pub(crate) fn begin_probe(&self, page: u64) {
        self.failed_writes.members[self.member_of(page)].probing.fetch_add(1, Order::SeqCst);
    }

    /// A stranded page was written, or not; under the lock of its shard.
    pub(crate) fn end_probe(&self, page: u64) {
        let member = self.member_of(page);
        self.failed_writes.members[member].probing.fetch_add(u64::MAX, Order::SeqCst);
        self.failed_writes.sub(member, 1);
    }

    /// Looks which drives began to fail and which do not any more; whether there are such.
    pub(crate) fn settle(&self, now_ns: u64) -> bool {
        let Some(mut watch) = self.failed_writes.watch.try_lock() else { return false };
        let mut has_changed = false;
        for (number, of) in watch.iter_mut().enumerate() {
            let member = &self.failed_writes.members[number];
            let (errors, good) =
                (member.errors.load(Order::SeqCst), member.good.load(Order::SeqCst));
            let (state, has_failed) = (self.failed_writes.state(number), errors != of.errors);
            let is_stuck = self.failed_writes.is_stuck(number);
            let is_over = match state {
                FINE => false,
                FAILS => now_ns >= of.retry_ns && good != of.good,
                _ => !is_stuck && !has_failed,
            };
            if state == FINE && (has_failed || is_stuck) {
                let retry_ns = now_ns + RETRY_NS;
                *of = Watch { errors: of.errors, good, retry_ns };
                member.state.store(if has_failed { FAILS } else { WAS_STUCK }, Order::SeqCst);
                self.failed_writes.failing.fetch_add(1, Order::SeqCst);
                self.for_listed(number, |shard, at, page| self.strand(shard, at, page));
            } else if state == WAS_STUCK && has_failed {
                *of = Watch { errors: of.errors, good, retry_ns: now_ns + RETRY_NS };
                member.state.store(FAILS, Order::SeqCst);
            } else if is_over {
                of.errors = errors;
                member.state.store(FINE, Order::SeqCst);
                self.failed_writes.failing.fetch_add(u64::MAX, Order::SeqCst);
                self.for_listed(number, |shard, at, page| self.unstrand(shard, at, page));
            } else {
                continue;
            }
            has_changed = true;
        }
        has_changed
    }

    /// What the volume below is owed; looks at all pages if a write has failed so far.
    pub(crate) fn unwritten(&self) -> Unwritten {
        let (pages, written) = (self.dirty_pages(), self.written_back());
        // Relaxed: a number that nothing depends on.
        if self.counts.write_errors.load(Order::Relaxed) == 0 {
            return Unwritten { pages, untried: pages, written };
        }
        let mut untried = 0;
        for shard in self.shards() {
            let shard = shard.lock();
            for number in shard.numbers() {
                let extent = shard.extent(shard.find(number).expect("it is in the table"));
                // What a drive did not answer has not been tried.
                let tried = match extent.failed.status {
                    Status::TimedOut => 0,
                    _ => extent.failed.pages,
                };
                let owed = (extent.dirty_bits() | extent.writing) & !tried;
                untried += u64::from(owed.count_ones());
            }
        }
        Unwritten { pages, untried, written }
    }

    /// The numbers of the drives that have writes, and have ended none for a second or more; none
    /// of a volume of one drive.
    #[must_use]
    pub fn stuck_drives(&self) -> Vec<usize> {
        (0..self.failed_writes.members.len())
            .filter(|member| self.failed_writes.is_stuck(*member))
            .collect()
    }

    /// What was acknowledged and is in memory only, if there is something; looks at all dirty
    /// pages.
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

    /// The pages that are in memory only, in order, and which eighths of each. A page that is being
    /// written by a drive that has answered all is there, although the write, which may go over
    /// other drives, has not ended.
    fn pages_at_risk(&self) -> Vec<(u64, u8)> {
        let has_all = |disk: &Arc<Disk<M>>| {
            let stats = disk.stats();
            stats.in_flight() == 0 && stats.ops[Op::Write as usize].errors == 0
        };
        let has_all: Vec<bool> = self.below.disks().iter().map(has_all).collect();
        let mut pages = Vec::new();
        for shard in self.shards() {
            let shard = shard.lock();
            for number in shard.numbers() {
                let extent = shard.extent(shard.find(number).expect("it is in the table"));
                for place in 0..EXTENT_PAGES {
                    let page = number * EXTENT_PAGES as u64 + place as u64;
                    let is_written = extent.writing & 1 << place != 0;
                    let mask = match is_written && !has_all[self.member_of(page)] {
                        // What was dirty of it is valid, and little else if nobody has read it.
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

    /// The drives that are to be tried once more now.
    pub(crate) fn probes_due(&self, now_ns: u64) -> Vec<usize> {
        let Some(mut watch) = self.failed_writes.watch.try_lock() else { return Vec::new() };
        let mut due = Vec::new();
        for (number, of) in watch.iter_mut().enumerate() {
            let member = &self.failed_writes.members[number];
            let is_idle = member.probing.load(Order::SeqCst) == 0;
            if self.failed_writes.is_failing(number) && now_ns >= of.retry_ns && is_idle {
                of.retry_ns = now_ns + RETRY_NS;
                due.push(number);
            }
        }
        due
    }

    /// The pages of an extent that are of drives for which `is_its` holds, a bit each.
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

    /// Calls `f` for each page of a drive that stands in an extent which is listed as dirty, under
    /// the lock of its shard.
    fn for_listed(&self, member: usize, f: impl Fn(&mut Shard, u32, u64)) {
        let sectors = self.sectors();
        for shard in self.shards() {
            let mut shard = shard.lock();
            let listed: Vec<u32> = shard.listed().collect();
            for at in listed {
                let first = shard.extent(at).number * EXTENT_PAGES as u64;
                for page in first..first + EXTENT_PAGES as u64 {
                    if self.page.start_of(page) < sectors && self.member_of(page) == member {
                        f(&mut shard, at, page);
                    }
                }
            }
        }
    }
}
