//! `Scheduler`: which CPU of a simulation comes next, and which thread it runs.
//!
//! Owns CPUs, threads and their clocks. Called by the world, for the run loop between two
//! coroutines (`pick`), and by whatever blocks or wakes a thread. A CPU runs one thread until that
//! blocks, ends, or has used up its time slice while others wait; they take turns in order of
//! arrival. A CPU is never taken from a thread that holds or waits for a lock: it goes with the
//! last of its locks, as where the kernel lets itself be preempted again. A CPU that spins in
//! `spin_until` is given up as soon as somebody else wants it. Models may ask for turns by run
//! time, and preemption by who wakes (fairness.rs), for CPUs that share a core, and threads for
//! being moved when they wake (hyper_threads.rs).
//! Kernel counterpart: `SCHED_RR` with pinned tasks.

pub(crate) mod clocks;
pub(crate) mod cpu;
pub(crate) mod fairness;
pub(crate) mod hyper_threads;
pub(crate) mod pool;
pub(crate) mod tournament;

use core::ptr;
use std::sync::Arc;
use std::vec::Vec;

use corosensei::Yielder;

use crate::model::Model;
use crate::model::prices::ThreadPrices;
use crate::model::time::BEGIN_PS;
use clocks::{Clocks, Due};
use cpu::CpuState;
use hyper_threads::Siblings;
use pool::{Body, Ended, NO_THREAD, Pool, SpinState, State, ThreadState};
use tournament::{POSITIONS_MAX, TIME_MAX_PS, key};

/// What the run loop has to do next.
pub(super) enum Next {
    /// Resume this thread.
    Resume(u32),
    /// Start this thread.
    Start(u32, Body),
    /// All threads have ended.
    Done,
}

/// Why no thread can run next.
pub(super) enum Stuck {
    /// Every thread waits, and nothing is to come.
    Deadlock,
    /// The time limit has come.
    TimeLimit,
}

/// When the running CPU's turn ends, and how.
#[derive(Debug)]
struct Turn {
    slice_end_ps: u64,
    /// The CPU's place among those with equal times.
    position: usize,
    yielder: *const Yielder<(), ()>,
}

/// The CPUs and threads of a simulation, and which of them runs.
pub(super) struct Scheduler {
    // What every access touches: the running CPU and thread.
    pub(super) now_ps: u64,
    pub(super) cpu: usize,
    pub(super) thread: u32,
    /// The running thread evaluates a condition of `spin_until`.
    pub(super) recording: bool,
    turn: Turn,
    clocks: Clocks,
    // What waiting and switching touch.
    pub(super) cpus: Vec<CpuState>,
    pub(super) pool: Pool,
    pub(super) prices: ThreadPrices,
    pub(super) siblings: Siblings,
    pub(super) limit_ps: u64,
}

impl Scheduler {
    /// CPUs without threads; `places` is their order at equal times.
    pub(super) fn new(model: &Model, places: &[usize], limit_ps: u64) -> Self {
        let cpu = |place: &usize| CpuState::new(Clocks::position(*place));
        Scheduler {
            now_ps: BEGIN_PS,
            cpu: 0,
            thread: NO_THREAD,
            recording: false,
            turn: Turn { slice_end_ps: 0, position: 0, yielder: ptr::null() },
            clocks: Clocks::new(places),
            cpus: places.iter().map(cpu).collect(),
            pool: Pool { threads: Vec::new(), live: 0, next_cpu: 0 },
            prices: ThreadPrices::new(&model.threads),
            siblings: Siblings::new(model),
            limit_ps,
        }
    }

    /// The next thread to run, which becomes the running one.
    pub(super) fn pick(&mut self) -> Result<Next, Stuck> {
        loop {
            let Some((time_ps, due)) = self.clocks.first() else {
                return self.nobody_left();
            };
            if time_ps > self.limit_ps {
                return Err(Stuck::TimeLimit);
            }
            let cpu = match due {
                Due::Cpu(cpu) => cpu,
                Due::Deadline(thread) => {
                    self.expire(thread, time_ps);
                    continue;
                }
            };
            let state = &mut self.cpus[cpu];
            // A line on its way arrives while its CPU is interrupted.
            let is_fetching = self.pool.thread(state.current).in_line_queue;
            if state.stolen_ps > 0 && !is_fetching {
                state.clock_ps += core::mem::take(&mut state.stolen_ps);
                self.clocks.set_cpu(state.position, state.clock_ps);
                continue;
            }
            let thread = state.current;
            self.clocks.set_cpu(state.position, u64::MAX);
            self.enter(cpu, thread);
            return Ok(match self.me().body.take() {
                Some(body) => Next::Start(thread, body),
                None => Next::Resume(thread),
            });
        }
    }

