//! `Tracer`: one ring of trace events for each recording thread, and their readout.
//!
//! A ring has one writer (the submit context of a channel or worker) and one reader (the recorder),
//! and neither waits for the other. An event that finds no room is counted as dropped, and a note
//! before the next event tells how many events were dropped. The writer publishes words (entry.rs)
//! once for each batch. Lock order: the list of rings, then a ring's reader. Kernel counterpart:
//! kernel/trace/blktrace.c and its relay channels.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use millrace_machine::{CpuId, Lock, Machine, Order, Word as _, debug_fields};

use crate::queue::driver::DriverData;
use crate::trace::blktrace::EventCode;
use crate::trace::entry::{
    RingDecoder, RingWord, TraceEntry, TraceStep, TraceSubject, WORDS_MAX, data_words, from_word,
    group_word, note_word, step_word,
};
use crate::trace::note::{TraceMessage, TraceNote};

/// Default number of events in a ring. A ring of this size takes 2 MiB.
pub const TRACE_RING_EVENTS: usize = 1 << 16;
/// Number of ring words for each event: the event itself, and its time, device and tenant.
const WORDS_PER_EVENT: usize = 2;
const DROP_NOTE_WORDS: u64 = 2;
const ENTRIES_AT_ONCE: usize = 1024;

/// Clock reading that a trace records as the time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TraceStamp {
    /// The time of the event's batch, or of its I/O if the channel reads the clock for each I/O.
    #[default]
    Batch,
    /// The event's own time: the clock is read for each event.
    Event,
}

struct TraceRing<M: Machine> {
    words: Box<[UnsafeCell<RingWord>]>,
    /// Number of ring words (16 bytes each) ever written; only the writer changes it.
    head: M::Word,
    /// Number of ring words (16 bytes each) ever read; only the reader changes it.
    tail: M::Word,
    /// Number of events that found no room; only the writer changes it.
    dropped: M::Word,
    /// 1 if the clock is read for each event.
    exact: M::Word,
    /// Decoder of the ring's words, under a lock that admits only one reader.
    reader: M::Lock<RingDecoder>,
    cpu: CpuId,
}

// SAFETY: writer and reader touch different words, handed over through `head` and `tail`.
unsafe impl<M: Machine> Sync for TraceRing<M> {}
// SAFETY: no field is tied to a thread.
unsafe impl<M: Machine> Send for TraceRing<M> {}

impl<M: Machine> TraceRing<M> {
    fn read(&self, mut take: impl FnMut(CpuId, &[TraceEntry])) {
        let mut decoder = self.reader.lock();
        // Acquire for `head` pairs with the Release of `publish`. Relaxed for `tail`, because only
        // the reader writes `tail`.
        let (head, mut tail) = (self.head.load(Order::Acquire), self.tail.load(Order::Relaxed));
        let mut entries = Vec::with_capacity(ENTRIES_AT_ONCE);
        while tail < head {
            while tail < head && entries.len() + 3 <= ENTRIES_AT_ONCE {
                let place = tail as usize & (self.words.len() - 1);
                // SAFETY: the writer does not touch this published word until `tail` has passed it.
                decoder.take(unsafe { *self.words[place].get() }, &mut entries);
                tail += 1;
            }
            // A batch's dispatch (D) events must come after its insert (I) events, so the decoder
            // has held them back. All published words are decoded now, so `end` appends the
            // dispatch events.
            if tail == head {
                decoder.end(&mut entries);
            }
            // Release pairs with the Acquire of `find_room`.
            self.tail.store(tail, Order::Release);
            take(self.cpu, &entries);
            entries.clear();
        }
    }
}

pub(crate) struct TraceWriter<M: Machine> {
    ring: Arc<TraceRing<M>>,
    mask: u64,
    head: u64,
    /// Value of `head` at which the ring counts as full. Computed from the last known `tail`.
    limit: u64,
    /// Number of dropped events since the last message about dropped events.
    untold: u32,
    /// Time of the last recorded event. The field `group` holds that event's device, tenant and
    /// categories.
    time_ns: u64,
    group: u64,
    stamp: TraceStamp,
}

impl<M: Machine> TraceWriter<M> {
    #[inline]
    pub(crate) fn put(&mut self, time_ns: u64, of: &TraceSubject, step: TraceStep) {
        if self.open(time_ns, of, step) {
            self.push(step_word(of, step));
        }
    }

    #[inline]
    pub(crate) fn put_from(&mut self, time_ns: u64, of: &TraceSubject, step: TraceStep, from: u64) {
        if self.open(time_ns, of, step) {
            self.push(from_word(from));
            self.push(step_word(of, step));
        }
    }

