//! `LockTable`: the locks in use by a simulation: who holds each, who waits, and their statistics.
//!
//! Owned by the world; lock.rs and meter.rs enter what happens to locks.

use std::collections::{HashMap, VecDeque};
use std::vec::Vec;

use super::line::CpuSet;
use super::model::SOCKETS_MAX;
use super::pool::NO_THREAD;
use super::time::PS_PER_NS;
use crate::lock_row::{CallSite, LockCounts, LockRow, Site, table};

/// A lock in use by a simulation.
#[derive(Debug)]
pub(super) struct LockState {
    pub(super) name: &'static str,
    pub(super) holder: u32,
    pub(super) since_ps: u64,
    /// Row of the place that took it.
    pub(super) row: u32,
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) waiting: CpuSet,
    pub(super) waiting_by_socket: [u16; SOCKETS_MAX as usize],
    /// Rows of the places that have taken it.
    pub(super) rows: Vec<(usize, u32)>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) thread: u32,
    pub(super) cpu: usize,
    pub(super) since_ps: u64,
    pub(super) row: u32,
}

/// All locks in use by a simulation, and their statistics.
#[derive(Debug, Default)]
pub(super) struct LockTable {
    pub(super) locks: Vec<LockState>,
    pub(super) free: Vec<u32>,
    pub(super) rows: Vec<(&'static str, CallSite, LockPicoseconds)>,
    /// Rows by the addresses of name and place: only looked up, never walked.
    pub(super) index: HashMap<(usize, usize), u32>,
    /// Of locks that are made of words.
    pub(super) word_locks: WordLockRows,
}

#[derive(Debug, Default)]
pub(super) struct LockPicoseconds {
    pub(super) acquisitions: u64,
    pub(super) contended: u64,
    pub(super) rejected: u64,
    pub(super) wait_ps: u64,
    pub(super) wait_ps_max: u64,
    pub(super) hold_ps: u64,
    pub(super) hold_ps_max: u64,
}

impl LockTable {
    pub(super) fn name_and_holder(&self, lock: u32) -> (&'static str, u32) {
        let lock = &self.locks[lock as usize];
        (lock.name, lock.holder)
    }

    pub(super) fn add(&mut self, name: &'static str) -> u32 {
        let state = LockState {
            name,
            holder: NO_THREAD,
            since_ps: 0,
            row: 0,
            waiters: VecDeque::new(),
            waiting: CpuSet::default(),
            waiting_by_socket: [0; SOCKETS_MAX as usize],
            rows: Vec::new(),
        };
        if let Some(free) = self.free.pop() {
            self.locks[free as usize] = state;
            return free;
        }
        self.locks.push(state);
        self.locks.len() as u32 - 1
    }

    pub(super) fn row(&mut self, lock: u32, site: Site) -> u32 {
        let address = core::ptr::from_ref(site).addr();
        let lock = &mut self.locks[lock as usize];
        if let Some((_, row)) = lock.rows.iter().find(|(known, _)| *known == address) {
            return *row;
        }
        let rows = &mut self.rows;
        let row = self.index.entry((lock.name.as_ptr().addr(), address)).or_insert_with(|| {
            rows.push((lock.name, site.into(), LockPicoseconds::default()));
            rows.len() as u32 - 1
        });
        lock.rows.push((address, *row));
        *row
    }

    pub(super) fn table(&self) -> Vec<LockRow> {
        let counts = |sum: &LockPicoseconds| LockCounts {
            acquisitions: sum.acquisitions,
            contended: sum.contended,
            rejected: sum.rejected,
            wait_ns: sum.wait_ps / PS_PER_NS,
            wait_ns_max: sum.wait_ps_max / PS_PER_NS,
            hold_ns: sum.hold_ps / PS_PER_NS,
            hold_ns_max: sum.hold_ps_max / PS_PER_NS,
        };
        let own = self.rows.iter().map(|(name, site, sum)| (*name, *site, counts(sum)));
        table(own.chain(self.word_locks.rows()))
    }
}

/// Statistics of locks that are made of words, by name and place; few rows, so they are searched.
#[derive(Debug, Default)]
pub(super) struct WordLockRows(Vec<(&'static str, CallSite, LockCounts)>);

impl WordLockRows {
    pub(super) fn add(&mut self, name: &'static str, site: Site, counts: &LockCounts) {
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