    /// No CPU has anything to do.
    fn nobody_left(&self) -> Result<Next, Stuck> {
        if self.pool.live == 0 {
            return Ok(Next::Done);
        }
        // A clock beyond the last time that counts takes no part any more.
        match self.cpus.iter().any(|cpu| cpu.clock_ps > self.limit_ps) {
            true => Err(Stuck::TimeLimit),
            false => Err(Stuck::Deadlock),
        }
    }

    /// The thread that is about to run becomes the running one.
    fn enter(&mut self, cpu: usize, thread: u32) {
        let state = &self.cpus[cpu];
        (self.now_ps, self.cpu, self.thread) = (state.clock_ps, cpu, thread);
        (self.turn.position, self.turn.slice_end_ps) = (state.position, state.slice_end_ps);
        let state = self.pool.thread(thread);
        (self.recording, self.turn.yielder) = (state.spin.recording, state.yielder);
    }

    /// Whether it is the running CPU's turn.
    #[inline]
    pub(super) fn may_go(&self) -> bool {
        key(self.now_ps, self.turn.position) < self.clocks.least() && !self.slice_is_over()
    }

    /// Whether the running CPU's time slice is over.
    #[inline]
    pub(super) fn slice_is_over(&self) -> bool {
        self.now_ps >= self.turn.slice_end_ps
    }

    /// The running CPU's turn ends at this time, if not before.
    pub(super) fn end_turn(&mut self, time_ps: u64) {
        self.turn.slice_end_ps = self.turn.slice_end_ps.min(time_ps);
    }

    /// How to suspend the running coroutine.
    pub(super) fn yielder(&self) -> *const Yielder<(), ()> {
        self.turn.yielder
    }

    /// The running coroutine tells how to suspend it.
    pub(super) fn set_yielder(&mut self, yielder: *const Yielder<(), ()>) {
        self.turn.yielder = yielder;
        self.me().yielder = yielder;
    }

    /// The running thread's own state.
    pub(super) fn me(&mut self) -> &mut ThreadState {
        self.pool.thread_mut(self.thread)
    }

    /// The running thread enters and leaves the kernel.
    pub(super) fn charge_system_call(&mut self) {
        self.now_ps += self.stretched(self.prices.system_call);
    }

    /// The deadline of a thread, the earliest of all, has come.
    fn expire(&mut self, thread: u32, time_ps: u64) {
        self.set_timer(thread, u64::MAX);
        match self.pool.thread(thread).state {
            State::Parked => self.make_ready(thread, time_ps),
            State::Spinning => self.end_spin(thread, time_ps),
            _ => {}
        }
    }

    /// Sets the time at which a thread is to go on without being woken.
    pub(super) fn set_timer(&mut self, thread: u32, time_ps: u64) {
        self.clocks.set_timer(thread, time_ps);
    }

    /// The running thread has to wait for its turn, or its time slice is over.
    pub(super) fn step_aside(&mut self) {
        let locks = self.me().locks;
        let (limit_ps, slice_ps) = (self.limit_ps, self.prices.time_slice);
        let state = &mut self.cpus[self.cpu];
        state.clock_ps = self.now_ps;
        if state.clock_ps >= state.slice_end_ps {
            if !state.queue.is_empty() && locks == 0 {
                return self.give_way();
            }
            state.is_overdue = !state.queue.is_empty();
            // The limit must be noticed by a CPU that is alone, too.
            state.slice_end_ps = (state.clock_ps + slice_ps).min(limit_ps.max(state.clock_ps) + 1);
        }
        self.clocks.set_cpu(state.position, state.clock_ps);
    }

    /// The running thread holds a lock less. With the last one goes a CPU that others waited for
    /// meanwhile: this is its next step, however short the time until the next lock.
    pub(super) fn release_lock(&mut self) {
        let me = self.me();
        me.locks -= 1;
        let (locks, now_ps) = (me.locks, self.now_ps);
        let state = &mut self.cpus[self.cpu];
        if locks == 0 && core::mem::take(&mut state.is_overdue) {
            state.slice_end_ps = now_ps;
            self.end_turn(now_ps);
        }
    }

