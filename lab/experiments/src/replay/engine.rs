//! The engine: sends each I/O of a trace at its time, or as soon as there is room, and counts the
//! results.
//!
//! The engine has one thread. Each iteration reaps the pieces that have ended, admits I/Os that are
//! due, sends pieces of ready I/Os, and sleeps until the next of these events. An admitted I/O
//! waits for earlier I/Os (order.rs), then for room, and is then in flight, in one piece or more.
//! The loop is open: the due time of an I/O does not depend on the end of other I/Os.
//!
//! Invariants: every I/O that is taken from the feed ends, is skipped, or is counted as unsent or
//! unanswered. Pieces in flight together never have more than `IN_FLIGHT_BYTES_MAX` bytes, except
//! that a single larger piece may be in flight alone.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_block::Op;

use super::feed::{Feed, FeedItem};
use super::lane::{Done, Piece, Target};
use super::order::{Access, Order, Waits};
use super::report::{Report, StopReason};
use super::route::{Item, Routed};
use super::tally::{IoResult, ReplayTally};
use super::{Progress, ReplayProgress, Settings};
use crate::load::bench::BenchError;

/// Limit on the bytes of reads and writes in flight, which bounds the memory of a replay.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;
/// Number of I/Os that the engine may hold in addition to the I/O depth: I/Os that it has read from
/// the trace and not yet issued. At the sum of both, the engine takes no more I/Os from the trace.
const WAITING_MAX: usize = 4_096;
/// Longest sleep of the engine's loop, in nanoseconds, so that the loop soon notices if the user
/// interrupts the replay (Ctrl-C).
const SLEEP_NS: u64 = 50_000_000;
/// Longest sleep, in nanoseconds, while the engine has room but waits for the reader of the trace.
const LOOK_NS: u64 = 200_000;
/// Longest wait for I/Os in flight after the user has interrupted the replay, in nanoseconds.
const DRAIN_NS: u64 = 2_000_000_000;
const PROGRESS_NS: u64 = 100_000_000;

#[derive(Debug, Clone, Copy)]
struct Slot {
    io: Routed,
    due_ns: Option<u64>,
    sent_ns: u64,
    sent_bytes: u64,
    pieces: u32,
    /// Number of the I/O's pieces in flight. `in_flight_bytes` is the size of the data of these
    /// pieces.
    in_flight: u32,
    in_flight_bytes: u64,
    /// Value of `Engine::held` when this I/O became ready to be sent. If `Engine::held` has changed
    /// by the time the I/O is sent, the I/O had to wait for room.
    held: u64,
    stage: Stage,
    failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The I/O waits for earlier I/Os or for room, or some of its pieces are not sent yet.
    Send,
    Sent,
    /// The I/O's data is written. The flush that makes it durable must still be sent.
    Flush,
    /// The replay was stopped before all pieces of the I/O were sent.
    Dropped,
}

pub(crate) struct Engine<'a, T, F> {
    target: &'a mut T,
    feed: &'a mut F,
    settings: &'a Settings,
    order: Order,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Indexes in `slots` of the I/Os that wait for no earlier I/O, in the order in which they
    /// became ready.
    ready: VecDeque<u32>,
    flight: Flight,
    next: Option<Routed>,
    /// Number of times that a ready I/O could not be sent, because a limit on I/Os in flight was
    /// reached or the target accepted no more.
    held: u64,
    full_ns: u64,
    begin_ns: u64,
    ending: EndOfReplay,
    tally: ReplayTally,
    done: Vec<Done>,
}

#[derive(Debug, Default)]
struct Flight {
    started: u32,
    bytes: u64,
}

#[derive(Debug, Default)]
struct EndOfReplay {
    /// True once the engine takes no more I/Os, at the end of the trace or after a stop.
    has_begun: bool,
    why: Option<StopReason>,
    /// Time at which the replay was stopped. After that no I/O is sent, except the flush that makes
    /// an already written I/O durable.
    stopped_ns: Option<u64>,
}

impl<'a, T: Target, F: Feed> Engine<'a, T, F> {
    pub(crate) fn new(target: &'a mut T, feed: &'a mut F, settings: &'a Settings) -> Self {
        let begin_ns = target.now_ns();
        let tally = ReplayTally::new(target.lanes(), begin_ns);
        Engine {
            order: Order::new(target.lanes().len()),
            target,
            feed,
            settings,
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            flight: Flight::default(),
            next: None,
            held: 0,
            full_ns: 0,
            begin_ns,
            ending: EndOfReplay::default(),
            tally,
            done: Vec::new(),
        }
    }

