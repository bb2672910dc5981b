//! The scheduler of a simulation: which CPU comes next, and which thread it runs.
//!
//! Called by run.rs between two coroutines (`pick`) and by whatever blocks or wakes a thread. A CPU
//! runs one thread until that blocks, ends, or has used up its time slice while others wait; they
//! take turns in order of arrival. A CPU is never taken from a thread that holds or waits for a
//! lock. A CPU that spins in `spin_until` is given up as soon as somebody else wants it. Models may
//! ask for turns by run time, and preemption by who wakes (fairness.rs).
//! Kernel counterpart: `SCHED_RR` with pinned tasks.

use std::sync::Arc;
use std::vec::Vec;

use super::pool::{Body, Ended, NO_THREAD, SpinState, State, ThreadState};
use super::report::{BlockedThread, SimError};
use super::time::{BEGIN_PS, PS_PER_NS};
use super::tournament::{POSITIONS_MAX, TIME_MAX_PS};
use super::world::{TIMERS, World};

/// What the run loop has to do next.
pub(super) enum Next {
    /// Resume this thread.
    Resume(u32),
    /// Start this thread.
    Start(u32, Body),
    /// All threads have ended.
    Done,
    /// The simulation cannot go on.
    Failed(SimError),
}

impl World {
    /// The next thread to run, which becomes the running one.
    pub(super) fn pick(&mut self) -> Next {
        if let Some(failure) = self.run.failure.take() {
            return Next::Failed(failure);
        }
        loop {
            let Some((time_ps, position)) = self.clocks.tree.first() else {
                return self.nobody_left();
            };
            if time_ps > self.run.limit_ps {
                return self.too_late();
            }
            if position == TIMERS {
                self.expire(time_ps);
                continue;
            }
            let cpu = self.clocks.by_position[position];
            let state = &mut self.cpus[cpu];
            if state.stolen_ps > 0 {
                state.clock_ps += core::mem::take(&mut state.stolen_ps);
                self.clocks.tree.set(position, state.clock_ps);
                continue;
            }
            let thread = state.current;
            self.clocks.tree.set(position, u64::MAX);
            self.enter(cpu, thread);
            return match self.me().body.take() {
                Some(body) => Next::Start(thread, body),
                None => Next::Resume(thread),
            };
        }
    }

    /// No CPU has anything to do.
    fn nobody_left(&self) -> Next {
        if self.pool.live == 0 {
            return Next::Done;
        }
        // A clock beyond the last time that counts takes no part any more.
        match self.cpus.iter().any(|cpu| cpu.clock_ps > self.run.limit_ps) {
            true => self.too_late(),
            false => Next::Failed(SimError::Deadlock(self.blocked())),
        }
    }

    fn too_late(&self) -> Next {
        Next::Failed(SimError::TimeLimit(self.run.limit_ps / PS_PER_NS, self.blocked()))
    }

    /// The earliest deadline of a thread has come.
    fn expire(&mut self, time_ps: u64) {
        let (_, thread) = self.clocks.timers.first().expect("its time is among the clocks");
        self.set_timer(thread as u32, u64::MAX);
        match self.thread(thread as u32).state {
            State::Parked => self.make_ready(thread as u32, time_ps),
            State::Spinning => self.end_spin(thread as u32, time_ps),
            _ => {}
        }
    }

    /// Sets the time at which a thread is to go on without being woken.
    pub(super) fn set_timer(&mut self, thread: u32, time_ps: u64) {
        self.clocks.timers.set(thread as usize, time_ps);
        let first_ps = self.clocks.timers.first().map_or(u64::MAX, |(time_ps, _)| time_ps);
        self.clocks.tree.set(TIMERS, first_ps);
    }

