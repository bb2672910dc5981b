//! `Clocks`: finds the next event, the earliest of all CPU clocks and thread deadlines.
//!
//! The scheduler owns the clocks. `tree` has the clocks of CPUs whose thread can run, and `timers`
//! the deadlines of all threads. Invariant: position `TIMERS` of `tree` has the earliest deadline.
//! If a deadline is equal to a CPU's clock, the deadline comes first, because `TIMERS` is the
//! lowest position.

use std::vec;
use std::vec::Vec;

use crate::scheduler::tournament::Tournament;

/// Position in `Clocks::tree` that has the earliest thread deadline. All higher positions have the
/// clocks of CPUs.
const TIMERS: usize = 0;

pub(crate) enum ClockEvent {
    Deadline(u32),
    Cpu(usize),
}

#[derive(Debug)]
pub(crate) struct Clocks {
    /// Clocks of the CPUs whose thread can run, by position in the tree. The entry at position
    /// `TIMERS` is not a clock: it is the earliest deadline of all threads.
    tree: Tournament,
    by_position: Vec<usize>,
    timers: Tournament,
}

impl Clocks {
    /// Creates the clocks. `places` has a rank for each CPU. If CPUs have equal clocks, the CPU
    /// with the lowest rank runs first.
    pub(crate) fn new(places: &[usize]) -> Self {
        let mut by_position = vec![0; places.len() + 1];
        for (cpu, place) in places.iter().enumerate() {
            by_position[Self::position(*place)] = cpu;
        }
        let (tree, timers) = (Tournament::new(places.len() + 1), Tournament::new(16));
        Clocks { tree, by_position, timers }
    }

    pub(crate) fn position(place: usize) -> usize {
        TIMERS + 1 + place
    }

    #[inline]
    pub(crate) fn least(&self) -> u64 {
        self.tree.least()
    }

    pub(crate) fn first(&self) -> Option<(u64, ClockEvent)> {
        let (time_ps, position) = self.tree.first()?;
        if position != TIMERS {
            return Some((time_ps, ClockEvent::Cpu(self.by_position[position])));
        }
        let (_, thread) =
            self.timers.first().expect("a deadline in the tree of clocks must be that of a thread");
        Some((time_ps, ClockEvent::Deadline(thread as u32)))
    }

    #[inline]
    pub(crate) fn set_cpu(&mut self, position: usize, time_ps: u64) {
        self.tree.set(position, time_ps);
    }

    /// Sets a thread's deadline; `u64::MAX` for none.
    pub(crate) fn set_timer(&mut self, thread: u32, time_ps: u64) {
        self.timers.set(thread as usize, time_ps);
        let first_ps = self.timers.first().map_or(u64::MAX, |(time_ps, _)| time_ps);
        self.tree.set(TIMERS, first_ps);
    }

    pub(crate) fn grow(&mut self, threads: usize) {
        self.timers.grow(threads);
    }
}