    pub(crate) fn run(mut self, progress: Progress<'_>) -> Report {
        let mut shown_ns = self.begin_ns;
        loop {
            let now_ns = self.target.now_ns();
            match self.turn(now_ns) {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => {
                    self.ending.why = Some(StopReason::Target(error.to_string()));
                    break;
                }
            }
            if now_ns.saturating_sub(shown_ns) >= PROGRESS_NS {
                shown_ns = now_ns;
                progress(&self.standing(now_ns));
            }
        }
        let Engine { settings, mut tally, ending, flight, slots, free, next, .. } = self;
        // I/Os still in flight count as unanswered: the replay did not wait longer, or the target
        // failed.
        tally.counts.unanswered += u64::from(flight.started);
        if ending.stopped_ns.is_none() {
            // If the target failed, count the I/Os that were taken from the trace but never sent.
            // If the replay was stopped, `stop` has counted them already.
            let admitted = (slots.len() - free.len()) as u64;
            tally.counts.unsent += admitted.saturating_sub(flight.started.into());
            tally.counts.unsent += u64::from(next.is_some());
        }
        tally.report((settings.speed, settings.iodepth), ending.why)
    }

    /// Runs one iteration of the loop. Returns true for the last iteration.
    fn turn(&mut self, now_ns: u64) -> Result<bool, BenchError> {
        self.look_for_stop(now_ns);
        let ended = self.reap()?;
        let admitted = self.admit(now_ns);
        let sent = self.send()?;
        let is_over = self.is_over(now_ns);
        if !(is_over || ended || admitted || sent) {
            self.sleep(now_ns)?;
        }
        Ok(is_over)
    }

    fn standing(&self, now_ns: u64) -> ReplayProgress {
        ReplayProgress {
            ios: self.tally.ended(),
            elapsed_ns: now_ns.saturating_sub(self.begin_ns),
            trace_ns: self.tally.at_ns,
        }
    }

    fn look_for_stop(&mut self, now_ns: u64) {
        if self.ending.stopped_ns.is_some() {
            return;
        }
        if self.settings.interrupt.is_set() {
            self.stop(StopReason::Interrupted, now_ns);
        } else if now_ns >= self.runtime_end_ns() {
            self.stop(StopReason::Runtime, now_ns);
        }
    }

    fn runtime_end_ns(&self) -> u64 {
        self.settings.runtime.map_or(u64::MAX, |runtime| {
            let runtime_ns = u64::try_from(runtime.as_nanos()).unwrap_or(u64::MAX);
            self.begin_ns.saturating_add(runtime_ns)
        })
    }

    /// Stops taking I/Os from the trace and sending them. A write that was sent and must be durable
    /// still gets its flush.
    fn stop(&mut self, why: StopReason, now_ns: u64) {
        (self.ending.why, self.ending.stopped_ns) = (Some(why), Some(now_ns));
        self.ending.has_begun = true;
        self.tally.counts.unsent += u64::from(self.next.take().is_some());
        for slot in self.slots.iter_mut().filter(|slot| slot.stage == Stage::Send) {
            slot.stage = Stage::Dropped;
            if slot.pieces == 0 || slot.in_flight == 0 {
                self.tally.counts.unsent += 1;
                self.flight.started -= u32::from(slot.pieces > 0);
            }
        }
        let slots = &self.slots;
        self.ready.retain(|slot| slots[*slot as usize].stage == Stage::Flush);
    }

    /// Returns true if every I/O that was sent has ended, and no more I/Os will be sent.
    fn is_over(&self, now_ns: u64) -> bool {
        let drained = self.flight.started == 0;
        match (self.ending.stopped_ns, &self.ending.why) {
            (Some(at_ns), Some(StopReason::Interrupted)) => drained || now_ns >= at_ns + DRAIN_NS,
            (Some(_), _) => drained,
            (None, _) => self.ending.has_begun && self.free.len() == self.slots.len(),
        }
    }

    fn reap(&mut self) -> Result<bool, BenchError> {
        let mut done = std::mem::take(&mut self.done);
        self.target.poll(&mut done)?;
        let any = !done.is_empty();
        if any {
            let now_ns = self.target.now_ns();
            done.drain(..).for_each(|done| self.piece_ended(done, now_ns));
        }
        self.done = done;
        Ok(any)
    }

