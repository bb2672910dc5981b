//! `Pairing`: blktrace's events as I/Os with their latencies, in bounded memory.
//!
//! An I/O arrives with its Q. A device whose trace has D without any Q, as `blktrace -a issue`
//! records, has its I/Os arrive with D; that is known after `ISSUES_TRIED` of these, and a Q before
//! that takes back the I/Os that came with D, which began before the recording. A completion
//! answers the I/Os that its range covers, of the same operation, however they were merged or
//! split: an I/O's latency is from Q (or D) to the C that covers the last of it.
//! Flushes have no range: a completion of one answers the oldest. A write with a flush before it is
//! told as a flush and a write. Called by readers of binary traces and of blkparse's lines.

use std::collections::{BTreeSet, HashMap, VecDeque};

use millrace_block::Op;

use super::TraceIo;
use super::pending::{Pending, StreamState};

/// Issues without a Q from which on a device's I/Os arrive with D.
const ISSUES_TRIED: u32 = 256;
/// I/Os before a completion's range that are looked at for an end inside of it.
const LOOK_BACK_MAX: usize = 64;
/// I/Os that one completion may answer; a request of 32 MiB has 8,192 of 4 KiB.
const ANSWERED_MAX: usize = 16_384;

/// A step of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Q.
    Queue,
    /// D.
    Issue,
    /// C.
    Complete,
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) step: Step,
    /// Its time and range; a flush has no length.
    pub(super) io: TraceIo,
    /// A flush goes before it.
    pub(super) preflush: bool,
}

/// With what a device's I/Os arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// Not known; so many issues were seen.
    Unknown(u32),
    Queue,
    Issue,
}

/// Where an I/O is looked for: device, operation, offset, number.
type Key = (u32, Op, u64, u64);

/// Events that become I/Os.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    pending: Pending,
    open: BTreeSet<(u32, u8, u64, u64)>,
    flushes: HashMap<u32, VecDeque<u64>>,
    arrivals: HashMap<u32, Arrival>,
    /// The longest I/O.
    len_bytes_max: u64,
}

fn key((device, op, offset, number): Key) -> (u32, u8, u64, u64) {
    (device, op as u8, offset, number)
}

impl Pairing {
    /// One more event.
    pub(super) fn event(&mut self, event: &Event) {
        match event.step {
            Step::Queue => self.queue(event),
            Step::Issue => self.issue(event),
            Step::Complete => self.complete(&event.io),
        }
    }

    /// The next I/O that may be told.
    pub(super) fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        let (_, front) = self.pending.front()?;
        let (device, full) = (front.device, self.pending.is_full());
        if matches!(self.arrivals.get(&device), Some(Arrival::Unknown(_))) {
            if more == StreamState::ToCome && !full {
                return None;
            }
            self.arrivals.insert(device, Arrival::Issue);
        }
        let (number, io) = self.pending.pop(more)?;
        self.open.remove(&key((io.device, io.op, io.offset_bytes, number)));
        if let (Op::Flush, Some(flushes)) = (io.op, self.flushes.get_mut(&io.device)) {
            flushes.retain(|flush| *flush > number);
        }
        Some(io)
    }

    fn queue(&mut self, event: &Event) {
        let device = event.io.device;
        let arrival = self.arrivals.insert(device, Arrival::Queue);
        if matches!(arrival, Some(Arrival::Unknown(_))) {
            self.pending.drop_where(|_, io| io.device == device);
            self.open.retain(|key| key.0 != device);
            self.flushes.remove(&device);
        }
        self.arrive(event);
    }

    fn issue(&mut self, event: &Event) {
        let io = &event.io;
        let arrival = self.arrivals.entry(io.device).or_insert(Arrival::Unknown(0));
        match arrival {
            Arrival::Queue => return,
            Arrival::Issue => {}
            Arrival::Unknown(ISSUES_TRIED..) => *arrival = Arrival::Issue,
            Arrival::Unknown(seen) => *seen += 1,
        }
        // What a driver gave back is issued again.
        let from = key((io.device, io.op, io.offset_bytes, 0));
        let to = key((io.device, io.op, io.offset_bytes, u64::MAX));
        if io.op == Op::Flush || self.open.range(from..to).next().is_none() {
            self.arrive(event);
        }
    }

    fn arrive(&mut self, event: &Event) {
        let io = event.io;
        if event.preflush && io.op != Op::Flush {
            let flush = TraceIo { op: Op::Flush, fua: false, offset_bytes: 0, len_bytes: 0, ..io };
            self.hold(flush);
        }
        if io.op == Op::Flush || io.len_bytes > 0 {
            self.hold(io);
        }
    }

    fn hold(&mut self, io: TraceIo) {
        let number = self.pending.push(io);
        self.len_bytes_max = self.len_bytes_max.max(io.len_bytes);
        match io.op {
            Op::Flush => self.flushes.entry(io.device).or_default().push_back(number),
            _ => {
                self.open.insert(key((io.device, io.op, io.offset_bytes, number)));
            }
        }
    }

    fn complete(&mut self, done: &TraceIo) {
        if done.op == Op::Flush {
            let flushes = self.flushes.get_mut(&done.device);
            if let Some(number) = flushes.and_then(VecDeque::pop_front) {
                self.pending.answer(number, done.at_ns);
            }
            return;
        }
        let (start, end) = (done.offset_bytes, done.offset_bytes.saturating_add(done.len_bytes));
        let at = |offset| key((done.device, done.op, offset, 0));
        let reach = start.saturating_sub(self.len_bytes_max);
        let before = self.open.range(at(reach)..at(start)).rev().take(LOOK_BACK_MAX);
        let within = self.open.range(at(start)..at(end)).take(ANSWERED_MAX);
        let found: Vec<_> = before.chain(within).copied().collect();
        for key @ (device, _, offset, number) in found {
            let Some(held) = self.pending.get_mut(number) else { continue };
            let held_end = offset.saturating_add(held.io.len_bytes);
            let covered = held_end.min(end).saturating_sub(offset.max(start));
            held.remaining = held.remaining.saturating_sub(covered);
            if held.remaining == 0 {
                self.pending.answer(number, done.at_ns);
                self.open.remove(&key);
                self.release_flush_before(device, number);
            }
        }
    }

    /// The flush that was told before a write is done when that is, unless it was answered itself.
    fn release_flush_before(&mut self, device: u32, number: u64) {
        let Some(before) = number.checked_sub(1) else { return };
        let flushes = self.flushes.get_mut(&device);
        let Some(flushes) = flushes.filter(|flushes| flushes.contains(&before)) else { return };
        let of_write = self.pending.get_mut(before).map(|held| held.io.at_ns);
        if of_write == self.pending.get_mut(number).map(|held| held.io.at_ns) {
            flushes.retain(|flush| *flush != before);
            self.pending.release(before);
        }
    }
}

#[cfg(test)]
mod tests;
