//! `SimMeter`: statistics of locks that are made of words.
//!
//! Such locks tell of each time that they are held, always and at no cost in virtual time, as the
//! table of lock.rs knows it of the others. Owned by that table; called by the block layer through
//! `Machine::Meter`. Outside a simulation nothing is counted.

use std::vec::Vec;

use super::world::{PS_PER_NS, private};
use crate::Meter;
use crate::lock_row::{CallSite, Hold, LockCounts, Site};

/// Statistics of locks that are made of words, by name and place; few rows, so they are searched.
#[derive(Debug, Default)]
pub(super) struct WordLockRows(Vec<(&'static str, CallSite, LockCounts)>);

impl WordLockRows {
    fn add(&mut self, name: &'static str, site: Site, counts: &LockCounts) {
        let site = CallSite::from(site);
        match self.0.iter_mut().find(|row| (row.0, row.1) == (name, site)) {
            Some((_, _, sum)) => sum.add(counts),
            None => self.0.push((name, site, *counts)),
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, CallSite, LockCounts)> {
        self.0.iter().copied()
    }
}

/// Statistics of locks that are made of words.
#[derive(Debug, Clone, Copy)]
pub struct SimMeter;

impl Meter for SimMeter {
    const ALWAYS: bool = true;

    #[inline]
    fn is_on() -> bool {
        false
    }

    #[inline]
    fn now() -> u64 {
        private(|world| world.now_ps / PS_PER_NS).unwrap_or(0)
    }

    fn count_hold(name: &'static str, hold: &Hold, counts: &LockCounts) {
        private(|world| world.locks.word_locks.add(name, hold.site, counts));
    }

    fn count_rejection(name: &'static str, site: Site, wait_ns: u64) {
        private(|world| world.locks.word_locks.add(name, site, &LockCounts::rejection(wait_ns)));
    }
}