    #[cold]
    pub(crate) fn put_data(&mut self, time_ns: u64, of: &TraceSubject, data: &DriverData) {
        let step = TraceStep::One(EventCode::DriverData);
        if self.open(time_ns, of, step) {
            data_words(data).for_each(|word| self.push(word));
            self.push(step_word(of, step));
        }
    }

    #[cold]
    pub(crate) fn put_note(&mut self, time_ns: u64, of: &TraceSubject, note: TraceNote) {
        // A message that finds no room in the ring counts as one dropped event.
        if self.open(time_ns, of, TraceStep::One(EventCode::Queue)) {
            self.push(note_word(note));
        }
    }

    #[inline]
    pub(crate) fn stamp(&self) -> TraceStamp {
        self.stamp
    }

    #[inline]
    pub(crate) fn is_exact(&self) -> bool {
        self.stamp == TraceStamp::Event
    }

    /// Makes all recorded events visible to the reader of the ring. Then reads again whether events
    /// are recorded with their own time or the time of their batch ([`TraceStamp`]).
    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release pairs with the Acquire of `TraceRing::read`.
        self.ring.head.store(self.head, Order::Release);
        // Relaxed: the writer may notice a new value of `exact` a little later.
        let exact = self.ring.exact.load(Order::Relaxed) != 0;
        self.stamp = if exact { TraceStamp::Event } else { TraceStamp::Batch };
    }

    /// Makes room for an event. If time, device, tenant or categories differ from the last event,
    /// writes a word with them. Returns false if there is no room.
    #[inline]
    fn open(&mut self, mut time_ns: u64, of: &TraceSubject, step: TraceStep) -> bool {
        if self.limit - self.head < WORDS_MAX && !self.find_room(time_ns, of, step) {
            return false;
        }
        if self.stamp == TraceStamp::Event {
            time_ns = M::now();
        }
        self.open_group(time_ns, of);
        true
    }

    #[inline]
    fn open_group(&mut self, time_ns: u64, of: &TraceSubject) {
        if (time_ns, of.group) != (self.time_ns, self.group) {
            (self.time_ns, self.group) = (time_ns, of.group);
            self.push(group_word(time_ns, of.group));
        }
    }

    /// Writes a word to the ring, which must have room.
    #[inline]
    fn push(&mut self, word: RingWord) {
        let place = (self.head & self.mask) as usize;
        // SAFETY: the mask keeps the index in the ring, and `limit` excludes words not yet read.
        unsafe { *self.ring.words.get_unchecked(place).get() = word };
        self.head += 1;
    }

    #[cold]
    fn find_room(&mut self, time_ns: u64, of: &TraceSubject, step: TraceStep) -> bool {
        // Acquire pairs with the Release of `TraceRing::read`: the reader has copied the ring words
        // before `tail`, so they may be overwritten.
        self.limit = self.ring.tail.load(Order::Acquire) + self.mask + 1;
        let room = self.limit - self.head;
        if room >= WORDS_MAX && self.untold == 0 {
            return true;
        }
        if room >= WORDS_MAX + DROP_NOTE_WORDS {
            let remark = TraceMessage::Dropped(core::mem::take(&mut self.untold));
            self.open_group(time_ns, of);
            self.push(note_word(TraceNote { remark, time_ns: 0 }));
            return true;
        }
        // The ring may be full of words that would be published only at the end of the batch, so
        // they are published now. Release pairs with the Acquire of `TraceRing::read`.
        self.ring.head.store(self.head, Order::Release);
        // Relaxed: a statistic with one writer.
        let dropped = self.ring.dropped.load(Order::Relaxed) + step.events();
        self.ring.dropped.store(dropped, Order::Relaxed);
        self.untold = self.untold.saturating_add(step.events() as u32);
        // The next event calls `find_room` again, which sees room freed meanwhile.
        self.limit = self.head;
        false
    }
}

/// State of the trace rings during a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceStatus {
    /// Number of events dropped, because a ring was full, since the recording began.
    pub dropped: u64,
    /// Number of threads that have a ring.
    pub writers: usize,
}

/// Trace rings of all threads that submit or serve I/O of the same set of drives.
pub struct Tracer<M: Machine> {
    /// 1 while a trace is recorded.
    on: M::Word,
    rings: M::Lock<Vec<Arc<TraceRing<M>>>>,
    /// Correction of the rings' drop counters. The sum of this number and of the counters of all
    /// `rings` is the number of events dropped in this recording. When a recording starts, the
    /// counters of `rings` are subtracted, because they contain earlier drops. When a ring is
    /// freed, its counter is added. Wraps around.
    dropped: M::Word,
    /// 1 if the clock is read for each event.
    exact: M::Word,
    words: usize,
}

