//! Ticket locks: waiting CPUs spin and get the lock in order of arrival.
//!
//! `SimLock` keeps its value in a system mutex, which is never contended, because the table
//! (lock_table.rs) decides which thread gets the lock.
//!
//! Costs: the lock's cache line holds both tickets, the next to give out and the one being served.
//! Taking a lock costs an atomic instruction on this line. All spinning CPUs read the line again
//! when a CPU joins the queue, and when the holder releases the lock. In each socket, one CPU
//! fetches the line over a link, and the other CPUs then read the socket's shared cache. After a
//! CPU joins, the line is busy until all have read it, and a release must wait. A hand-over costs
//! the transfer of the line to the next holder's socket, and before it a share of the other reads
//! (`CacheCosts::spinner`).
//!
//! A wait begins when a thread requests the line. If another CPU held the lock last, the cache
//! lines of the protected value move to the new holder after the lock's own line. For the
//! single-queue design's lock, the model sets a minimum number of lines. A CPU that holds or waits
//! for a lock is not preempted.
//!
//! Source: \[MQ\]'s kernels (`__ticket_spin_lock`, arch/x86/include/asm/spinlock.h: `xadd` on
//! `head_tail`); Boyd-Wickizer et al., Non-scalable locks are dangerous, OLS 2012.

use core::ops::{Deref, DerefMut};
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::memory::fabric::Fabric;
use crate::memory::line::{LineState, WriteKind};
use crate::model::prices::TransferKind;
use crate::scheduler::Scheduler;
use crate::scheduler::pool::ThreadPhase;
use crate::world::line_queue::{AccessKind, access, access_since};
use crate::world::lock_table::LockRequest;
use crate::world::{World, private, suspend};
use millrace_machine::{Lock, Site};

/// Name of the lock of the single-queue design (`sq` in the block layer). For this lock, the model
/// sets a minimum number of data cache lines that move to each new holder
/// (`WorkCosts::request_queue`).
const REQUEST_QUEUE: &str = "request-queue";

/// A ticket lock of the simulated machine.
#[derive(Debug)]
pub struct SimLock<T> {
    name: &'static str,
    /// Lower half: the lock's index in the lock table of the simulation that used the lock last.
    /// Upper half: the number (epoch) of that simulation, so that another simulation does not use
    /// the index.
    place: AtomicU64,
    word: LineState,
    data: LineState,
    value: Mutex<T>,
}

/// Keeps a [`SimLock`] locked until dropped.
#[derive(Debug)]
pub struct SimGuard<'a, T: Send> {
    lock: &'a SimLock<T>,
    /// Guard of the protected value. `None` only while this guard is being dropped.
    value: Option<MutexGuard<'a, T>>,
}

impl<T> SimLock<T> {
    /// Returns the lock's index in the running simulation's table. Adds the lock to the table on
    /// first use.
    fn place_in(&self, world: &mut World) -> u32 {
        let place = self.place.load(Relaxed);
        if (place >> 32) as u32 == world.epoch {
            return place as u32;
        }
        let lock = world.locks.add(self.name);
        self.place.store(u64::from(world.epoch) << 32 | u64::from(lock), Relaxed);
        lock
    }

    fn fetch_value(&self, world: &mut World) {
        let mut lines = size_of::<T>().div_ceil(64) as u64;
        if self.name == REQUEST_QUEUE {
            lines = lines.max(world.prices.request_queue_lines);
        }
        world.fetch_data(&self.data, lines);
    }

    fn guard(&self) -> SimGuard<'_, T>
    where
        T: Send,
    {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                panic!("lock {} is held outside of the running simulation", self.name)
            }
        };
        SimGuard { lock: self, value: Some(value) }
    }
}

impl<T: Send> Lock<T> for SimLock<T> {
    type Guard<'a>
        = SimGuard<'a, T>
    where
        T: 'a;

    fn new(name: &'static str, value: T) -> Self {
        let place = AtomicU64::new(0);
        let (word, data) = (LineState::new(), LineState::new());
        SimLock { name, place, word, data, value: Mutex::new(value) }
    }

    #[track_caller]
    fn lock(&self) -> SimGuard<'_, T> {
        let site = Location::caller();
        let waits = access_since(&self.word, AccessKind::Write, |world, asked_ps| {
            let lock = self.place_in(world);
            let claim = world.claim(lock, site, asked_ps);
            world.lock(lock, &self.word, claim)
        });
        match waits {
            None => {
                let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
                return SimGuard { lock: self, value: Some(value) };
            }
            Some(true) => suspend(),
            Some(false) => {}
        }
        private(|world| self.fetch_value(world));
        self.guard()
    }

    #[track_caller]
    fn try_lock(&self) -> Option<SimGuard<'_, T>> {
        let site = Location::caller();
        let taken = access_since(&self.word, AccessKind::Write, |world, asked_ps| {
            let lock = self.place_in(world);
            let claim = world.claim(lock, site, asked_ps);
            world.try_lock(lock, &self.word, &claim)
        });
        match taken {
            Some(false) => None,
            Some(true) => {
                private(|world| self.fetch_value(world));
                Some(self.guard())
            }
            None => {
                let value = match self.value.try_lock() {
                    Ok(value) => value,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => return None,
                };
                Some(SimGuard { lock: self, value: Some(value) })
            }
        }
    }
}

impl<T> Drop for SimLock<T> {
    fn drop(&mut self) {
        private(|world| {
            let place = self.place.load(Relaxed);
            if (place >> 32) as u32 == world.epoch {
                world.locks.remove(place as u32);
            }
        });
    }
}

