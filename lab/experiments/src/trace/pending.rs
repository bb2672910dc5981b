//! `Pending`: I/Os that are held back until their completions are read, in order of arrival.
//!
//! In a trace with separate completion records an I/O's latency becomes known only later. I/Os are
//! output in order of arrival, so an I/O without a completion holds back all later I/Os. When more
//! than `PENDING_MAX` I/Os are held back, the first one is output without a latency.

use std::collections::VecDeque;

use super::TraceIo;

/// Largest number of I/Os that wait for their completion records; about 7 MB of memory, with the
/// spare capacity of the `VecDeque`.
pub(super) const PENDING_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    ToCome,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompletionState {
    Open,
    /// The I/O has completed, or its completion will not be read.
    Answered,
    Dropped,
}

#[derive(Debug, Clone, Copy)]
struct PendingIo {
    io: TraceIo,
    state: CompletionState,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    held: VecDeque<PendingIo>,
    first: u64,
}

impl Pending {
    pub(super) fn push(&mut self, io: TraceIo) -> u64 {
        self.held.push_back(PendingIo { io, state: CompletionState::Open });
        self.first + self.held.len() as u64 - 1
    }

    /// Marks an I/O as complete and returns it, so that the caller can set its latency. `None` if
    /// the I/O was already complete or has been output.
    fn end(&mut self, number: u64) -> Option<&mut TraceIo> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let held = self.held.get_mut(place).filter(|held| held.state == CompletionState::Open)?;
        held.state = CompletionState::Answered;
        Some(&mut held.io)
    }

    pub(super) fn answer(&mut self, number: u64, at_ns: u64) {
        if let Some(io) = self.end(number) {
            io.latency_ns = Some(at_ns.saturating_sub(io.at_ns));
        }
    }

    /// Marks an I/O as complete without a latency, because its completion will not be read.
    pub(super) fn release(&mut self, number: u64) {
        let _ = self.end(number);
    }

    pub(super) fn drop_where(&mut self, is_none: impl Fn(&TraceIo) -> bool) {
        let none = self.held.iter_mut().filter(|held| is_none(&held.io));
        none.for_each(|held| held.state = CompletionState::Dropped);
    }

    pub(super) fn holds(&self, number: u64) -> bool {
        number >= self.first
    }

    pub(super) fn front(&self) -> Option<&TraceIo> {
        self.held.front().map(|held| &held.io)
    }

    pub(super) fn is_full(&self) -> bool {
        self.held.len() > PENDING_MAX
    }

    /// Removes and returns the first I/O if it is complete, the trace has ended, or too many are
    /// held back.
    pub(super) fn pop(&mut self, more: StreamState) -> Option<TraceIo> {
        loop {
            let state = self.held.front()?.state;
            if state == CompletionState::Open && more == StreamState::ToCome && !self.is_full() {
                return None;
            }
            let held = self.held.pop_front()?;
            self.first += 1;
            if state != CompletionState::Dropped {
                return Some(held.io);
            }
        }
    }
}
