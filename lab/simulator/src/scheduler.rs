//! `Scheduler`: decides which CPU of a simulation runs next, and which thread on it.
//!
//! `Scheduler` owns CPUs, threads and their clocks. The world calls `pick` for the run loop between
//! two coroutines; code that blocks or wakes a thread calls the other methods. A CPU runs one
//! thread until it blocks, ends, or has used up its time slice while others wait; the threads of a
//! CPU run round robin. A thread that holds or waits for a lock is not preempted; a preemption that
//! is due meanwhile happens when the thread releases its last lock, as in a kernel that becomes
//! preemptible again. A thread that spins in `spin_until` gives up its CPU as soon as another
//! thread needs it. Options of the model: fair scheduling by run time and wake-up preemption
//! (fairness.rs), CPUs that share a core, and threads that move when they wake (hyper_threads.rs).
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
use clocks::{ClockEvent, Clocks};
use cpu::CpuState;
use hyper_threads::Siblings;
use pool::{EndFlag, NO_THREAD, SpinState, ThreadBody, ThreadPhase, ThreadState, ThreadTable};
use tournament::{POSITIONS_MAX, TIME_MAX_PS, key};

pub(super) enum RunAction {
    Resume(u32),
    Start(u32, ThreadBody),
    Done,
}

pub(super) enum SchedulerStop {
    /// Every thread waits, and no deadline is pending.
    Deadlock,
    TimeLimit,
}

#[derive(Debug)]
struct CpuTurn {
    slice_end_ps: u64,
    position: usize,
    yielder: *const Yielder<(), ()>,
}

pub(super) struct Scheduler {
    // Fields used at every operation of the simulated machine.
    pub(super) now_ps: u64,
    pub(super) cpu: usize,
    pub(super) thread: u32,
    pub(super) recording: bool,
    turn: CpuTurn,
    clocks: Clocks,
    // Fields used only when threads wait or switch.
    pub(super) cpus: Vec<CpuState>,
    pub(super) pool: ThreadTable,
    pub(super) prices: ThreadPrices,
    pub(super) siblings: Siblings,
    pub(super) limit_ps: u64,
}

impl Scheduler {
    /// Creates idle CPUs. `places` has a rank for each CPU: of CPUs with equal clocks, the one with
    /// the lowest rank runs first.
    pub(super) fn new(model: &Model, places: &[usize], limit_ps: u64) -> Self {
        let cpu = |place: &usize| CpuState::new(Clocks::position(*place));
        Scheduler {
            now_ps: BEGIN_PS,
            cpu: 0,
            thread: NO_THREAD,
            recording: false,
            turn: CpuTurn { slice_end_ps: 0, position: 0, yielder: ptr::null() },
            clocks: Clocks::new(places),
            cpus: places.iter().map(cpu).collect(),
            pool: ThreadTable { threads: Vec::new(), live: 0, next_cpu: 0 },
            prices: ThreadPrices::new(&model.threads),
            siblings: Siblings::new(model),
            limit_ps,
        }
    }

