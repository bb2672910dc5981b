//! `UnflushedWrites`: tracks answered writes of a device that would be lost with this process.
//!
//! Some volumes keep answered writes in this process's memory until a flush: in a cache over the
//! drives, or in librbd's cache. If the daemon is killed, the guest lives on and must see an error,
//! as with a disk whose cache lost power. The guest's next flush fails, or its next write if the
//! device is write-through now.
//!
//! So the inflight region records whether a write was answered since the last flush, and by which
//! daemon. A region that another server wrote has no such record and shows no loss.
//!
//! Lock order: no lock is taken while `marks` is held. Invariants: the region is marked before the
//! guest sees the answer. A flush clears the mark only if no write was answered after the flush
//! began. A recorded loss stays until the guest saw the error.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use millrace_block::Features;

use super::inflight::Inflight;
use super::slots::FLUSH;
use crate::mailbox::lock;
use crate::virtio::status;

const PHASE: u32 = 3;
/// No write was answered since the last flush.
const CLEAN: u32 = 0;
/// A write was answered since the last flush.
const DIRTY: u32 = 1;
/// A flush is in flight, and no write was answered since the flush began.
const FLUSHING: u32 = 2;
/// Bit of the state: an earlier daemon lost writes, and the guest has not been informed.
const LOST: u32 = 4;

#[derive(Debug)]
pub(crate) struct UnflushedWrites {
    tracks: bool,
    /// [`CLEAN`], [`DIRTY`] or [`FLUSHING`], with or without [`LOST`]. Guarded by the lock of
    /// `marks`.
    state: AtomicU32,
    marks: Mutex<RegionMarks>,
}

#[derive(Debug)]
struct RegionMarks {
    /// Inflight region of the last frontend. After the death of this process, the frontend may pass
    /// the region to the next process.
    region: Option<Inflight>,
    /// Random number of this daemon, written to the inflight region while it has unflushed writes,
    /// so that the next daemon can tell whose they are.
    daemon: u32,
    flush: u64,
}

/// Serial number of a flush in flight. If the flush succeeds, it may clear the inflight region's
/// mark of unflushed writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlushTicket(u64);

impl UnflushedWrites {
    pub(crate) fn of(features: Features) -> UnflushedWrites {
        let tracks = features.process_cache;
        let daemon = (RandomState::new().hash_one(std::process::id()) as u32).max(1);
        let marks = Mutex::new(RegionMarks { region: None, daemon, flush: 0 });
        UnflushedWrites { tracks, state: AtomicU32::new(CLEAN), marks }
    }

    pub(crate) fn tracks(&self) -> bool {
        self.tracks
    }

    fn is_in(&self, phase: u32) -> bool {
        // SeqCst: the caller's write completed before this load. If the load does not see the start
        // of a flush, the flush starts after the write has completed, and so covers the write.
        self.state.load(Ordering::SeqCst) & PHASE == phase
    }

    /// Sets the state to `phase`, and updates the mark of unflushed writes in the inflight region
    /// to match. The caller must hold the lock of `marks`.
    fn enter(&self, marks: &RegionMarks, phase: u32) {
        let lost = self.state.load(Ordering::SeqCst) & LOST;
        if let Some(region) = &marks.region {
            region.mark_unflushed((phase != CLEAN).then_some(marks.daemon));
        }
        self.state.store(phase | lost, Ordering::SeqCst);
    }

    /// Marks the inflight region as having unflushed writes. Must be called before the guest can
    /// see that a write has completed.
    #[inline]
    pub(crate) fn answer_writes(&self) {
        if !self.is_in(DIRTY) {
            self.enter(&lock(&self.marks), DIRTY);
        }
    }

    /// Begins a flush. Returns a ticket for `end_flush` if some answered writes need a flush and no
    /// earlier flush in flight covers them.
    pub(crate) fn begin_flush(&self) -> Option<FlushTicket> {
        let mut marks = lock(&self.marks);
        // `DIRTY` means that answered writes need a flush, and that no flush in flight covers all
        // of them.
        self.is_in(DIRTY).then(|| {
            marks.flush += 1;
            self.enter(&marks, FLUSHING);
            FlushTicket(marks.flush)
        })
    }

