//! `Pending`: I/Os that are held back until their answers are read, in the order of their arrival.
//!
//! A trace whose answers are records of their own tells an I/O's latency only later. I/Os are told
//! in their order, so that one without an answer holds back all behind it: at most `PENDING_MAX`
//! of them, then it is told without a latency. Called by `event_ios.rs` and `formats/nbdkit.rs`.

use std::collections::VecDeque;

use super::TraceIo;

/// I/Os that are held back at most; some 6 MB.
const PENDING_MAX: usize = 65_536;

/// Whether more of a trace is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    /// Answers may come.
    ToCome,
    /// There is nothing more.
    Ended,
}

/// Whether an I/O may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its answer is to come.
    Open,
    /// It is answered.
    Answered,
    /// It was none.
    Dropped,
}

/// An I/O that is held back.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingIo {
    pub(super) io: TraceIo,
    state: State,
}

/// I/Os that are held back.
#[derive(Debug, Default)]
pub(super) struct Pending {
    held: VecDeque<PendingIo>,
    /// Number of the first.
    first: u64,
}

impl Pending {
    /// Holds an I/O back; its number.
    pub(super) fn push(&mut self, io: TraceIo) -> u64 {
        self.held.push_back(PendingIo { io, state: State::Open });
        self.first + self.held.len() as u64 - 1
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut PendingIo> {
        self.held.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// An I/O was answered at this time.
    pub(super) fn answer(&mut self, number: u64, at_ns: u64) {
        if let Some(held) = self.get_mut(number).filter(|held| held.state == State::Open) {
            held.state = State::Answered;
            held.io.latency_ns = Some(at_ns.saturating_sub(held.io.at_ns));
        }
    }

    /// An I/O has no answer of its own.
    pub(super) fn release(&mut self, number: u64) {
        if let Some(held) = self.get_mut(number).filter(|held| held.state == State::Open) {
            held.state = State::Answered;
        }
    }

    /// Those that `is_none` finds were no I/Os.
    pub(super) fn drop_where(&mut self, is_none: impl Fn(&TraceIo) -> bool) {
        let none = self.held.iter_mut().filter(|held| is_none(&held.io));
        none.for_each(|held| held.state = State::Dropped);
    }

    /// The first I/O, for a look.
    pub(super) fn front(&self) -> Option<&TraceIo> {
        self.held.front().map(|held| &held.io)
    }

    /// Whether more are held back than should be.
    pub(super) fn is_full(&self) -> bool {
        self.held.len() > PENDING_MAX
    }

    /// Takes the first I/O with its number if it may be told: it is answered, or nothing more is
    /// to come, or too many wait.
    pub(super) fn pop(&mut self, more: StreamState) -> Option<(u64, TraceIo)> {
        loop {
            let state = self.held.front()?.state;
            if state == State::Open && more == StreamState::ToCome && !self.is_full() {
                return None;
            }
            let held = self.held.pop_front()?;
            self.first += 1;
            if state != State::Dropped {
                return Some((self.first - 1, held.io));
            }
        }
    }
}
