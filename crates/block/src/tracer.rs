//! `Tracer`: rings of trace records, one for each thread that makes them, and who empties them.
//!
//! A ring has one writer (the `Runner` of a channel or worker) and one reader (the recorder), and
//! neither waits for the other: what finds no room is counted as dropped. An `Entry` is the
//! kernel's 48-byte record, but for what the reader knows better: magic, sequence and CPU. In their
//! place stands what a record's data are made of. Off, none of this is touched.
//! Kernel counterpart: kernel/trace/blktrace.c and its relay channels.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use millrace_machine::{CpuId, Lock, Machine, Order, Word};

use crate::bio::{Op, OpFlags};
use crate::blktrace::category;

/// Entries of a ring unless told otherwise: 3 MiB.
pub const TRACE_RING_ENTRIES: usize = 1 << 16;

/// One event, as a ring has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Entry {
    /// When.
    pub time_ns: u64,
    /// First sector on the drive; of an unplug, how many bios.
    pub sector: u64,
    /// Of a remap or split: the first sector on the volume.
    pub from: u64,
    /// How long.
    pub bytes: u32,
    /// Code and categories.
    pub action: u32,
    /// Whom it is accounted to.
    pub tenant: u32,
    /// The drive's device number.
    pub device: u32,
    /// Of a completion: 0, or a negative errno.
    pub error: i32,
    /// Nothing: makes it as long as a record.
    pub unused: u32,
}

/// The categories of an operation.
#[inline(always)]
pub(crate) fn categories(op: Op, flags: OpFlags) -> u16 {
    let of_op = match op {
        Op::Read => category::READ,
        Op::Write | Op::WriteZeroes => category::WRITE,
        Op::Discard => category::WRITE | category::DISCARD,
        Op::Flush => category::FLUSH,
    };
    if flags == OpFlags::NONE { of_op } else { with_flags(op, of_op, flags) }
}

#[cold]
fn with_flags(op: Op, of_op: u16, flags: OpFlags) -> u16 {
    let fua = if flags.has(OpFlags::FUA) { category::FUA } else { 0 };
    let preflush = if flags.has(OpFlags::PREFLUSH) { category::FLUSH } else { 0 };
    let sync = if op.is_write() && fua | preflush != 0 { category::SYNC } else { 0 };
    of_op | fua | preflush | sync
}

/// A ring of entries: one writer, one reader.
struct Ring<M: Machine> {
    entries: Box<[UnsafeCell<Entry>]>,
    /// Entries ever written; by the writer only.
    head: M::Word,
    /// Entries ever read; by the reader only.
    tail: M::Word,
    /// Events that found no room; by the writer only.
    dropped: M::Word,
    cpu: CpuId,
}

// SAFETY: the writer touches the entries from `tail` + length on, the reader those from `tail` to
// `head`; both words are handed over with Release and Acquire.
unsafe impl<M: Machine> Sync for Ring<M> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<M: Machine> Send for Ring<M> {}

/// Where a thread puts its events.
pub(crate) struct TraceWriter<M: Machine> {
    ring: Arc<Ring<M>>,
    mask: u64,
    head: u64,
    /// The reader's place when it was last looked at, and what there is room for until then.
    limit: u64,
}

impl<M: Machine> TraceWriter<M> {
    /// One event.
    #[inline]
    pub(crate) fn put(&mut self, entry: Entry) {
        if self.head == self.limit && !self.find_room() {
            return;
        }
        let place = (self.head & self.mask) as usize;
        // SAFETY: the place is in the ring by the mask, and the writer's alone: `limit` is never
        // past what the reader has left behind.
        unsafe { *self.ring.entries.get_unchecked(place).get() = entry };
        self.head += 1;
    }

    /// Lets the reader see what was put.
    #[inline]
    pub(crate) fn publish(&self) {
        // Release pairs with the Acquire of `Tracer::drain`.
        self.ring.head.store(self.head, Order::Release);
    }