impl<T: Send> Drop for SimGuard<'_, T> {
    fn drop(&mut self) {
        // Unlock the value's mutex first. Until the lock table marks the lock as free, no other
        // thread tries the mutex.
        self.value = None;
        access(&self.lock.word, AccessKind::Write, |world| {
            let lock = self.lock.place_in(world);
            world.unlock(lock, &self.lock.word);
        });
    }
}

impl<T: Send> Deref for SimGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("the guard holds the value until it is dropped")
    }
}

impl<T: Send> DerefMut for SimGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the guard holds the value until it is dropped")
    }
}

/// Returns the time that spinning CPUs take to read a lock's line again after a write to the line.
/// `by_socket` is the number of spinning CPUs of each socket. A CPU of socket `from` wrote the
/// line, and socket `has` already has a copy. First, one CPU of each other socket fetches the line
/// from socket `from`, one socket after the other. Then the remaining CPUs read their sockets'
/// shared caches, in all sockets in parallel.
fn read_again_ps(
    fabric: &mut Fabric,
    by_socket: &[u16],
    now_ps: u64,
    (from, has): (usize, usize),
) -> u64 {
    let (mut over_links_ps, mut in_sockets_ps) = (0, 0);
    for (socket, spinners) in by_socket.iter().enumerate().filter(|(_, spinners)| **spinners > 0) {
        let mut others = u64::from(*spinners);
        if socket != has {
            others -= 1;
            over_links_ps += fabric.send(now_ps, (from, socket), 1, TransferKind::Load);
        }
        let here_ps = others * fabric.transfer_ps(socket, socket, TransferKind::Shared);
        in_sockets_ps = here_ps.max(in_sockets_ps);
    }
    over_links_ps + in_sockets_ps
}

impl World {
    fn claim(&mut self, lock: u32, site: Site, since_ps: u64) -> LockRequest {
        let Scheduler { thread, cpu, .. } = self.scheduler;
        let socket = self.caches.fabric.socket_of(cpu);
        LockRequest { thread, cpu, socket, since_ps, row: self.locks.row(lock, site) }
    }

    /// Spends the time of the atomic instruction that takes a ticket. From now on the thread is not
    /// preempted.
    fn write_claim(&mut self, word: &LineState) {
        let start_ps = self.scheduler.now_ps;
        self.scheduler.me().locks += 1;
        self.write_line(word, 1, WriteKind::Locked);
        self.wake_watchers(word, start_ps);
    }

    /// Takes a free lock, or joins the queue of a held one. Returns true if the thread has to wait
    /// until the lock is handed over to it.
    fn lock(&mut self, lock: u32, word: &LineState, claim: LockRequest) -> bool {
        self.write_claim(word);
        if !self.locks.is_held(lock) {
            self.locks.take(lock, &claim, self.scheduler.now_ps);
            return false;
        }
        // All CPUs that already spin on the lock read its line again. No CPU, not even the holder,
        // can write the line before these reads have ended.
        let (waiting, by_socket) = self.locks.wait(lock, claim);
        let (now_ps, here) = (self.scheduler.now_ps, claim.socket);
        let readers_ps = match self.prices.spinner {
            0 => 0,
            _ => read_again_ps(&mut self.caches.fabric, &by_socket, now_ps, (here, here)),
        };
        word.share(waiting, claim.cpu, now_ps + readers_ps);
        self.scheduler.spin(ThreadPhase::Locking(lock));
        if std::thread::panicking() {
            self.fail("the thread panicked, and a destructor waits for a lock".into());
        }
        true
    }

    fn try_lock(&mut self, lock: u32, word: &LineState, claim: &LockRequest) -> bool {
        if self.locks.is_held(lock) {
            self.locks.reject(claim.row);
            self.read_line(word, 1);
            return false;
        }
        self.write_claim(word);
        self.locks.take(lock, claim, self.scheduler.now_ps);
        true
    }

    /// Moves `lines` cache lines of the protected data to the running CPU, and spends the time of
    /// this transfer. The source is the CPU that held the lock last.
    fn fetch_data(&mut self, data: &LineState, lines: u64) {
        if lines > 0 {
            let recording = core::mem::take(&mut self.scheduler.recording);
            self.write_line(data, lines, WriteKind::Plain);
            self.scheduler.recording = recording;
        }
    }

    fn unlock(&mut self, lock: u32, word: &LineState) {
        let start_ps = self.scheduler.now_ps;
        self.write_line(word, 1, WriteKind::Plain);
        self.scheduler.release_lock();
        self.wake_watchers(word, start_ps);
        if self.locks.release(lock, start_ps) {
            self.hand_over(lock, word);
        }
    }

    /// Gives the lock to the thread that has waited longest, once its CPU has received the lock's
    /// cache line.
    fn hand_over(&mut self, lock: u32, word: &LineState) {
        let Scheduler { cpu, now_ps, .. } = self.scheduler;
        let fabric = &mut self.caches.fabric;
        let here = fabric.socket_of(cpu);
        let (next, waiting, by_socket) = self.locks.next(lock);
        let first_ps = fabric.send(now_ps, (here, next.socket), 1, TransferKind::Load);
        // The next holder's socket has the line already, so its CPUs read from the shared cache.
        let readers_ps = read_again_ps(fabric, by_socket, now_ps, (here, next.socket));
        let granted_ps = now_ps + first_ps + ((readers_ps * self.prices.spinner) >> 16);
        let mut sharers = waiting;
        sharers.add(next.cpu);
        sharers.add(cpu);
        word.share(sharers, next.cpu, granted_ps);
        self.events += 1;
        self.locks.hand_over(lock, &next, granted_ps);
        self.scheduler.end_spin(next.thread, granted_ps);
    }
}
