//! A model of a drive's contents after a crash: the versions that every sector may hold, and
//! contents that name their write.
//!
//! Owns a history per sector. Every event takes a tick of one counter, under the lock of the
//! model's owner. `ended < sent` of two ticks therefore means that the first request was answered
//! before the second was sent. Called by `load`, which writes, and by the tests, which cut the
//! power and kill servers.
//!
//! The rule: a version must not be read any more once a later durable version was sent after its
//! end. All other versions may be read back, but only whole. An acknowledged write is durable if it
//! had FUA, or if a flush that was sent after the acknowledgement was itself acknowledged, on any
//! connection. A request acknowledged while the power is being cut guarantees nothing, since it may
//! have been carried out on either side of the cut.

use std::fmt;
use std::ops::Range;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// A request that has no answer yet, or a cut that is not over.
const NEVER: u64 = u64::MAX;

/// A version of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    /// The tick at which the write was sent; unique, so it names the write.
    stamp: u64,
    /// The tick of the answer, whatever it was; `NEVER` before.
    ended: u64,
    /// The tick after which all of it reached the drive: that of the write, or of a read that found
    /// it.
    since: u64,
    acknowledged: bool,
    durable: bool,
}

/// The content of an empty drive.
const EMPTY: Version = Version { stamp: 0, ended: 0, since: 0, acknowledged: true, durable: true };

/// The server's answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request was acknowledged.
    Done,
    /// The request failed: it may have been carried out wholly, in part, or not at all.
    Failed,
}

/// A write in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The name of the write, stored in each of its sectors.
    pub stamp: u64,
    /// The sectors that it covers.
    pub sectors: Range<u64>,
    /// The write is durable when acknowledged.
    pub fua: bool,
}

/// A sector with contents that it must not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// The sector's bytes are not those of a single write to it.
    Torn {
        /// The sector's number.
        sector: u64,
        /// The write that the first bytes name.
        stamp: u64,
    },
    /// The sector holds a write that must have been overwritten, or was never sent.
    Stale {
        /// The sector's number.
        sector: u64,
        /// The write that the sector holds.
        stamp: u64,
        /// The writes that the sector may hold.
        allowed: Vec<u64>,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Torn { sector, stamp } => {
                write!(f, "sector {sector} is not one write: it begins like write {stamp}")
            }
            Wrong::Stale { sector, stamp, allowed } => {
                write!(f, "sector {sector} holds write {stamp}, and may hold {allowed:?}")
            }
        }
    }
}

/// The model of a drive.
#[derive(Debug, Clone)]
pub struct Model {
    sectors: Vec<Vec<Version>>,
    clock: u64,
    /// Ticks at which the last power cut began and ended.
    cut: (u64, u64),
    /// Sectors that were read back without their newest version.
    went_back: u64,
}

impl Model {
    /// An empty drive of `nr_sectors` sectors.
    #[must_use]
    pub fn new(nr_sectors: u64) -> Self {
        let sectors = (0..nr_sectors).map(|_| vec![EMPTY]).collect();
        Model { sectors, clock: 1, cut: (0, 0), went_back: 0 }
    }