    /// The running thread has to wait for its turn, or its time slice is over.
    pub(super) fn step_aside(&mut self) {
        let locks = self.me().locks;
        let (cpu, limit_ps) = (self.cpu, self.run.limit_ps);
        let slice_ps = self.next_slice_ps(cpu);
        let state = &mut self.cpus[cpu];
        state.clock_ps = self.now_ps;
        if state.clock_ps >= state.slice_end_ps {
            if !state.queue.is_empty() && locks == 0 {
                return self.give_way();
            }
            // The limit must be noticed by a CPU that is alone, too.
            state.slice_end_ps = (state.clock_ps + slice_ps).min(limit_ps.max(state.clock_ps) + 1);
        }
        self.clocks.tree.set(state.position, state.clock_ps);
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

    /// The running thread keeps its CPU busy until [`World::end_spin`].
    pub(super) fn spin(&mut self, state: State) {
        let now_ps = self.now_ps;
        let me = self.me();
        (me.state, me.since_ps) = (state, now_ps);
        self.cpus[self.cpu].clock_ps = now_ps;
    }

    /// A thread that spins goes on at this time, at the earliest.
    pub(super) fn end_spin(&mut self, thread: u32, time_ps: u64) {
        let state = self.thread_mut(thread);
        state.state = State::Running;
        let (cpu, since_ps) = (state.cpu, state.since_ps);
        let cpu = &mut self.cpus[cpu];
        cpu.clock_ps = cpu.clock_ps.max(time_ps);
        cpu.spin_ps += cpu.clock_ps - since_ps;
        let (position, clock_ps) = (cpu.position, cpu.clock_ps);
        self.clocks.tree.set(position, clock_ps);
    }

    /// A CPU goes on with the first thread of its queue, or idles.
    fn switch(&mut self, cpu: usize) {
        self.count_run_time(cpu);
        let next = self.take_next(cpu);
        let prices = &self.prices.threads;
        let state = &mut self.cpus[cpu];
        let Some(next) = next else {
            state.current = NO_THREAD;
            self.clocks.tree.set(state.position, u64::MAX);
            return;
        };
        if state.last != next {
            state.clock_ps += prices.context_switch;
            state.switches += 1;
        }
        (state.current, state.last) = (next, next);
        state.slice_end_ps = state.clock_ps + prices.time_slice;
        self.clocks.tree.set(state.position, state.clock_ps);
        self.thread_mut(next).state = State::Running;
    }

    /// A thread that has no CPU wants its own again, from this time on.
    pub(super) fn make_ready(&mut self, thread: u32, time_ps: u64) {
        self.limit_credit(thread);
        let target = self.thread_mut(thread);
        target.state = State::Ready;
        let cpu = target.cpu;
        let latency_ps = self.prices.threads.wake_latency;
        let state = &mut self.cpus[cpu];
        state.queue.push_back(thread);
        let current = state.current;
        if current == NO_THREAD {
            let start_ps = state.clock_ps.max(time_ps) + latency_ps;
            state.idle_ps += start_ps - state.clock_ps;
            state.clock_ps = start_ps;
            self.switch(cpu);
        } else {
            let spinner = self.thread(current);
            if spinner.state == State::Spinning && spinner.locks == 0 {
                self.set_timer(current, u64::MAX);
                self.end_spin(current, time_ps);
                self.thread_mut(current).state = State::Ready;
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
            ran_ps: self.cpus[cpu].fair.least_ps,
            spin: SpinState::default(),
        };
        let free = self.pool.threads.iter().position(Option::is_none);
        let thread = free.unwrap_or(self.pool.threads.len());
        assert!(thread < POSITIONS_MAX, "thread {name}: there are {POSITIONS_MAX} already");
        if free.is_none() {
            self.pool.threads.push(None);
            self.clocks.timers.grow(self.pool.threads.len());
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
        state.slice_end_ps = BEGIN_PS + self.prices.threads.time_slice;
        (state.idle_ps, state.switches) = (0, 0);
        self.clocks.tree.set(state.position, BEGIN_PS);
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

    /// All threads, with what they wait for.
    pub(super) fn blocked(&self) -> Vec<BlockedThread> {
        let describe = |thread: &ThreadState| BlockedThread {
            name: thread.name.clone(),
            cpu: thread.cpu as u32,
            waits_for: self.wait_of(thread),
        };
        self.pool.threads.iter().flatten().map(describe).collect()
    }

    fn wait_of(&self, thread: &ThreadState) -> std::string::String {
        let name = |thread: u32| match self.pool.threads.get(thread as usize) {
            Some(Some(thread)) => thread.name.as_str(),
            _ => "nobody",
        };
        match thread.state {
            State::Running => "nothing, it runs".into(),
            State::Ready => "its CPU".into(),
            State::Parked => "a wake-up".into(),
            State::Joining(other) => std::format!("the end of thread {}", name(other)),
            State::Spinning => {
                let lines = thread.spin.watching.len();
                std::format!("a write to one of {lines} cache lines, spinning")
            }
            State::Locking(lock) => {
                let (lock, holder) = self.locks.name_and_holder(lock);
                std::format!("lock {lock}, held by {}", name(holder))
            }
        }
    }

    /// The latest time that a CPU has come to.
    pub(super) fn end_ps(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.clock_ps).max().unwrap_or(0).min(TIME_MAX_PS)
    }
}

impl World {
    /// The running CPU interrupts another one.
    pub(super) fn interrupt(&mut self, cpu: usize) {
        let prices = &self.prices.threads;
        self.events += 1;
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