    fn piece_ended(&mut self, done: Done, now_ns: u64) {
        let slot = &mut self.slots[done.slot as usize];
        slot.in_flight -= 1;
        if let Some(text) = done.error {
            slot.failed = true;
            let Routed { op, offset_bytes, len_bytes, .. } = slot.io;
            self.tally.counts.first_error.get_or_insert_with(|| {
                format!("{} of {len_bytes} bytes at {offset_bytes}: {text}", op.name())
            });
        }
        if slot.in_flight > 0 {
            return;
        }
        self.flight.bytes -= std::mem::take(&mut slot.in_flight_bytes);
        match slot.stage {
            Stage::Send => {}
            Stage::Sent if slot.io.flush_after && slot.io.op != Op::Flush && !slot.failed => {
                slot.stage = Stage::Flush;
                self.ready.push_front(done.slot);
            }
            Stage::Sent | Stage::Flush | Stage::Dropped => self.io_ended(done.slot, now_ns),
        }
    }

    fn io_ended(&mut self, at: u32, now_ns: u64) {
        let slot = &self.slots[at as usize];
        self.flight.started -= 1;
        if slot.stage == Stage::Dropped {
            self.tally.counts.unsent += 1;
            return;
        }
        self.tally.adapted.cut += u64::from(slot.pieces > 1);
        let Slot { due_ns, sent_ns, failed, .. } = *slot;
        self.tally.end(&slot.io, IoResult { due_ns, sent_ns, ended_ns: now_ns, failed });
        self.free.push(at);
        for freed in self.order.end(at) {
            let slot = &mut self.slots[freed as usize];
            if slot.stage == Stage::Send {
                slot.held = self.held;
                self.ready.push_back(freed);
            }
        }
    }

    /// Takes I/Os from the trace until the next one is not due yet. If the replay runs as fast as
    /// possible, takes I/Os until the I/O depth is reached. In both cases, stops earlier if no
    /// further I/O has been read, or at the limit on unfinished I/Os. Returns true if any I/O was
    /// taken.
    fn admit(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while !self.ending.has_begun {
            let admitted = self.slots.len() - self.free.len();
            let most = self.settings.iodepth as usize + WAITING_MAX;
            let busy = self.flight.started as usize + self.ready.len();
            let full = admitted >= most;
            if full {
                self.full_ns = now_ns;
            }
            if full || self.settings.speed.is_none() && busy >= self.settings.iodepth as usize {
                break;
            }
            let Some(io) = self.next.take().or_else(|| self.take()) else { break };
            let due_ns = self.due_ns(&io);
            if due_ns.is_some_and(|due_ns| due_ns > now_ns) {
                self.next = Some(io);
                break;
            }
            self.enter(io, due_ns);
            any = true;
        }
        any
    }

    /// Returns the next I/O of the trace; `None` if none has been read yet, or at the end of the
    /// trace. Damage, or the limit on the number of I/Os, also ends the trace.
    fn take(&mut self) -> Option<Routed> {
        loop {
            if self.settings.limit.is_some_and(|limit| self.tally.counts.traced_ios >= limit) {
                return self.end_of_trace(Some(StopReason::Limit));
            }
            match self.feed.next() {
                Ok(FeedItem::Item(Item::Io(io))) => {
                    if self.tally.ended() == 0 && self.slots.is_empty() {
                        // Start the clock at the first I/O, so that the time to open the trace does
                        // not make I/Os late.
                        self.begin_ns = self.target.now_ns();
                        self.tally.begin(self.begin_ns);
                    }
                    self.tally.counts.traced_ios += 1;
                    self.tally.at_ns = io.at_ns;
                    return Some(io);
                }
                Ok(FeedItem::Item(Item::Skipped(reason))) => self.tally.skip(reason),
                Ok(FeedItem::Later) => return None,
                Ok(FeedItem::End) => return self.end_of_trace(None),
                Err(error @ BenchError::Workload(_)) => {
                    return self.end_of_trace(Some(StopReason::Undecided(error.to_string())));
                }
                Err(error) => return self.end_of_trace(Some(StopReason::Trace(error.to_string()))),
            }
        }
    }

    fn end_of_trace(&mut self, why: Option<StopReason>) -> Option<Routed> {
        (self.ending.has_begun, self.ending.why) = (true, why);
        None
    }

    /// Returns the time at which an I/O is due; `None` for a replay as fast as possible.
    fn due_ns(&self, io: &Routed) -> Option<u64> {
        let after_ns = io.at_ns as f64 / self.settings.speed?;
        // A time beyond the clock's range saturates in the conversion.
        Some(self.begin_ns.saturating_add(after_ns as u64))
    }