debug_fields!(Tracer<M: Machine>, words);

impl<M: Machine> Tracer<M> {
    /// Creates a tracer without rings. Each thread's ring has room for at least `events` events,
    /// rounded up to a power of two.
    #[must_use]
    pub fn new(events: usize) -> Arc<Tracer<M>> {
        Arc::new(Tracer {
            on: M::Word::new(0),
            rings: M::Lock::new("trace-rings", Vec::new()),
            dropped: M::Word::new(0),
            exact: M::Word::new(0),
            words: (events.next_power_of_two() * WORDS_PER_EVENT).max(16),
        })
    }

    /// Returns true while a trace is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        // Relaxed: threads may notice a little later that a recording has started or stopped.
        self.on.load(Order::Relaxed) != 0
    }

    /// Starts to record, and discards the events of an earlier recording. Returns false if a
    /// recording is already under way. A channel records from its next batch after
    /// [`Volume::set_traced`](crate::Volume::set_traced).
    pub fn start(&self, stamp: TraceStamp) -> bool {
        let mut rings = self.rings.lock();
        // The lock of `rings` is held, so no other thread can start or stop a recording after this
        // check.
        if self.is_on() {
            return false;
        }
        rings.retain(|ring| Arc::strong_count(ring) > 1);
        let exact = u64::from(stamp == TraceStamp::Event);
        // Relaxed: threads may notice the new value a little later.
        self.exact.store(exact, Order::Relaxed);
        for ring in rings.iter() {
            ring.read(|_, _| ());
            // Relaxed: the ring's writer may notice the new value a little later.
            ring.exact.store(exact, Order::Relaxed);
        }
        // Relaxed: statistics.
        let before: u64 = rings.iter().map(|ring| ring.dropped.load(Order::Relaxed)).sum();
        self.dropped.store(before.wrapping_neg(), Order::Relaxed);
        self.on.store(1, Order::Relaxed);
        true
    }

    /// Stops recording. Entries left in the rings can still be drained.
    pub fn stop(&self) {
        let _rings = self.rings.lock();
        // Relaxed: threads may notice a little later that the recording has stopped.
        self.on.store(0, Order::Relaxed);
    }

    /// Creates a ring for the calling thread.
    pub(crate) fn writer(&self) -> TraceWriter<M> {
        // Filled with ones, because the pages of zeroed memory may not be mapped until their first
        // use. So all pages are mapped before the first event.
        let words = (0..self.words).map(|_| UnsafeCell::new([u64::MAX; 2])).collect();
        let mut rings = self.rings.lock();
        let word = || M::Word::new(0);
        let (head, tail, dropped) = (word(), word(), word());
        // Relaxed: `exact` is written only under the lock of `rings`, which this thread holds.
        let exact = M::Word::new(self.exact.load(Order::Relaxed));
        let reader = M::Lock::new("trace-ring", RingDecoder::default());
        let ring = Arc::new(TraceRing { words, head, tail, dropped, exact, reader, cpu: M::cpu() });
        rings.push(Arc::clone(&ring));
        drop(rings);
        let mask = self.words as u64 - 1;
        // With a `limit` of 0, the first event calls `find_room`, which sets `limit`.
        let (head, limit, stamp) = (0, 0, TraceStamp::Batch);
        let (untold, time_ns, group) = (0, 0, 0);
        let mut writer = TraceWriter { ring, mask, head, limit, untold, time_ns, group, stamp };
        writer.publish();
        writer
    }

    /// Empties the rings, and passes their entries to `take`. Each call gets entries of one ring,
    /// in order of time, and the CPU on which the ring was created.
    pub fn drain(&self, mut take: impl FnMut(CpuId, &[TraceEntry])) -> TraceStatus {
        // The list is copied to release its lock, so that threads can add rings while `take` runs.
        let rings: Vec<_> = self.rings.lock().iter().map(Arc::clone).collect();
        // Relaxed: a statistic; no other data depends on it.
        let mut dropped = self.dropped.load(Order::Relaxed);
        for ring in &rings {
            ring.read(&mut take);
            // Relaxed: a statistic; no other data depends on it.
            dropped = dropped.wrapping_add(ring.dropped.load(Order::Relaxed));
        }
        let writers = rings.len();
        drop(rings);
        self.forget_the_gone();
        TraceStatus { dropped, writers }
    }

    /// Frees the empty rings of ended threads.
    fn forget_the_gone(&self) {
        self.rings.lock().retain(|ring| {
            let gone = Arc::strong_count(ring) == 1;
            // Acquire pairs with the Release with which an ended thread dropped its reference to
            // the ring: all that this thread wrote to the ring is visible.
            M::fence(Order::Acquire);
            // Acquire for `head` pairs with the Release of `publish`: the last ring words of the
            // ended thread are visible. Relaxed for `tail`, because only the reader writes it.
            // Relaxed for `dropped`, because it is a statistic.
            let empty = ring.head.load(Order::Acquire) == ring.tail.load(Order::Relaxed);
            if gone && empty {
                self.dropped.fetch_add(ring.dropped.load(Order::Relaxed), Order::Relaxed);
            }
            !(gone && empty)
        });
    }
}