    fn end_flush(&self, ticket: FlushTicket, outcome: u8) {
        let marks = lock(&self.marks);
        if self.is_in(FLUSHING) && marks.flush == ticket.0 {
            self.enter(&marks, if outcome == status::OK { CLEAN } else { DIRTY });
        }
    }

    /// Clears the mark of unflushed writes. Call this after the final flush has succeeded. After
    /// that flush has begun, no write may be answered.
    pub(crate) fn end_clean(&self) {
        self.enter(&lock(&self.marks), CLEAN);
    }

    /// Returns true, once for each loss, if the guest must be informed of lost writes.
    #[inline]
    pub(crate) fn take_loss(&self) -> bool {
        self.state.load(Ordering::SeqCst) & LOST != 0 && {
            let _marks = lock(&self.marks);
            self.state.fetch_and(!LOST, Ordering::SeqCst) & LOST != 0
        }
    }

    pub(crate) fn forget_loss(&self) {
        let marks = lock(&self.marks);
        // Relaxed: the state changes only under the lock held here.
        if self.state.load(Ordering::Relaxed) & LOST == 0
            && let Some(region) = &marks.region
        {
            region.clear_lost();
        }
    }

    /// Forgets that an earlier daemon lost writes. The lost writes belonged to an earlier guest or
    /// frontend.
    pub(crate) fn begin_session(&self) {
        let _marks = lock(&self.marks);
        self.state.fetch_and(!LOST, Ordering::SeqCst);
    }

    /// Keeps the marks of unflushed and lost writes in the inflight region `region` from now on.
    /// Returns true if the region shows that an earlier daemon lost the guest's writes.
    pub(crate) fn follow(&self, region: &Inflight) -> bool {
        let mut marks = lock(&self.marks);
        let (unflushed_by, was_lost) = region.marks();
        let is_lost = was_lost || unflushed_by.is_some_and(|daemon| daemon != marks.daemon);
        marks.region = Some(region.clone());
        if is_lost {
            // Records the loss in the region first. `enter`, called below, overwrites the earlier
            // daemon's mark of unflushed writes. Without the record, the loss would be hidden if
            // this daemon crashed after `enter`.
            region.mark_lost();
        }
        let phase = self.state.load(Ordering::SeqCst) & PHASE;
        self.state.store(phase | if is_lost { LOST } else { 0 }, Ordering::SeqCst);
        self.enter(&marks, phase);
        is_lost
    }
}

#[derive(Debug)]
pub(super) struct QueueUnflushed {
    device: Arc<UnflushedWrites>,
    pub(super) notes: bool,
    pub(super) answered: bool,
    flushes: Vec<(u16, FlushTicket)>,
    tells_loss: bool,
}

impl QueueUnflushed {
    pub(super) fn of(device: &Arc<UnflushedWrites>) -> QueueUnflushed {
        QueueUnflushed {
            device: Arc::clone(device),
            notes: device.tracks,
            answered: false,
            flushes: Vec::new(),
            tells_loss: false,
        }
    }

    /// Begins the flush of the request with first descriptor `head`. Returns [`FLUSH`], a bit of
    /// the request's state, if `end_flush` must be called when the flush completes; otherwise 0.
    pub(super) fn begin_flush(&mut self, head: u16) -> u32 {
        let ticket = self.notes.then(|| self.device.begin_flush()).flatten();
        self.flushes.extend(ticket.map(|ticket| (head, ticket)));
        if ticket.is_some() { FLUSH } else { 0 }
    }

    pub(super) fn end_flush(&mut self, head: u16, outcome: u8) {
        let ended = self.flushes.extract_if(.., |(of, _)| *of == head);
        ended.for_each(|(_, ticket)| self.device.end_flush(ticket, outcome));
    }

    #[inline]
    pub(super) fn take_loss(&mut self) -> bool {
        let is_lost = self.device.take_loss();
        self.tells_loss |= is_lost;
        is_lost
    }

    #[inline]
    pub(super) fn before_publish(&mut self) {
        if std::mem::take(&mut self.answered) {
            self.device.answer_writes();
        }
    }

