//! `Clocks`: the times that decide which CPU, or which deadline of a thread, comes next.
//!
//! Owned by the scheduler. The CPUs whose thread can run stand in one tournament, together with
//! the earliest deadline, which goes before a CPU of equal time; the deadlines have one of their
//! own. Invariant: `tree` holds the first time of `timers` at the position `TIMERS`.

use std::vec;
use std::vec::Vec;

use crate::scheduler::tournament::Tournament;

/// Position of the threads' deadlines among the CPUs; the CPUs come behind it.
const TIMERS: usize = 0;

/// What comes next.
pub(crate) enum Due {
    /// A thread goes on although nobody woke it.
    Deadline(u32),
    /// A CPU's thread runs.
    Cpu(usize),
}

/// The clocks of CPUs and the deadlines of threads.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// The clocks of CPUs whose thread can run, by position, and the first of `timers`.
    tree: Tournament,
    /// CPUs by their position in it.
    by_position: Vec<usize>,
    /// When threads want to go on although nobody wakes them, by their number.
    timers: Tournament,
}

impl Clocks {
    /// For CPUs of which each has its place among those with equal times.
    pub(crate) fn new(places: &[usize]) -> Self {
        let mut by_position = vec![0; places.len() + 1];
        for (cpu, place) in places.iter().enumerate() {
            by_position[Self::position(*place)] = cpu;
        }
        let (tree, timers) = (Tournament::new(places.len() + 1), Tournament::new(16));
        Clocks { tree, by_position, timers }
    }

    /// The position in the tree of the CPU that has this place.
    pub(crate) fn position(place: usize) -> usize {
        TIMERS + 1 + place
    }

    /// Key of the earliest time, as [`Tournament::least`].
    #[inline]
    pub(crate) fn least(&self) -> u64 {
        self.tree.least()
    }

    /// The earliest time, and what it is of.
    pub(crate) fn first(&self) -> Option<(u64, Due)> {
        let (time_ps, position) = self.tree.first()?;
        if position != TIMERS {
            return Some((time_ps, Due::Cpu(self.by_position[position])));
        }
        let (_, thread) = self.timers.first().expect("its time is among the clocks");
        Some((time_ps, Due::Deadline(thread as u32)))
    }

    /// Sets the time of the CPU at a position of the tree.
    #[inline]
    pub(crate) fn set_cpu(&mut self, position: usize, time_ps: u64) {
        self.tree.set(position, time_ps);
    }

    /// Sets the time at which a thread is to go on without being woken.
    pub(crate) fn set_timer(&mut self, thread: u32, time_ps: u64) {
        self.timers.set(thread as usize, time_ps);
        let first_ps = self.timers.first().map_or(u64::MAX, |(time_ps, _)| time_ps);
        self.tree.set(TIMERS, first_ps);
    }

    /// Makes room for the deadlines of so many threads.
    pub(crate) fn grow(&mut self, threads: usize) {
        self.timers.grow(threads);
    }
}