    /// The running thread goes to the end of its CPU's queue.
    pub(super) fn give_way(&mut self) {
        let (cpu, thread) = (self.cpu, self.thread);
        self.me().state = State::Ready;
        self.cpus[cpu].clock_ps = self.now_ps;
        self.cpus[cpu].queue.push_back(thread);
        self.switch(cpu);
    }

    /// The running thread gives its CPU up until somebody makes it ready.
    pub(super) fn block(&mut self, state: State) {
        self.me().state = state;
        self.cpus[self.cpu].clock_ps = self.now_ps;
        self.switch(self.cpu);
    }

    /// The running thread keeps its CPU busy until [`Scheduler::end_spin`].
    pub(super) fn spin(&mut self, state: State) {
        let now_ps = self.now_ps;
        let me = self.me();
        (me.state, me.since_ps) = (state, now_ps);
        self.cpus[self.cpu].clock_ps = now_ps;
    }

    /// The running thread goes on at this time, without giving its CPU up.
    pub(super) fn stall_until(&mut self, time_ps: u64) {
        self.now_ps = self.now_ps.max(time_ps);
        let state = &mut self.cpus[self.cpu];
        state.clock_ps = self.now_ps;
        self.clocks.set_cpu(state.position, state.clock_ps);
    }

    /// A thread that stalls goes on at this time, at the earliest. Unlike spinning, a stall is a
    /// part of the work that it holds up.
    pub(super) fn end_stall(&mut self, thread: u32, time_ps: u64) {
        let state = self.pool.thread_mut(thread);
        state.state = State::Running;
        let cpu = &mut self.cpus[state.cpu];
        cpu.clock_ps = cpu.clock_ps.max(time_ps);
        let (position, clock_ps) = (cpu.position, cpu.clock_ps);
        self.clocks.set_cpu(position, clock_ps);
    }

    /// A thread that spins goes on at this time, at the earliest.
    pub(super) fn end_spin(&mut self, thread: u32, time_ps: u64) {
        let state = self.pool.thread_mut(thread);
        state.state = State::Running;
        let (cpu, since_ps) = (state.cpu, state.since_ps);
        let cpu = &mut self.cpus[cpu];
        cpu.clock_ps = cpu.clock_ps.max(time_ps);
        cpu.spin_ps += cpu.clock_ps - since_ps;
        let (position, clock_ps) = (cpu.position, cpu.clock_ps);
        self.clocks.set_cpu(position, clock_ps);
    }

    /// A CPU goes on with the first thread of its queue, or idles.
    fn switch(&mut self, cpu: usize) {
        self.count_run_time(cpu);
        let next = self.take_next(cpu);
        let switch_ps = self.stretched_on(cpu, self.prices.context_switch);
        let prices = &self.prices;
        let state = &mut self.cpus[cpu];
        let Some(next) = next else {
            state.current = NO_THREAD;
            self.clocks.set_cpu(state.position, u64::MAX);
            return;
        };
        if state.last != next {
            state.clock_ps += switch_ps;
            state.switches += 1;
        }
        (state.current, state.last, state.is_overdue) = (next, next, false);
        state.slice_end_ps = state.clock_ps + prices.time_slice;
        self.clocks.set_cpu(state.position, state.clock_ps);
        self.pool.thread_mut(next).state = State::Running;
    }

    /// A thread that has no CPU wants its own again, from this time on.
    pub(super) fn make_ready(&mut self, thread: u32, time_ps: u64) {
        self.place(thread);
        self.limit_credit(thread);
        let target = self.pool.thread_mut(thread);
        target.state = State::Ready;
        let cpu = target.cpu;
        let latency_ps = self.prices.wake_latency;
        let state = &mut self.cpus[cpu];
        state.queue.push_back(thread);
        let current = state.current;
        if current == NO_THREAD {
            let start_ps = state.clock_ps.max(time_ps) + latency_ps;
            state.idle_ps += start_ps - state.clock_ps;
            state.clock_ps = start_ps;
            self.switch(cpu);
        } else {
            let spinner = self.pool.thread(current);
            if spinner.state == State::Spinning && spinner.locks == 0 {
                self.set_timer(current, u64::MAX);
                self.end_spin(current, time_ps);
                self.pool.thread_mut(current).state = State::Ready;
                self.cpus[cpu].queue.push_back(current);
                self.switch(cpu);
            } else {
                self.preempt(thread, time_ps);
            }
        }
    }