    fn enter(&mut self, io: Routed, due_ns: Option<u64>) {
        let slot = Slot {
            io,
            due_ns,
            sent_ns: 0,
            sent_bytes: 0,
            pieces: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            // If the engine was full when the I/O became due, the I/O has already waited for room.
            // `begin` counts a wait if the I/O's `held` differs from `Engine::held`. So `held`
            // begins with a different value here.
            held: match due_ns.is_some_and(|due_ns| due_ns <= self.full_ns) {
                true => self.held.wrapping_sub(1),
                false => self.held,
            },
            stage: Stage::Send,
            failed: false,
        };
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(at as usize) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        let access = match io.op {
            Op::Flush => Access::Flush,
            op => Access::Range {
                start: io.offset_bytes,
                end: io.offset_bytes + io.len_bytes,
                changes: op.is_write(),
            },
        };
        match self.order.admit(at, io.lane, access) {
            Waits::No => self.ready.push_back(at),
            Waits::Overlap => self.tally.waited.for_overlap += 1,
            Waits::Writes => self.tally.waited.for_writes += 1,
        }
    }

    fn send(&mut self) -> Result<bool, BenchError> {
        let mut any = false;
        while let Some(at) = self.ready.front().copied() {
            let slot = &self.slots[at as usize];
            let begins = slot.pieces == 0;
            let piece = self.piece(at, slot);
            let bytes = if piece.op.has_data() { piece.len_bytes } else { 0 };
            let fits = self.flight.bytes == 0
                || bytes == 0
                || self.flight.bytes + bytes <= IN_FLIGHT_BYTES_MAX;
            let may = fits && !(begins && self.flight.started >= self.settings.iodepth);
            let now_ns = if begins { self.target.now_ns() } else { 0 };
            if !may || !self.target.submit(&piece)? {
                self.held += 1;
                break;
            }
            any = true;
            if begins {
                self.begin(at, now_ns);
            }
            self.flight.bytes += bytes;
            let slot = &mut self.slots[at as usize];
            slot.in_flight_bytes += bytes;
            slot.pieces += u32::from(slot.stage == Stage::Send);
            slot.in_flight += 1;
            if slot.stage == Stage::Flush {
                // The flush that makes a write durable is the last request of the I/O.
                self.ready.pop_front();
                continue;
            }
            slot.sent_bytes += piece.len_bytes;
            if slot.sent_bytes >= slot.io.len_bytes {
                slot.stage = Stage::Sent;
                self.ready.pop_front();
            }
        }
        if any {
            self.target.start()?;
        }
        Ok(any)
    }

    fn piece(&self, at: u32, slot: &Slot) -> Piece {
        let Routed { lane, op, fua, offset_bytes, len_bytes, .. } = slot.io;
        if slot.stage == Stage::Flush || op == Op::Flush {
            let (offset_bytes, len_bytes) = (0, 0);
            return Piece { lane, slot: at, op: Op::Flush, fua: false, offset_bytes, len_bytes };
        }
        let most = self.target.lanes()[lane as usize].takes.bytes_max(op);
        let (offset_bytes, left) = (offset_bytes + slot.sent_bytes, len_bytes - slot.sent_bytes);
        Piece { lane, slot: at, op, fua, offset_bytes, len_bytes: left.min(most) }
    }

    fn begin(&mut self, at: u32, now_ns: u64) {
        self.flight.started += 1;
        let slot = &mut self.slots[at as usize];
        slot.sent_ns = now_ns;
        if let Some(due_ns) = slot.due_ns {
            self.tally.late(now_ns.saturating_sub(due_ns));
            self.tally.waited.for_room += u64::from(slot.held != self.held);
        }
    }

    fn sleep(&mut self, now_ns: u64) -> Result<(), BenchError> {
        let waits_for_trace = !self.ending.has_begun && self.next.is_none();
        if waits_for_trace && self.flight.started == 0 {
            self.feed.wait(Duration::from_nanos(SLEEP_NS));
            return Ok(());
        }
        let room = self.settings.speed.is_some() || self.flight.started < self.settings.iodepth;
        let most_ns = if waits_for_trace && room { LOOK_NS } else { SLEEP_NS };
        let mut until_ns = now_ns.saturating_add(most_ns);
        if self.ending.stopped_ns.is_none() {
            until_ns = until_ns.min(self.runtime_end_ns());
        }
        // Wakes up when the trace's next I/O becomes due. If the next I/O is already due, the
        // engine was full and could not take the I/O. No timer is needed then: a completion makes
        // room, and also ends the sleep.
        let due_ns = self.next.as_ref().and_then(|io| self.due_ns(io));
        if let Some(due_ns) = due_ns.filter(|due_ns| *due_ns > now_ns) {
            until_ns = until_ns.min(due_ns);
        }
        self.target.wait(until_ns)
    }
}
