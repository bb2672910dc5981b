//! `World`: the state of one running simulation, and the gate that every shared access passes.
//!
//! Found through a thread-local pointer that the run loop (run.rs) sets; one thread of the system
//! runs a whole simulation. Invariant that makes the simulation sequentially consistent: a CPU
//! accesses shared state only when its clock is the earliest of all CPUs that can run (`gate`), so
//! accesses happen in the order of virtual time. The `RefCell` is never borrowed over a suspension.
//! All times are integers in picoseconds, so that debug and release builds agree to the bit.
#![allow(unsafe_code)]

use core::cell::{Cell, RefCell};
use core::ptr;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use corosensei::Yielder;
use millrace_random::SplitMix64;

use super::cpu::{CpuState, FairCpu};
use super::fabric::Fabric;
use super::lock_table::LockTable;
use super::model::Model;
use super::pool::{NO_THREAD, Pool, ThreadState};
use super::prices::Prices;
use super::report::SimError;
use super::still;
use super::time::BEGIN_PS;
use super::tournament::{Tournament, key};
use crate::{CpuId, NodeId, Topology};

/// Position of the threads' deadlines among the CPUs; the CPUs come behind it.
pub(super) const TIMERS: usize = 0;

/// When the running CPU's turn ends, and how.
#[derive(Debug)]
struct Turn {
    slice_end_ps: u64,
    /// The CPU's place among those with equal times.
    position: usize,
    yielder: *const Yielder<(), ()>,
}

/// The clocks that decide which CPU comes next.
#[derive(Debug)]
pub(super) struct Clocks {
    /// The clocks of CPUs whose thread can run, by position, and the first of `timers`.
    pub(super) tree: Tournament,
    /// CPUs by their position in it.
    pub(super) by_position: Vec<usize>,
    /// When threads want to go on although nobody wakes them, by their number.
    pub(super) timers: Tournament,
}

/// What decides how the run ends.
#[derive(Debug)]
pub(super) struct RunState {
    pub(super) limit_ps: u64,
    pub(super) failure: Option<SimError>,
    random: SplitMix64,
}

/// One running simulation.
pub(super) struct World {
    // What every access touches.
    pub(super) now_ps: u64,
    pub(super) cpu: usize,
    pub(super) thread: u32,
    pub(super) epoch: u32,
    /// The running thread evaluates a condition of `spin_until`.
    pub(super) recording: bool,
    turn: Turn,
    pub(super) clocks: Clocks,
    pub(super) events: u64,
    pub(super) prices: Prices,
    pub(super) fabric: Fabric,
    // What waiting and switching touch.
    pub(super) cpus: Vec<CpuState>,
    pub(super) pool: Pool,
    /// Threads that wait for a write to a line, by its `watch` less one.
    pub(super) watches: Vec<Vec<u32>>,
    pub(super) locks: LockTable,
    pub(super) run: RunState,
}

std::thread_local! {
    static CURRENT: Cell<*const RefCell<World>> = const { Cell::new(ptr::null()) };
}

/// Makes a world the thread's running one until dropped.
pub(super) struct Entered;

impl Entered {
    /// # Panics
    /// Inside a running simulation: they do not nest.
    ///
    /// # Safety
    /// The world outlives the returned value.
    pub(super) unsafe fn new(world: &RefCell<World>) -> Entered {
        assert!(CURRENT.get().is_null(), "a simulation within a simulation");
        CURRENT.set(world);
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(ptr::null());
    }
}

/// The simulation that the caller runs in.
#[inline]
fn current() -> Option<&'static RefCell<World>> {
    let world = CURRENT.get();
    // SAFETY: `Entered` keeps the pointer valid while it is set, and the reference is used only by
    // functions of this module that return before the simulation ends.
    (!world.is_null()).then(|| unsafe { &*world })
}

/// Does what concerns nobody but the running CPU; `None` outside a simulation. `f` neither
/// suspends nor drops values of the program.
#[inline]
pub(super) fn private<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    Some(f(&mut current()?.borrow_mut()))
}

/// Does what others can see, when it is the running CPU's turn; `None` outside a simulation. `f`
/// neither suspends nor drops values of the program.
#[inline]
pub(super) fn shared<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    let cell = current()?;
    still::check();
    let mut world = cell.borrow_mut();
    if !world.may_go() {
        drop(world);
        wait_for_turn(cell);
        world = cell.borrow_mut();
    }
    Some(f(&mut world))
}

/// Lets the running CPU's private time pass; a CPU that works for long without sharing anything
/// still gives others a turn at the end of its time slice.
#[inline]
pub(super) fn pass(price: impl FnOnce(&mut World) -> u64) {
    let Some(cell) = current() else { return };
    still::check();
    let mut world = cell.borrow_mut();
    let price_ps = price(&mut world);
    world.now_ps += price_ps;
    if world.now_ps >= world.turn.slice_end_ps {
        drop(world);
        wait_for_turn(cell);
    }
}