    #[inline]
    pub(super) fn after_publish(&mut self) {
        if std::mem::take(&mut self.tells_loss) {
            self.device.forget_loss();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests may.
mod tests {
    use super::*;

    fn cached() -> UnflushedWrites {
        UnflushedWrites::of(Features { process_cache: true, ..Features::default() })
    }

    fn region() -> (Inflight, std::fs::File) {
        let (region, file, _) = Inflight::create(2, 8).unwrap();
        (region, file)
    }

    /// Returns true if a daemon that opens the inflight region next must assume that writes were
    /// lost.
    fn is_lost(file: &std::fs::File) -> bool {
        let kept = Inflight::open(file.try_clone().unwrap(), 0, (2, 8)).unwrap();
        let (unflushed_by, was_lost) = kept.marks();
        unflushed_by.is_some() || was_lost
    }

    #[test]
    fn write_is_owed_until_a_flush_after_its_answer_ends() {
        let (unflushed, (region, file)) = (cached(), region());
        assert!(!unflushed.follow(&region) && !is_lost(&file));
        assert_eq!(unflushed.begin_flush(), None, "nothing is owed");
        unflushed.answer_writes();
        assert!(is_lost(&file));
        let first = unflushed.begin_flush().unwrap();
        assert_eq!(unflushed.begin_flush(), None, "the first flush covers all earlier writes");
        unflushed.answer_writes();
        unflushed.end_flush(first, status::OK);
        assert!(is_lost(&file), "one was answered meanwhile");
        let failed = unflushed.begin_flush().unwrap();
        unflushed.end_flush(failed, status::IOERR);
        assert!(is_lost(&file));
        let (last, old) = (unflushed.begin_flush().unwrap(), failed);
        unflushed.end_flush(old, status::OK);
        assert!(is_lost(&file), "it is another's");
        unflushed.end_flush(last, status::OK);
        assert!(!is_lost(&file));
        unflushed.answer_writes();
        unflushed.end_clean();
        assert!(!is_lost(&file));
    }

    #[test]
    fn the_next_daemon_finds_the_loss_and_tells_the_guest_once() {
        let (first, (kept, file)) = (cached(), region());
        first.follow(&kept);
        first.answer_writes();
        assert!(
            !first.follow(&kept),
            "a frontend that returns to the same daemon has lost no writes"
        );
        // Daemon `second` has no volatile cache, but finds that daemon `first` has lost writes. The
        // loss stays recorded in the region until a guest has seen the error. So daemon `third`
        // finds the loss, too.
        let [second, third] = [UnflushedWrites::of(Features::default()), cached()];
        assert!(second.follow(&kept));
        assert!(second.take_loss() && !second.take_loss());
        assert!(is_lost(&file), "the guest has not seen the error");
        assert!(third.follow(&kept) && third.take_loss());
        third.forget_loss();
        assert!(!is_lost(&file) && !third.follow(&kept) && !third.take_loss());
    }

    #[test]
    fn what_is_owed_moves_to_the_next_region_and_a_loss_does_not() {
        let (unflushed, (first, _)) = (cached(), region());
        let dead = cached();
        dead.follow(&first);
        dead.answer_writes();
        assert!(unflushed.follow(&first));
        unflushed.begin_session();
        assert!(!unflushed.take_loss(), "another session");
        let (second, file) = region();
        assert!(!unflushed.follow(&second) && !is_lost(&file));
        unflushed.answer_writes();
        let (third, file) = region();
        assert!(!unflushed.follow(&third) && is_lost(&file));
        assert!(!unflushed.take_loss());
    }

    #[test]
    fn marks_leave_the_switch_and_requests_in_flight_alone() {
        use super::super::inflight::WriteCache;
        let (unflushed, (region, file)) = (cached(), region());
        region.note_cache(WriteCache::WriteThrough);
        unflushed.follow(&region);
        unflushed.answer_writes();
        assert!(region.is_write_through() && is_lost(&file));
        region.note_cache(WriteCache::WriteBack);
        assert!(!region.is_write_through() && is_lost(&file));
        unflushed.end_clean();
        let mut word = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut word, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 1 << 60, "the mark of every daemon");
    }
}
