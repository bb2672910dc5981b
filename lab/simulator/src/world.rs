//! `World`: the state of one running simulation, and the code that orders accesses to shared state.
//!
//! One system thread runs a whole simulation, and finds the world through a thread-local pointer
//! that the run loop (run.rs) sets. Invariant that makes the simulation sequentially consistent: a
//! CPU accesses shared state only when its clock is the earliest of all CPUs that can run
//! (`shared`), so accesses happen in the order of virtual time. The `RefCell` is never borrowed
//! across a suspension.
//!
//! All times are integers in picoseconds, so that debug and release builds produce identical
//! results. The world owns the scheduler, the caches and the lock table, which know neither each
//! other nor the world; lock.rs, spin.rs and thread.rs add the code that spans several of them.

#![allow(unsafe_code)]

pub(crate) mod line_queue;
pub(crate) mod lock_table;
pub(crate) mod still;

use core::cell::{Cell, RefCell, RefMut};
use core::ptr;
use std::string::String;
use std::vec::Vec;

use millrace_random::SplitMix64;

use crate::memory::line::{Caches, LineAccess, LineState, WriteKind};
use crate::model::Model;
use crate::model::prices::Prices;
use crate::model::time::PS_PER_NS;
use crate::report::{BlockedThread, Report, SimError};
use crate::scheduler::pool::{ThreadPhase, ThreadState};
use crate::scheduler::{RunAction, Scheduler, SchedulerStop};
use line_queue::LineQueue;
use lock_table::LockTable;
use millrace_machine::{CpuId, NodeId, Topology};

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) caches: Caches,
    pub(super) epoch: u32,
    pub(super) events: u64,
    pub(super) prices: Prices,
    pub(super) random: SplitMix64,
    /// For each cache line that threads watch, the threads that wait for a write to the line.
    /// `LineState::watch` of the line is the index in this list plus 1.
    pub(super) watches: Vec<Vec<u32>>,
    /// For each contended cache line, the threads that wait to access the line. `LineState::queue`
    /// of the line is the index in this list plus 1.
    pub(super) line_queues: Vec<LineQueue>,
    /// `CacheCosts::near`: maximum number of consecutive transfers of a cache line within one
    /// socket. After these transfers, a waiting CPU of another socket gets the line.
    pub(super) near_turns: u32,
    pub(super) locks: LockTable,
    failure: Option<SimError>,
}

std::thread_local! {
    static CURRENT: Cell<*const RefCell<World>> = const { Cell::new(ptr::null()) };
}

/// Guard that makes a world the running simulation of this system thread until the guard is
/// dropped.
pub(super) struct EnteredWorld;

impl EnteredWorld {
    /// Makes `world` the running simulation of this system thread.
    ///
    /// # Panics
    /// Panics if a simulation is already running, because simulations do not nest.
    ///
    /// # Safety
    /// The world must outlive the returned value.
    pub(super) unsafe fn new(world: &RefCell<World>) -> EnteredWorld {
        assert!(CURRENT.get().is_null(), "simulations must not be nested");
        CURRENT.set(world);
        EnteredWorld
    }
}

impl Drop for EnteredWorld {
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
    }
}

#[inline]
pub(super) fn current() -> Option<&'static RefCell<World>> {
    let world = CURRENT.get();
    // SAFETY: while `CURRENT` is set, `EnteredWorld` keeps its pointer valid. Only functions of
    // `world` use the returned reference, and these return before the simulation ends.
    (!world.is_null()).then(|| unsafe { &*world })
}

/// Runs `f`, which must affect only the running CPU. Returns `None` outside a simulation. The world
/// is borrowed while `f` runs. So `f` must neither suspend nor drop values of the simulated
/// program, whose destructors may borrow the world, too.
#[inline]
pub(super) fn private<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    Some(f(&mut current()?.borrow_mut()))
}

/// Waits until the running CPU's clock is the earliest, and then runs `f`. Meant for an `f` with
/// effects that other CPUs may observe. Returns `None` outside a simulation. `World` is borrowed
/// while `f` runs. So `f` must neither suspend nor drop values of the simulated program, whose
/// destructors may borrow `World`, too.
#[inline]
pub(super) fn shared<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    Some(f(&mut at_turn(current()?)))
}