    #[cold]
    fn find_room(&mut self) -> bool {
        // Acquire pairs with the Release of `Tracer::drain`: the reader has copied the entries.
        self.limit = self.ring.tail.load(Order::Acquire) + self.mask + 1;
        if self.head != self.limit {
            return true;
        }
        // Relaxed: a statistic with one writer.
        self.ring.dropped.store(self.ring.dropped.load(Order::Relaxed) + 1, Order::Relaxed);
        false
    }
}

/// What was lost, and what is still to come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceStatus {
    /// Events that found their ring full, since the recording began.
    pub dropped: u64,
    /// Threads that have a ring.
    pub writers: usize,
}

/// Rings of trace records, of all threads that use some drives.
pub struct Tracer<M: Machine> {
    /// Odd while somebody records.
    epoch: M::Word,
    rings: M::Lock<Vec<Arc<Ring<M>>>>,
    /// Dropped by those that are gone, and before the recording began.
    dropped: M::Word,
    entries: usize,
}

impl<M: Machine> Tracer<M> {
    /// No rings yet; each thread's will have room for so many entries (rounded up to a power of
    /// two).
    #[must_use]
    pub fn new(entries: usize) -> Arc<Tracer<M>> {
        Arc::new(Tracer {
            epoch: M::Word::new(0),
            rings: M::Lock::new("trace-rings", Vec::new()),
            dropped: M::Word::new(0),
            entries: entries.next_power_of_two().max(2),
        })
    }

    /// Whether somebody records.
    #[inline]
    pub fn is_on(&self) -> bool {
        // Relaxed: threads notice in time.
        self.epoch.load(Order::Relaxed) & 1 != 0
    }

    /// Starts to take events, and forgets those of an earlier recording; false if one is under
    /// way. Channels notice with their next batch once their volume is told
    /// ([`Volume::set_traced`](crate::Volume::set_traced)).
    pub fn start(&self) -> bool {
        let mut rings = self.rings.lock();
        // Relaxed: written under the lock.
        let epoch = self.epoch.load(Order::Relaxed);
        if epoch & 1 != 0 {
            return false;
        }
        rings.retain(|ring| Arc::strong_count(ring) > 1);
        for ring in rings.iter() {
            // Acquire pairs with the Release of `publish`, this Release with the Acquire of
            // `find_room`.
            ring.tail.store(ring.head.load(Order::Acquire), Order::Release);
        }
        // Relaxed: statistics.
        let before: u64 = rings.iter().map(|ring| ring.dropped.load(Order::Relaxed)).sum();
        self.dropped.store(before.wrapping_neg(), Order::Relaxed);
        self.epoch.store(epoch + 1, Order::Relaxed);
        true
    }

    /// Ends that. What is in the rings can still be drained.
    pub fn stop(&self) {
        let _rings = self.rings.lock();
        // Relaxed: written under the lock.
        let epoch = self.epoch.load(Order::Relaxed);
        self.epoch.store(epoch + (epoch & 1), Order::Relaxed);
    }

    /// A ring for the calling thread.
    pub(crate) fn writer(&self) -> TraceWriter<M> {
        let entries = (0..self.entries).map(|_| UnsafeCell::new(Entry::default())).collect();
        let word = || M::Word::new(0);
        let (head, tail, dropped) = (word(), word(), word());
        let ring = Arc::new(Ring { entries, head, tail, dropped, cpu: M::cpu() });
        self.rings.lock().push(Arc::clone(&ring));
        let mask = self.entries as u64 - 1;
        TraceWriter { ring, mask, head: 0, limit: mask + 1 }
    }