    /// Number of sectors.
    #[must_use]
    pub fn nr_sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Sectors that were read back without their newest version so far. A test checks that some
    /// were, or it has tested nothing.
    #[must_use]
    pub fn went_back(&self) -> u64 {
        self.went_back
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn histories(&mut self, sectors: &Range<u64>) -> &mut [Vec<Version>] {
        &mut self.sectors[sectors.start as usize..sectors.end as usize]
    }

    /// Records that a write is about to be sent.
    pub fn begin_write(&mut self, sectors: Range<u64>, fua: bool) -> Write {
        let stamp = self.tick();
        let (ended, since) = (NEVER, stamp);
        let version = Version { stamp, ended, since, acknowledged: false, durable: false };
        self.histories(&sectors).iter_mut().for_each(|history| history.push(version));
        Write { stamp, sectors, fua }
    }

    /// Records the answer to a write.
    pub fn end_write(&mut self, write: &Write, outcome: Outcome) {
        let (now, acknowledged) = (self.tick(), outcome == Outcome::Done);
        let durable = acknowledged && write.fua && self.is_after_the_cut(write.stamp);
        for history in self.histories(&write.sectors) {
            let version = history.iter_mut().find(|version| version.stamp == write.stamp);
            if let Some(version) = version {
                *version = Version { ended: now, acknowledged, durable, ..*version };
            }
            forget_overwritten(history);
        }
    }

    /// Records that a flush is about to be sent; returns the argument for `end_flush`.
    pub fn begin_flush(&mut self) -> u64 {
        self.tick()
    }

    /// Records that a flush was acknowledged. A flush that failed changes nothing.
    pub fn end_flush(&mut self, sent: u64) {
        self.tick();
        let cut = self.cut;
        for history in &mut self.sectors {
            for version in history.iter_mut().filter(|version| version.ended < sent) {
                let covered = version.acknowledged && version.since > cut.1;
                version.durable |= covered && cut.1 != NEVER;
            }
            forget_overwritten(history);
        }
    }

    /// Records that the power is about to be cut.
    pub fn begin_cut(&mut self) {
        self.cut = (self.tick(), NEVER);
    }

    /// Records that the power was cut.
    pub fn end_cut(&mut self) {
        self.cut.1 = self.tick();
    }

    fn is_after_the_cut(&self, sent: u64) -> bool {
        self.cut.1 != NEVER && sent > self.cut.1
    }

    /// May a request sent at tick `sent` fail now because of the last power cut?
    #[must_use]
    pub fn is_excused(&self, sent: u64) -> bool {
        self.cut.0 != 0 && sent < self.cut.1
    }

    /// Records that the server died but its page cache, which is the kernel's, survived:
    /// acknowledged writes stay, and unanswered ones will never be answered.
    pub fn server_died(&mut self) {
        let now = self.tick();
        for history in &mut self.sectors {
            for version in history.iter_mut() {
                version.ended = version.ended.min(now);
                version.durable |= version.acknowledged;
            }
            forget_overwritten(history);
        }
    }

    /// Records that the server was killed together with a cache in its own memory: unanswered
    /// requests will never be answered, and acknowledged writes stay only if they were durable.
    pub fn cache_died(&mut self) {
        let now = self.tick();
        for version in self.sectors.iter_mut().flatten() {
            version.ended = version.ended.min(now);
        }
    }

    /// Compares data read from sector `first` on, while nothing was in flight, with the model.
    /// Versions newer than those found are lost, and must not come back.
    ///
    /// # Errors
    ///
    /// The first sector that holds what it must not.
    pub fn check(&mut self, first: u64, data: &[u8]) -> Result<(), Wrong> {
        let now = self.tick();
        for (sector, bytes) in (first..).zip(data.chunks(SECTOR)) {
            let stamp = stamp_of(sector, bytes)?;
            let history = &mut self.sectors[sector as usize];
            let Some(found) = history.iter_mut().find(|version| version.stamp == stamp) else {
                let allowed = history.iter().map(|version| version.stamp).collect();
                return Err(Wrong::Stale { sector, stamp, allowed });
            };
            found.since = now;
            let (ended, before) = (found.ended, history.len());
            history.retain(|version| version.stamp <= ended);
            self.went_back += u64::from(history.len() < before);
        }
        Ok(())
    }
}

/// Drops versions that cannot come back: those that ended before a durable version began.
fn forget_overwritten(history: &mut Vec<Version>) {
    let durable = history.iter().filter(|version| version.durable);
    let newest = durable.map(|version| version.stamp).max().unwrap_or(0);
    history.retain(|version| version.ended >= newest);
}

/// The word at `index` of a sector that write `stamp` wrote.
fn word(stamp: u64, sector: u64, index: usize) -> u64 {
    match (stamp, index) {
        (0, _) => 0,
        (_, 0) => stamp,
        _ => (stamp ^ sector << 40).wrapping_add(index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// The contents of a write.
#[must_use]
pub fn contents(write: &Write) -> Vec<u8> {
    let words = |sector| (0..SECTOR / 8).map(move |index| word(write.stamp, sector, index));
    write.sectors.clone().flat_map(words).flat_map(u64::to_le_bytes).collect()
}

/// The write that a sector's bytes belong to.
fn stamp_of(sector: u64, bytes: &[u8]) -> Result<u64, Wrong> {
    let word_at = |index: usize| {
        let bytes = bytes[index * 8..index * 8 + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes are eight bytes"))
    };
    let stamp = word_at(0);
    let whole = (0..SECTOR / 8).all(|index| word_at(index) == word(stamp, sector, index));
    if whole { Ok(stamp) } else { Err(Wrong::Torn { sector, stamp }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that is acknowledged at once.
    fn written(model: &mut Model, sectors: Range<u64>, fua: bool) -> Write {
        let write = model.begin_write(sectors, fua);
        model.end_write(&write, Outcome::Done);
        write
    }

    fn flushed(model: &mut Model) {
        let sent = model.begin_flush();
        model.end_flush(sent);
    }

    fn stale(sector: u64, stamp: u64, allowed: &[u64]) -> Result<(), Wrong> {
        Err(Wrong::Stale { sector, stamp, allowed: allowed.to_vec() })
    }

    #[test]
    fn a_flushed_write_that_is_lost_is_found() {
        let mut model = Model::new(4);
        let write = written(&mut model, 1..3, false);
        assert_eq!(model.clone().check(0, &[0; 4 * SECTOR]), Ok(()), "it may be lost before");
        flushed(&mut model);
        assert_eq!(model.clone().check(0, &[0; 4 * SECTOR]), stale(1, 0, &[write.stamp]));
        let mut half = contents(&write);
        half[SECTOR..].fill(0);
        assert_eq!(model.clone().check(1, &half), stale(2, 0, &[write.stamp]));
        assert_eq!(model.check(1, &contents(&write)), Ok(()));
    }

    #[test]
    fn lost_fua_write_is_found_and_its_successor_is_not_required() {
        let mut model = Model::new(1);
        let old = written(&mut model, 0..1, false);
        let fua = written(&mut model, 0..1, true);
        let new = written(&mut model, 0..1, false);
        let allowed = [fua.stamp, new.stamp];
        assert_eq!(model.clone().check(0, &contents(&old)), stale(0, old.stamp, &allowed));
        assert_eq!(model.clone().check(0, &contents(&fua)), Ok(()));
        assert_eq!(model.check(0, &contents(&new)), Ok(()));
    }

    #[test]
    fn a_flush_covers_only_what_was_acknowledged_before_it_was_sent() {
        let mut model = Model::new(1);
        let first = model.begin_flush();
        let write = written(&mut model, 0..1, false);
        model.end_flush(first);
        assert_eq!(model.clone().check(0, &[0; SECTOR]), Ok(()), "written during the flush");
        let unanswered = model.begin_write(0..1, false);
        flushed(&mut model);
        let allowed = [write.stamp, unanswered.stamp];
        assert_eq!(model.clone().check(0, &[0; SECTOR]), stale(0, 0, &allowed));
        assert_eq!(model.check(0, &contents(&unanswered)), Ok(()));
    }

    #[test]
    fn overlapping_writes_may_have_been_carried_out_in_either_order() {
        let mut model = Model::new(1);
        let (a, b) = (model.begin_write(0..1, false), model.begin_write(0..1, false));
        model.end_write(&b, Outcome::Done);
        model.end_write(&a, Outcome::Done);
        flushed(&mut model);
        assert_eq!(model.clone().check(0, &contents(&a)), Ok(()));
        assert_eq!(model.check(0, &contents(&b)), Ok(()));
    }

    #[test]
    fn failed_write_may_be_there_and_failed_flush_covers_nothing() {
        let mut model = Model::new(1);
        let write = model.begin_write(0..1, true);
        model.end_write(&write, Outcome::Failed);
        flushed(&mut model);
        assert_eq!(model.clone().check(0, &[0; SECTOR]), Ok(()));
        assert_eq!(model.check(0, &contents(&write)), Ok(()));
    }

    #[test]
    fn what_is_acknowledged_during_a_cut_promises_nothing() {
        let mut model = Model::new(3);
        let before = written(&mut model, 0..1, false);
        let across = model.begin_write(1..2, true);
        let flush = model.begin_flush();
        model.begin_cut();
        assert!(model.is_excused(before.stamp));
        model.end_flush(flush);
        model.end_cut();
        model.end_write(&across, Outcome::Done);
        let late = model.begin_flush();
        assert!(!model.is_excused(late));
        model.end_flush(late);
        assert_eq!(model.clone().check(0, &[0; 3 * SECTOR]), Ok(()));
        let after = written(&mut model, 2..3, true);
        assert_eq!(model.check(0, &[0; 3 * SECTOR]), stale(2, 0, &[after.stamp]));
    }

    #[test]
    fn what_was_lost_must_not_come_back() {
        let mut model = Model::new(1);
        let write = written(&mut model, 0..1, false);
        model.begin_cut();
        model.end_cut();
        assert_eq!(model.check(0, &[0; SECTOR]), Ok(()));
        assert_eq!(model.went_back(), 1);
        assert_eq!(model.check(0, &contents(&write)), stale(0, write.stamp, &[0]));
    }

    #[test]
    fn what_survived_a_cut_is_covered_by_the_next_flush() {
        let mut model = Model::new(1);
        let write = written(&mut model, 0..1, false);
        model.begin_cut();
        model.end_cut();
        flushed(&mut model);
        assert_eq!(model.clone().check(0, &[0; SECTOR]), Ok(()), "lost before the flush");
        assert_eq!(model.check(0, &contents(&write)), Ok(()));
        flushed(&mut model);
        assert_eq!(model.check(0, &[0; SECTOR]), stale(0, 0, &[write.stamp]));
    }

    #[test]
    fn a_dead_server_has_kept_what_it_acknowledged() {
        let mut model = Model::new(2);
        let kept = written(&mut model, 0..1, false);
        let open = model.begin_write(1..2, false);
        model.server_died();
        assert_eq!(model.clone().check(0, &[0; SECTOR]), stale(0, 0, &[kept.stamp]));
        assert_eq!(model.clone().check(1, &[0; SECTOR]), Ok(()));
        assert_eq!(model.clone().check(1, &contents(&open)), Ok(()));
        let next = written(&mut model, 1..2, false);
        model.server_died();
        assert_eq!(model.check(1, &contents(&open)), stale(1, open.stamp, &[next.stamp]));
    }

    #[test]
    fn a_dead_cache_has_kept_what_it_flushed_and_perhaps_more() {
        let mut model = Model::new(2);
        let flushed_one = written(&mut model, 0..1, false);
        flushed(&mut model);
        let dirty = written(&mut model, 0..2, false);
        let open = model.begin_write(0..1, false);
        model.cache_died();
        let allowed = [flushed_one.stamp, dirty.stamp, open.stamp];
        assert_eq!(model.clone().check(0, &[0; SECTOR]), stale(0, 0, &allowed));
        assert_eq!(model.clone().check(1, &[0; SECTOR]), Ok(()));
        assert_eq!(model.check(0, &contents(&flushed_one)), Ok(()));
        assert_eq!(model.check(0, &contents(&open)), stale(0, open.stamp, &allowed[..1]));
    }

    #[test]
    fn a_sector_of_two_writes_or_of_another_place_is_torn() {
        let mut model = Model::new(2);
        let (a, b) = (written(&mut model, 0..2, false), written(&mut model, 0..2, false));
        let (stamp, mut bytes) = (a.stamp, contents(&a));
        bytes[256..SECTOR].copy_from_slice(&contents(&b)[256..SECTOR]);
        assert_eq!(model.check(0, &bytes), Err(Wrong::Torn { sector: 0, stamp }));
        let other = contents(&a)[SECTOR..].to_vec();
        assert_eq!(model.check(0, &other), Err(Wrong::Torn { sector: 0, stamp }));
    }
}