/// Borrows the simulation's `World` once the running CPU's clock is the earliest, so that accesses
/// to shared state happen in order of virtual time.
#[inline]
pub(super) fn at_turn(cell: &'static RefCell<World>) -> RefMut<'static, World> {
    still::check();
    let world = cell.borrow_mut();
    if world.scheduler.may_go() {
        return world;
    }
    drop(world);
    wait_for_turn(cell);
    cell.borrow_mut()
}

/// Spends the time of work that other CPUs cannot observe. `price` returns this time in
/// picoseconds. If the thread's time slice ends, the thread suspends. So other threads run even if
/// this thread never accesses shared state.
#[inline]
pub(super) fn pass(price: impl FnOnce(&mut World) -> u64) {
    let Some(cell) = current() else { return };
    still::check();
    let mut world = cell.borrow_mut();
    let price_ps = price(&mut world);
    world.scheduler.now_ps += price_ps;
    if world.scheduler.slice_is_over() {
        drop(world);
        wait_for_turn(cell);
    }
}

#[cold]
#[inline(never)]
fn wait_for_turn(cell: &RefCell<World>) {
    // Do not switch to another thread while a thread unwinds: all coroutines share the panic state
    // of one system thread, so the other thread would count as panicking, too. Destructors
    // therefore run to their end.
    if !std::thread::panicking() {
        cell.borrow_mut().scheduler.step_aside();
        suspend();
    }
}

/// Suspends the running coroutine until the scheduler resumes its thread. The caller must have
/// recorded in the thread's state what the thread waits for.
pub(super) fn suspend() {
    let yielder = current().expect("the caller runs in a simulation").borrow().scheduler.yielder();
    // SAFETY: `yielder` is the running coroutine's own, on a stack that lives while it runs.
    unsafe { (*yielder).suspend(()) };
}

impl World {
    pub(super) fn new(model: &Model, seed: u64, epoch: u32, limit_ps: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let places = shuffled(model.cpus() as usize, &mut random);
        World {
            scheduler: Scheduler::new(model, &places, limit_ps),
            caches: Caches::new(model),
            epoch,
            events: 0,
            prices: Prices::new(model),
            random,
            watches: Vec::new(),
            line_queues: Vec::new(),
            near_turns: model.cache.near.turns,
            locks: LockTable::default(),
            failure: None,
        }
    }

    /// Picks the next thread to run and makes it the running thread.
    ///
    /// # Errors
    /// Fails if the simulation cannot continue.
    pub(super) fn pick(&mut self) -> Result<RunAction, SimError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.scheduler.pick().map_err(|stuck| match stuck {
            SchedulerStop::Deadlock => SimError::Deadlock(self.blocked()),
            SchedulerStop::TimeLimit => {
                SimError::TimeLimit(self.scheduler.limit_ps / PS_PER_NS, self.blocked())
            }
        })
    }

    pub(super) fn fail(&mut self, message: String) {
        let at_ns = self.scheduler.now_ps / PS_PER_NS;
        let thread = self.scheduler.me().name.clone();
        self.failure = Some(SimError::Panic { thread, at_ns, message });
    }

    /// Advances the running CPU's clock by the time of a read of `lines` adjacent cache lines,
    /// which are always transferred together.
    #[inline]
    pub(super) fn read_line(&mut self, line: &LineState, lines: u64) {
        let access = self.begin_access(line, lines);
        self.scheduler.now_ps = self.caches.read(line, access);
    }

    /// Advances the running CPU's clock by the time of a write to `lines` adjacent cache lines,
    /// which are always transferred together.
    #[inline]
    pub(super) fn write_line(&mut self, line: &LineState, lines: u64, written: WriteKind) {
        let access = self.begin_access(line, lines);
        self.scheduler.now_ps = self.caches.write(line, access, written);
    }

    #[inline]
    fn begin_access(&mut self, line: &LineState, lines: u64) -> LineAccess {
        self.events += 1;
        line.renew(self.epoch);
        if self.scheduler.recording {
            self.record(line);
        }
        LineAccess { cpu: self.scheduler.cpu, now_ps: self.scheduler.now_ps, lines }
    }

    pub(super) fn topology(&self) -> Topology {
        let cpu = |cpu| millrace_machine::Cpu {
            id: CpuId(cpu as u32),
            node: NodeId(self.caches.fabric.socket_of(cpu) as u32),
        };
        Topology::new((0..self.scheduler.cpus.len()).map(cpu).collect())
    }

    pub(super) fn report(&self) -> Report {
        let end_ps = self.scheduler.end_ps();
        Report {
            end_ns: end_ps / PS_PER_NS,
            events: self.events,
            locks: self.locks.table(),
            cpus: self.scheduler.cpus.iter().map(|cpu| cpu.times(end_ps)).collect(),
            links: self.caches.fabric.link_use(),
        }
    }

    fn blocked(&self) -> Vec<BlockedThread> {
        let describe = |thread: &ThreadState| BlockedThread {
            name: thread.name.clone(),
            cpu: thread.cpu as u32,
            waits_for: self.wait_of(thread),
        };
        self.scheduler.pool.threads.iter().flatten().map(describe).collect()
    }

    fn wait_of(&self, thread: &ThreadState) -> String {
        let pool = &self.scheduler.pool;
        match thread.state {
            ThreadPhase::Running => "nothing, it runs".into(),
            ThreadPhase::Ready => "its CPU".into(),
            ThreadPhase::Parked => "a wake-up".into(),
            ThreadPhase::Joining(other) => std::format!("the end of thread {}", pool.name(other)),
            ThreadPhase::Stalled => "a cache line that other threads need, too".into(),
            ThreadPhase::Spinning => {
                let lines = thread.spin.watching.len();
                std::format!("a write to any of the cache lines that it polls ({lines})")
            }
            ThreadPhase::Locking(lock) => {
                let (lock, holder) = self.locks.name_and_holder(lock);
                std::format!("lock {lock}, held by {}", pool.name(holder))
            }
        }
    }
}

fn shuffled(count: usize, random: &mut SplitMix64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let other = (random.next() % (last as u64 + 1)) as usize;
        order.swap(last, other);
    }
    order
}