    /// Empties the rings: `take` sees each piece of a ring in the order in which it was written,
    /// with the CPU on which its thread was when it began. For one thread at a time.
    pub fn drain(&self, mut take: impl FnMut(CpuId, &[Entry])) -> TraceStatus {
        // Threads that join meanwhile do not wait for `take`.
        let rings: Vec<_> = self.rings.lock().iter().map(Arc::clone).collect();
        // Relaxed: a statistic.
        let mut dropped = self.dropped.load(Order::Relaxed);
        for ring in &rings {
            // Acquire pairs with the Release of `publish`. Relaxed: the reader's own.
            let (head, mut tail) = (ring.head.load(Order::Acquire), ring.tail.load(Order::Relaxed));
            while tail < head {
                let place = tail as usize & (ring.entries.len() - 1);
                let run = ((head - tail) as usize).min(ring.entries.len() - place);
                // SAFETY: the writer published these entries and does not touch them until `tail`
                // has passed them; `UnsafeCell<Entry>` is laid out as `Entry`.
                let entries = unsafe {
                    core::slice::from_raw_parts(ring.entries[place].get().cast_const(), run)
                };
                take(ring.cpu, entries);
                tail += run as u64;
                // Release pairs with the Acquire of `find_room`.
                ring.tail.store(tail, Order::Release);
            }
            // Relaxed: a statistic.
            dropped = dropped.wrapping_add(ring.dropped.load(Order::Relaxed));
        }
        let writers = rings.len();
        drop(rings);
        self.forget_the_gone();
        TraceStatus { dropped, writers }
    }

    /// Lets go of the empty rings of threads that are gone.
    fn forget_the_gone(&self) {
        self.rings.lock().retain(|ring| {
            let gone = Arc::strong_count(ring) == 1;
            // Acquire: the writer's last words. Relaxed: the reader's own, and a statistic.
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
    use crate::blktrace::Act;
    use millrace_machine::Native;

    fn entry(sector: u64) -> Entry {
        Entry { sector, action: Act::Queue.with(category::READ), ..Entry::default() }
    }

    #[test]
    fn an_entry_is_as_long_as_a_record() {
        assert_eq!(size_of::<Entry>(), crate::blktrace::RECORD_BYTES);
    }

    #[test]
    fn a_full_ring_drops_and_counts_and_goes_on() {
        let tracer = Tracer::<Native>::new(4);
        assert!(tracer.start() && !tracer.start());
        let mut writer = tracer.writer();
        (0..6).for_each(|n| writer.put(entry(n)));
        writer.publish();
        let mut seen = Vec::new();
        let status = tracer.drain(|_, entries| seen.extend(entries.iter().map(|e| e.sector)));
        assert_eq!((seen.as_slice(), status.dropped), ([0, 1, 2, 3].as_slice(), 2));
        (6..9).for_each(|n| writer.put(entry(n)));
        drop(writer);
        seen.clear();
        let status = tracer.drain(|_, entries| seen.extend(entries.iter().map(|e| e.sector)));
        assert_eq!(
            (seen.as_slice(), status),
            ([6, 7, 8].as_slice(), TraceStatus { dropped: 2, writers: 1 })
        );
        assert_eq!(tracer.drain(|_, _| ()).writers, 0);
        tracer.stop();
        assert!(tracer.start());
        assert_eq!(tracer.drain(|_, _| ()).dropped, 0);
    }

    #[test]
    fn reader_and_writer_share_a_ring_and_lose_nothing_but_what_is_counted() {
        const EVENTS: u64 = 200_000;
        let tracer = Tracer::<Native>::new(64);
        let theirs = Arc::clone(&tracer);
        tracer.start();
        let thread = std::thread::spawn(move || {
            let mut writer = theirs.writer();
            for n in 0..EVENTS {
                writer.put(entry(n));
                writer.publish();
            }
        });
        let (mut last, mut seen, mut dropped) = (None, 0, 0);
        while !thread.is_finished() || seen + dropped < EVENTS {
            dropped = tracer
                .drain(|_, entries| {
                    for entry in entries {
                        assert!(last < Some(entry.sector));
                        last = Some(entry.sector);
                        seen += 1;
                    }
                })
                .dropped;
        }
        thread.join().unwrap();
        assert_eq!(seen + dropped, EVENTS);
    }
}