impl<M: Machine> Drop for TraceWriter<M> {
    fn drop(&mut self) {
        self.publish();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::trace::blktrace::category;
    use crate::trace::entry::group_of;
    use millrace_machine::Native;

    fn of(sector: u64) -> TraceSubject {
        TraceSubject { group: group_of(1, 0, category::READ), sector, bytes: 512 }
    }

    const QUEUED: TraceStep = TraceStep::One(EventCode::Queue);

    #[test]
    fn a_full_ring_drops_and_counts_and_goes_on() {
        let tracer = Tracer::<Native>::new(8);
        assert!(tracer.start(TraceStamp::Batch) && !tracer.start(TraceStamp::Batch));
        let mut writer = tracer.writer();
        // The times differ, so each event takes two words, and the last one must leave room for the
        // largest event.
        (0..9).for_each(|n| writer.put(n + 1, &of(n), QUEUED));
        writer.put(9, &of(9), TraceStep::QueueGet);
        let mut seen = Vec::new();
        let status = tracer.drain(|_, entries| seen.extend(entries.iter().map(|e| e.sector)));
        assert_eq!((seen.as_slice(), status.dropped), ([0, 1, 2, 3, 4, 5].as_slice(), 3 + 2));
        writer.put(6, &of(7), QUEUED);
        writer.put(6, &of(8), QUEUED);
        drop(writer);
        let (mut seen, mut notes) = (Vec::new(), Vec::new());
        let status = tracer.drain(|_, entries| {
            seen.extend(entries.iter().map(|e| e.sector * 1000 + e.time_ns));
            notes.extend(entries.iter().map(|e| e.note.map(|note| note.remark)));
        });
        assert_eq!(
            (seen.as_slice(), status),
            ([6, 7006, 8006].as_slice(), TraceStatus { dropped: 5, writers: 1 })
        );
        assert_eq!(notes, [Some(TraceMessage::Dropped(5)), None, None], "before the next event");
        assert_eq!(tracer.drain(|_, _| ()).writers, 0);
        tracer.stop();
        assert!(tracer.start(TraceStamp::Batch));
        assert_eq!(tracer.drain(|_, _| ()).dropped, 0);
    }

    #[test]
    fn a_ring_that_was_emptied_has_as_much_room_as_at_first() {
        let tracer = Tracer::<Native>::new(8);
        tracer.start(TraceStamp::Batch);
        let mut writer = tracer.writer();
        for round in 1..4 {
            // The events have the same time, so each takes one word, and all share a group word.
            // The last event that fits leaves room for fewer words than the largest event has.
            (0..20).for_each(|n| writer.put(round, &of(n), QUEUED));
            let mut seen = Vec::new();
            let status = tracer.drain(|_, entries| {
                seen.extend(entries.iter().filter(|e| e.note.is_none()).map(|e| e.sector));
            });
            // From the second round on, the ring also holds a note about the events that the first
            // round dropped.
            let fit = 16 - WORDS_MAX - u64::from(round > 1);
            let dropped = round * (20 - fit) - u64::from(round > 1);
            assert_eq!((seen, status.dropped), ((0..fit).collect(), dropped), "{round}");
        }
    }

    #[test]
    fn the_usual_ring_is_two_mib() {
        let tracer = Tracer::<Native>::new(TRACE_RING_EVENTS);
        assert_eq!(tracer.words * size_of::<RingWord>(), 2 << 20);
        assert_eq!([1, 9, 100].map(|events| Tracer::<Native>::new(events).words), [16, 32, 256]);
    }

    #[test]
    fn a_tracer_is_on_from_its_start_to_its_stop() {
        let tracer = Tracer::<Native>::new(8);
        assert!(!tracer.is_on());
        for _ in 0..3 {
            assert!(tracer.start(TraceStamp::Batch) && tracer.is_on());
            assert!(!tracer.start(TraceStamp::Batch) && tracer.is_on());
            tracer.stop();
            assert!(!tracer.is_on());
            tracer.stop();
            assert!(!tracer.is_on());
        }
    }

    #[test]
    fn start_forgets_rings_of_vanished_threads_with_their_content() {
        let tracer = Tracer::<Native>::new(8);
        tracer.start(TraceStamp::Batch);
        let (mut gone, mut stays) = (tracer.writer(), tracer.writer());
        (0..9).for_each(|n| gone.put(n, &of(n), QUEUED));
        stays.put(1, &of(1), QUEUED);
        drop(gone);
        stays.publish();
        tracer.stop();
        tracer.start(TraceStamp::Batch);
        let mut seen = 0;
        let status = tracer.drain(|_, entries| seen += entries.len());
        assert_eq!((seen, status), (0, TraceStatus { dropped: 0, writers: 1 }));
    }

    #[test]
    fn a_long_ring_is_read_in_long_pieces_each_word_once() {
        let tracer = Tracer::<Native>::new(1 << 12);
        tracer.start(TraceStamp::Batch);
        let mut writer = tracer.writer();
        let issue = |n: u64| (n / 100, of(n), TraceStep::InsertIssue(0));
        (100..2100).map(issue).for_each(|(time_ns, of, step)| writer.put(time_ns, &of, step));
        writer.publish();
        let (mut pieces, mut issued) = (Vec::new(), Vec::new());
        tracer.drain(|_, entries| {
            pieces.push(entries.len());
            let of_issue = |e: &&TraceEntry| e.action & 0xffff == EventCode::Issue as u32;
            issued.extend(entries.iter().filter(of_issue).map(|e| e.sector));
        });
        assert_eq!(issued, (100..2100).collect::<Vec<_>>());
        assert_eq!(pieces.iter().sum::<usize>(), 4000);
        let (last, full) = pieces.split_last().unwrap();
        assert!(full.iter().all(|len| *len > ENTRIES_AT_ONCE / 2) && *last > 0, "{pieces:?}");
    }

    #[test]
    fn thread_that_slept_through_stop_goes_on_where_reader_is() {
        let tracer = Tracer::<Native>::new(64);
        tracer.start(TraceStamp::Batch);
        let mut writer = tracer.writer();
        writer.put(5, &of(1), QUEUED);
        writer.publish();
        tracer.stop();
        tracer.start(TraceStamp::Event);
        // This event belongs to the group that was opened before.
        writer.put(5, &of(2), QUEUED);
        writer.publish();
        writer.put(5, &of(3), QUEUED);
        writer.publish();
        let mut seen = Vec::new();
        tracer.drain(|_, entries| seen.extend(entries.iter().map(|e| (e.sector, e.time_ns))));
        assert_eq!((seen[0], seen.len()), ((2, 5), 2));
        assert!(seen[1].0 == 3 && seen[1].1 > 5, "{seen:?}");
    }

    #[test]
    fn what_is_not_published_is_not_seen() {
        let tracer = Tracer::<Native>::new(64);
        tracer.start(TraceStamp::Batch);
        let mut writer = tracer.writer();
        let count = || {
            let mut seen = 0;
            tracer.drain(|_, entries| seen += entries.len());
            seen
        };
        writer.put(5, &of(1), TraceStep::QueueGet);
        assert_eq!(count(), 0);
        writer.publish();
        assert_eq!(count(), 2);
    }

    #[test]
    fn reader_and_writer_share_a_ring_and_count_what_is_lost() {
        const EVENTS: u64 = 200_000;
        let tracer = Tracer::<Native>::new(64);
        let theirs = Arc::clone(&tracer);
        tracer.start(TraceStamp::Batch);
        let thread = std::thread::spawn(move || {
            let mut writer = theirs.writer();
            for n in 0..EVENTS {
                writer.put(n / 3, &of(n), QUEUED);
                writer.publish();
            }
        });
        let (mut last, mut seen, mut dropped, mut noted) = (None, 0, 0, 0);
        while !thread.is_finished() || seen + dropped < EVENTS {
            dropped = tracer
                .drain(|_, entries| {
                    for entry in entries {
                        if let Some(TraceNote { remark: TraceMessage::Dropped(events), .. }) =
                            entry.note
                        {
                            noted += u64::from(events);
                            continue;
                        }
                        assert!(last < Some(entry.sector) && entry.time_ns == entry.sector / 3);
                        last = Some(entry.sector);
                        seen += 1;
                    }
                })
                .dropped;
        }
        thread.join().unwrap();
        assert_eq!(seen + dropped, EVENTS);
        assert!(noted <= dropped && (noted == dropped || last != Some(EVENTS - 1)), "{noted}");
    }
}