    pub(super) fn pick(&mut self) -> Result<RunAction, SchedulerStop> {
        loop {
            let Some((time_ps, due)) = self.clocks.first() else {
                return self.nobody_left();
            };
            if time_ps > self.limit_ps {
                return Err(SchedulerStop::TimeLimit);
            }
            let cpu = match due {
                ClockEvent::Cpu(cpu) => cpu,
                ClockEvent::Deadline(thread) => {
                    self.expire(thread, time_ps);
                    continue;
                }
            };
            let state = &mut self.cpus[cpu];
            // An interrupt does not delay a cache line transfer that the CPU waits for. So the
            // interrupt's time is added to the CPU's clock only after the transfer.
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
                Some(body) => RunAction::Start(thread, body),
                None => RunAction::Resume(thread),
            });
        }
    }

    fn nobody_left(&self) -> Result<RunAction, SchedulerStop> {
        if self.pool.live == 0 {
            return Ok(RunAction::Done);
        }
        // Look at all CPUs: `self.clocks` cannot hold times after `TIME_MAX_PS`, so CPUs with later
        // clocks are missing there.
        match self.cpus.iter().any(|cpu| cpu.clock_ps > self.limit_ps) {
            true => Err(SchedulerStop::TimeLimit),
            false => Err(SchedulerStop::Deadlock),
        }
    }

    fn enter(&mut self, cpu: usize, thread: u32) {
        let state = &self.cpus[cpu];
        (self.now_ps, self.cpu, self.thread) = (state.clock_ps, cpu, thread);
        (self.turn.position, self.turn.slice_end_ps) = (state.position, state.slice_end_ps);
        let state = self.pool.thread(thread);
        (self.recording, self.turn.yielder) = (state.spin.recording, state.yielder);
    }

    /// Returns true if the running CPU may go on: its clock is the earliest, and its time slice is
    /// not over.
    #[inline]
    pub(super) fn may_go(&self) -> bool {
        key(self.now_ps, self.turn.position) < self.clocks.least() && !self.slice_is_over()
    }

    #[inline]
    pub(super) fn slice_is_over(&self) -> bool {
        self.now_ps >= self.turn.slice_end_ps
    }

    /// Ends the running CPU's time slice at `time_ps` or earlier.
    pub(super) fn end_turn(&mut self, time_ps: u64) {
        self.turn.slice_end_ps = self.turn.slice_end_ps.min(time_ps);
    }

    pub(super) fn yielder(&self) -> *const Yielder<(), ()> {
        self.turn.yielder
    }

    pub(super) fn set_yielder(&mut self, yielder: *const Yielder<(), ()>) {
        self.turn.yielder = yielder;
        self.me().yielder = yielder;
    }

    pub(super) fn me(&mut self) -> &mut ThreadState {
        self.pool.thread_mut(self.thread)
    }

    pub(super) fn charge_system_call(&mut self) {
        self.now_ps += self.stretched(self.prices.system_call);
    }

    /// Resumes a thread at its deadline `time_ps`, the earliest of all deadlines.
    fn expire(&mut self, thread: u32, time_ps: u64) {
        self.set_timer(thread, u64::MAX);
        match self.pool.thread(thread).state {
            ThreadPhase::Parked => self.make_ready(thread, time_ps),
            ThreadPhase::Spinning => self.end_spin(thread, time_ps),
            _ => {}
        }
    }

    /// Sets the time at which a thread continues even if it is not woken; `u64::MAX` for never.
    pub(super) fn set_timer(&mut self, thread: u32, time_ps: u64) {
        self.clocks.set_timer(thread, time_ps);
    }

    /// Suspends the running thread because another CPU has an earlier clock, or because its time
    /// slice is over.
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
            // A thread that is alone on its CPU gets time slices, too. The reason is that `pick`
            // checks the simulation's limit on virtual time, and that such a thread may suspend
            // only at the end of a slice.
            state.slice_end_ps = (state.clock_ps + slice_ps).min(limit_ps.max(state.clock_ps) + 1);
        }
        self.clocks.set_cpu(state.position, state.clock_ps);
    }

    /// Records that the running thread released a lock. A thread that holds locks may run beyond
    /// the end of its time slice. In this case, the release of its last lock ends the slice.
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

    /// Puts the running thread at the end of its CPU's queue and switches to the next thread.
    pub(super) fn give_way(&mut self) {
        let (cpu, thread) = (self.cpu, self.thread);
        self.me().state = ThreadPhase::Ready;
        self.cpus[cpu].clock_ps = self.now_ps;
        self.cpus[cpu].queue.push_back(thread);
        self.switch(cpu);
    }

    /// Takes the running thread off its CPU until a call of [`Scheduler::make_ready`].
    pub(super) fn block(&mut self, state: ThreadPhase) {
        self.me().state = state;
        self.cpus[self.cpu].clock_ps = self.now_ps;
        self.switch(self.cpu);
    }

    /// Makes the running thread spin on its CPU until [`Scheduler::end_spin`].
    pub(super) fn spin(&mut self, state: ThreadPhase) {
        let now_ps = self.now_ps;
        let me = self.me();
        (me.state, me.since_ps) = (state, now_ps);
        self.cpus[self.cpu].clock_ps = now_ps;
    }

    /// Delays the running thread until `time_ps`. The thread keeps its CPU.
    pub(super) fn stall_until(&mut self, time_ps: u64) {
        self.now_ps = self.now_ps.max(time_ps);
        let state = &mut self.cpus[self.cpu];
        state.clock_ps = self.now_ps;
        self.clocks.set_cpu(state.position, state.clock_ps);
    }

    /// Ends a thread's wait for a cache line at `time_ps` or later. The wait counts as busy time.
    pub(super) fn end_stall(&mut self, thread: u32, time_ps: u64) {
        let state = self.pool.thread_mut(thread);
        state.state = ThreadPhase::Running;
        let cpu = &mut self.cpus[state.cpu];
        cpu.clock_ps = cpu.clock_ps.max(time_ps);
        let (position, clock_ps) = (cpu.position, cpu.clock_ps);
        self.clocks.set_cpu(position, clock_ps);
    }

    pub(super) fn end_spin(&mut self, thread: u32, time_ps: u64) {
        let state = self.pool.thread_mut(thread);
        state.state = ThreadPhase::Running;
        let (cpu, since_ps) = (state.cpu, state.since_ps);
        let cpu = &mut self.cpus[cpu];
        cpu.clock_ps = cpu.clock_ps.max(time_ps);
        cpu.spin_ps += cpu.clock_ps - since_ps;
        let (position, clock_ps) = (cpu.position, cpu.clock_ps);
        self.clocks.set_cpu(position, clock_ps);
    }

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
        self.pool.thread_mut(next).state = ThreadPhase::Running;
    }

    pub(super) fn make_ready(&mut self, thread: u32, time_ps: u64) {
        self.place(thread);
        self.limit_credit(thread);
        let target = self.pool.thread_mut(thread);
        target.state = ThreadPhase::Ready;
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
            if spinner.state == ThreadPhase::Spinning && spinner.locks == 0 {
                self.set_timer(current, u64::MAX);
                self.end_spin(current, time_ps);
                self.pool.thread_mut(current).state = ThreadPhase::Ready;
                self.cpus[cpu].queue.push_back(current);
                self.switch(cpu);
            } else {
                self.preempt(thread, time_ps);
            }
        }
    }

    /// Adds a thread that is ready to run, on the given CPU, or else on the next CPU in round-robin
    /// order.
    ///
    /// # Panics
    /// Panics if there are already 4,096 threads, or if the CPU does not exist.
    pub(super) fn add_thread(
        &mut self,
        name: &str,
        cpu: Option<usize>,
        body: ThreadBody,
    ) -> (u32, Arc<EndFlag>) {
        let cpu = cpu.unwrap_or(self.pool.next_cpu);
        assert!(cpu < self.cpus.len(), "thread {name}: there is no CPU {cpu}");
        self.pool.next_cpu = (cpu + 1) % self.cpus.len();
        let ended = Arc::new(EndFlag::default());
        let state = ThreadState {
            name: name.into(),
            cpu,
            state: ThreadPhase::Ready,
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
        assert!(thread < POSITIONS_MAX, "thread {name}: there are already {POSITIONS_MAX} threads");
        if free.is_none() {
            self.pool.threads.push(None);
            self.clocks.grow(self.pool.threads.len());
        }
        self.pool.threads[thread] = Some(state);
        self.pool.live += 1;
        self.make_ready(thread as u32, self.now_ps);
        (thread as u32, ended)
    }

    /// Adds the first thread, which occupies its CPU from the beginning.
    ///
    /// # Panics
    /// Panics if the CPU does not exist.
    pub(super) fn add_first_thread(&mut self, cpu: usize, body: ThreadBody) {
        self.add_thread("main", Some(cpu), body);
        let state = &mut self.cpus[cpu];
        state.clock_ps = BEGIN_PS;
        state.slice_end_ps = BEGIN_PS + self.prices.time_slice;
        (state.idle_ps, state.switches) = (0, 0);
        self.clocks.set_cpu(state.position, BEGIN_PS);
    }

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

    /// Returns true if the running thread may be preempted and other threads wait for its CPU.
    pub(super) fn wanted(&mut self) -> bool {
        !self.cpus[self.cpu].queue.is_empty() && self.me().locks == 0
    }

    pub(super) fn end_ps(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.clock_ps).max().unwrap_or(0).min(TIME_MAX_PS)
    }

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

/// Stops all CPUs for `for_ps`. The caller must add the returned time to the running CPU's clock.
pub(super) fn stop_all(scheduler: &mut Scheduler, for_ps: u64) -> u64 {
    let until_ps = scheduler.now_ps + for_ps;
    for cpu in (0..scheduler.cpus.len()).filter(|cpu| *cpu != scheduler.cpu) {
        let state = &mut scheduler.cpus[cpu];
        let lost_ps = until_ps.saturating_sub(state.clock_ps);
        state.clock_ps += lost_ps;
        if state.current == NO_THREAD {
            state.idle_ps += lost_ps;
        } else if scheduler.pool.thread(state.current).state == ThreadPhase::Running {
            scheduler.clocks.set_cpu(state.position, state.clock_ps);
        }
    }
    for_ps
}