#[cold]
#[inline(never)]
fn wait_for_turn(cell: &RefCell<World>) {
    // Destructors of a thread that panics run to their end without the others: a switch in the
    // middle of unwinding would mix up two threads' panics.
    if !std::thread::panicking() {
        cell.borrow_mut().step_aside();
        suspend();
    }
}

/// Lets other CPUs run until the scheduler returns to the running thread, whose state says why it
/// waits.
pub(super) fn suspend() {
    let yielder = current().expect("inside a simulation").borrow().turn.yielder;
    // SAFETY: the scheduler set it to the running coroutine's own yielder, which lives on that
    // coroutine's stack as long as the coroutine runs.
    unsafe { (*yielder).suspend(()) };
}

impl World {
    pub(super) fn new(model: &Model, seed: u64, epoch: u32, limit_ps: u64) -> Self {
        let cpus = model.cpus() as usize;
        let mut world = World {
            now_ps: BEGIN_PS,
            cpu: 0,
            thread: NO_THREAD,
            epoch,
            recording: false,
            turn: Turn { slice_end_ps: 0, position: 0, yielder: ptr::null() },
            clocks: Clocks {
                tree: Tournament::new(cpus + 1),
                by_position: vec![0; cpus + 1],
                timers: Tournament::new(16),
            },
            events: 0,
            prices: Prices::new(model),
            fabric: Fabric::new(model),
            cpus: Vec::with_capacity(cpus),
            pool: Pool { threads: Vec::new(), live: 0, next_cpu: 0 },
            watches: Vec::new(),
            locks: LockTable::default(),
            run: RunState { limit_ps, failure: None, random: SplitMix64::new(seed) },
        };
        world.make_cpus(cpus);
        world
    }

    /// CPUs in an order among equals that the seed decides.
    fn make_cpus(&mut self, cpus: usize) {
        let mut order: Vec<usize> = (0..cpus).collect();
        for last in (1..cpus).rev() {
            let other = (self.next_random() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
        for (cpu, place) in order.iter().enumerate() {
            self.clocks.by_position[TIMERS + 1 + place] = cpu;
        }
        self.cpus.extend(order.into_iter().map(|place| CpuState {
            clock_ps: BEGIN_PS,
            current: NO_THREAD,
            last: NO_THREAD,
            queue: VecDeque::new(),
            slice_end_ps: 0,
            stolen_ps: 0,
            position: TIMERS + 1 + place,
            idle_ps: 0,
            spin_ps: 0,
            switches: 0,
            fair: FairCpu::default(),
        }));
    }

    /// The next number of the seed's stream.
    pub(super) fn next_random(&mut self) -> u64 {
        self.run.random.next()
    }

    /// Whether it is the running CPU's turn.
    #[inline]
    fn may_go(&self) -> bool {
        key(self.now_ps, self.turn.position) < self.clocks.tree.least()
            && self.now_ps < self.turn.slice_end_ps
    }

    /// The thread that is about to run becomes the running one.
    pub(super) fn enter(&mut self, cpu: usize, thread: u32) {
        let state = &self.cpus[cpu];
        (self.now_ps, self.cpu, self.thread) = (state.clock_ps, cpu, thread);
        (self.turn.position, self.turn.slice_end_ps) = (state.position, state.slice_end_ps);
        let state = self.thread(thread);
        (self.recording, self.turn.yielder) = (state.spin.recording, state.yielder);
    }

    /// The running CPU's turn ends at this time, if not before.
    pub(super) fn end_turn(&mut self, time_ps: u64) {
        self.turn.slice_end_ps = self.turn.slice_end_ps.min(time_ps);
    }

    /// The running coroutine tells how to suspend it.
    pub(super) fn set_yielder(&mut self, yielder: *const Yielder<(), ()>) {
        self.turn.yielder = yielder;
        let thread = self.thread;
        self.thread_mut(thread).yielder = yielder;
    }

    pub(super) fn thread(&self, thread: u32) -> &ThreadState {
        self.pool.threads[thread as usize].as_ref().expect("threads are named while they live")
    }

    pub(super) fn thread_mut(&mut self, thread: u32) -> &mut ThreadState {
        self.pool.threads[thread as usize].as_mut().expect("threads are named while they live")
    }

    /// The running thread's own state.
    pub(super) fn me(&mut self) -> &mut ThreadState {
        self.thread_mut(self.thread)
    }

    pub(super) fn topology(&self) -> Topology {
        let cpu = |cpu| crate::Cpu {
            id: CpuId(cpu as u32),
            node: NodeId(self.fabric.socket_of(cpu) as u32),
        };
        Topology::new((0..self.cpus.len()).map(cpu).collect())
    }
}
