//! `LockTable`: the locks in use by a simulation: holder, waiters and statistics of each.
//!
//! Owned by the world; lock.rs and meter.rs update the table.

use std::collections::{HashMap, VecDeque};
use std::vec::Vec;

use crate::memory::line::CpuSet;
use crate::model::SOCKETS_MAX;
use crate::model::time::PS_PER_NS;
use crate::scheduler::pool::NO_THREAD;
use millrace_machine::{CallSite, LockCounts, LockRow, Site, lock_table};

pub(crate) type SpinnersBySocket = [u16; SOCKETS_MAX as usize];

#[derive(Debug)]
struct LockState {
    name: &'static str,
    holder: u32,
    since_ps: u64,
    /// Index in `LockTable::rows` for the call site that took the lock.
    row: u32,
    waiters: VecDeque<LockRequest>,
    waiting: CpuSet,
    waiting_by_socket: SpinnersBySocket,
    /// Call sites that have taken the lock. An entry has the address of the call site, and the call
    /// site's index in `LockTable::rows`.
    rows: Vec<(usize, u32)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    pub(crate) thread: u32,
    pub(crate) cpu: usize,
    pub(crate) socket: usize,
    pub(crate) since_ps: u64,
    pub(crate) row: u32,
}

#[derive(Debug, Default)]
pub(crate) struct LockTable {
    locks: Vec<LockState>,
    free: Vec<u32>,
    rows: Vec<(&'static str, CallSite, LockPicoseconds)>,
    /// Index in `rows` for each lock name and call site. The key has the address of the name and
    /// that of the call site. Code never iterates over the map, because its order is random.
    index: HashMap<(usize, usize), u32>,
    pub(crate) word_locks: WordLockRows,
}

#[derive(Debug, Default)]
struct LockPicoseconds {
    acquisitions: u64,
    contended: u64,
    rejected: u64,
    wait_ps: u64,
    wait_ps_max: u64,
    hold_ps: u64,
    hold_ps_max: u64,
}

impl LockState {
    fn hold(&mut self, claim: &LockRequest, since_ps: u64) {
        (self.holder, self.row, self.since_ps) = (claim.thread, claim.row, since_ps);
    }
}

impl LockTable {
    pub(crate) fn name_and_holder(&self, lock: u32) -> (&'static str, u32) {
        let lock = &self.locks[lock as usize];
        (lock.name, lock.holder)
    }

    pub(crate) fn add(&mut self, name: &'static str) -> u32 {
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

    pub(crate) fn row(&mut self, lock: u32, site: Site) -> u32 {
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

    pub(crate) fn remove(&mut self, lock: u32) {
        self.free.push(lock);
    }

    pub(crate) fn is_held(&self, lock: u32) -> bool {
        self.locks[lock as usize].holder != NO_THREAD
    }

    pub(crate) fn take(&mut self, lock: u32, claim: &LockRequest, now_ps: u64) {
        self.locks[lock as usize].hold(claim, now_ps);
        self.rows[claim.row as usize].2.acquisitions += 1;
    }

    pub(crate) fn reject(&mut self, row: u32) {
        let sum = &mut self.rows[row as usize].2;
        (sum.contended, sum.rejected) = (sum.contended + 1, sum.rejected + 1);
    }

    /// Adds a thread to a lock's queue. Returns the set of all waiting CPUs, including that of the
    /// added thread. Also returns the number of waiting CPUs per socket before the thread was
    /// added.
    pub(crate) fn wait(&mut self, lock: u32, claim: LockRequest) -> (CpuSet, SpinnersBySocket) {
        let state = &mut self.locks[lock as usize];
        let before = state.waiting_by_socket;
        state.waiters.push_back(claim);
        state.waiting.add(claim.cpu);
        state.waiting_by_socket[claim.socket] += 1;
        (state.waiting, before)
    }

    /// Releases a lock at `end_ps`. Returns true if others wait for it.
    pub(crate) fn release(&mut self, lock: u32, end_ps: u64) -> bool {
        let state = &mut self.locks[lock as usize];
        state.holder = NO_THREAD;
        let held_ps = end_ps - state.since_ps;
        let sum = &mut self.rows[state.row as usize].2;
        sum.hold_ps += held_ps;
        sum.hold_ps_max = sum.hold_ps_max.max(held_ps);
        !state.waiters.is_empty()
    }

    /// Removes and returns the thread that has waited longest for a lock. Also returns the set of
    /// the CPUs that remain in the queue, and their number per socket.
    pub(crate) fn next(&mut self, lock: u32) -> (LockRequest, CpuSet, &SpinnersBySocket) {
        let state = &mut self.locks[lock as usize];
        let next = state.waiters.pop_front().expect("the caller has checked that a thread waits");
        state.waiting.remove(next.cpu);
        state.waiting_by_socket[next.socket] -= 1;
        (next, state.waiting, &state.waiting_by_socket)
    }

    pub(crate) fn hand_over(&mut self, lock: u32, next: &LockRequest, granted_ps: u64) {
        self.locks[lock as usize].hold(next, granted_ps);
        let waited_ps = granted_ps - next.since_ps;
        let sum = &mut self.rows[next.row as usize].2;
        sum.acquisitions += 1;
        sum.contended += 1;
        sum.wait_ps += waited_ps;
        sum.wait_ps_max = sum.wait_ps_max.max(waited_ps);
    }

    pub(crate) fn table(&self) -> Vec<LockRow> {
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
        lock_table(own.chain(self.word_locks.rows()))
    }
}

/// Statistics of locks that the program builds from atomic words (`SimWord`), one entry per name
/// and call site. Entries are few, so a linear search is enough.
#[derive(Debug, Default)]
pub(crate) struct WordLockRows(Vec<(&'static str, CallSite, LockCounts)>);

impl WordLockRows {
    pub(crate) fn add(&mut self, name: &'static str, site: Site, counts: &LockCounts) {
        let site = CallSite::from(site);
        match self.0.iter_mut().find(|row| (row.0, row.1) == (name, site)) {
            Some((_, _, sum)) => sum.add(counts),
            None => self.0.push((name, site, *counts)),
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'static str, CallSite, LockCounts)> {
        self.0.iter().copied()
    }
}