    /// Adds a thread, ready from now on; on a CPU of its own choice or the next in turn.
    ///
    /// # Panics
    /// If there are 4,096 threads, or no such CPU.
    pub(super) fn add_thread(
        &mut self,
        name: &str,
        cpu: Option<usize>,
        body: Body,
    ) -> (u32, Arc<Ended>) {
        let cpu = cpu.unwrap_or(self.pool.next_cpu);
        assert!(cpu < self.cpus.len(), "thread {name}: there is no CPU {cpu}");
        self.pool.next_cpu = (cpu + 1) % self.cpus.len();
        let ended = Arc::new(Ended::default());
        let state = ThreadState {
            name: name.into(),
            cpu,
            state: State::Ready,
            since_ps: 0,
            body: Some(body),
            yielder: core::ptr::null(),
            ended: Arc::clone(&ended),
            joiners: Vec::new(),
            locks: 0,
            in_line_queue: false,
            roams: false,
            ran_ps: self.cpus[cpu].fair.least_ps,
            spin: SpinState::default(),
        };
        let free = self.pool.threads.iter().position(Option::is_none);
        let thread = free.unwrap_or(self.pool.threads.len());
        assert!(thread < POSITIONS_MAX, "thread {name}: there are {POSITIONS_MAX} already");
        if free.is_none() {
            self.pool.threads.push(None);
            self.clocks.grow(self.pool.threads.len());
        }
        self.pool.threads[thread] = Some(state);
        self.pool.live += 1;
        self.make_ready(thread as u32, self.now_ps);
        (thread as u32, ended)
    }

    /// Adds the first thread, which has its CPU from the beginning.
    ///
    /// # Panics
    /// If there is no such CPU.
    pub(super) fn add_first_thread(&mut self, cpu: usize, body: Body) {
        self.add_thread("main", Some(cpu), body);
        let state = &mut self.cpus[cpu];
        state.clock_ps = BEGIN_PS;
        state.slice_end_ps = BEGIN_PS + self.prices.time_slice;
        (state.idle_ps, state.switches) = (0, 0);
        self.clocks.set_cpu(state.position, BEGIN_PS);
    }

    /// The running thread ends: those that wait for it are woken.
    pub(super) fn end_thread(&mut self) {
        let (cpu, thread) = (self.cpu, self.thread);
        for joiner in core::mem::take(&mut self.me().joiners) {
            self.make_ready(joiner, self.now_ps);
        }
        self.pool.threads[thread as usize] = None;
        self.pool.live -= 1;
        let state = &mut self.cpus[cpu];
        state.clock_ps = self.now_ps;
        if state.last == thread {
            state.last = NO_THREAD;
        }
        self.switch(cpu);
    }

    /// Whether other threads wait for the running one's CPU and may have it.
    pub(super) fn wanted(&mut self) -> bool {
        !self.cpus[self.cpu].queue.is_empty() && self.me().locks == 0
    }

    /// The latest time that a CPU has come to.
    pub(super) fn end_ps(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.clock_ps).max().unwrap_or(0).min(TIME_MAX_PS)
    }

    /// The running CPU interrupts another one.
    pub(super) fn interrupt(&mut self, cpu: usize) {
        let prices = &self.prices;
        let state = &mut self.cpus[cpu];
        if state.current == NO_THREAD {
            let start_ps = state.clock_ps.max(self.now_ps);
            state.idle_ps += start_ps - state.clock_ps;
            state.clock_ps = start_ps + prices.interrupt_handle;
        } else {
            state.stolen_ps += prices.interrupt_handle;
        }
        self.now_ps += prices.interrupt_send;
    }
}

/// Stops all CPUs for a time from now; returns what that is for the running one.
pub(super) fn stop_all(scheduler: &mut Scheduler, for_ps: u64) -> u64 {
    let until_ps = scheduler.now_ps + for_ps;
    for cpu in (0..scheduler.cpus.len()).filter(|cpu| *cpu != scheduler.cpu) {
        let state = &mut scheduler.cpus[cpu];
        let lost_ps = until_ps.saturating_sub(state.clock_ps);
        state.clock_ps += lost_ps;
        if state.current == NO_THREAD {
            state.idle_ps += lost_ps;
        } else if scheduler.pool.thread(state.current).state == State::Running {
            scheduler.clocks.set_cpu(state.position, state.clock_ps);
        }
    }
    for_ps
}
