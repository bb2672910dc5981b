//! Order of accesses to a contended cache line: CPUs of the same socket first, up to a limit.
//!
//! `access` is called for every access to a line. A CPU that already has the line in the needed
//! state continues; a CPU that requests a line in transfer joins the line's `LineQueue` and stalls.
//! When the transfer ends, one waiter gets one access. The longest waiter of the socket that has
//! the line comes first, because caches serve requests of their own socket before requests from a
//! link. After the model's maximum number of such accesses, the longest waiter of another socket
//! follows. If the maximum is 0, waiters are served in order of request. Source: Radovic,
//! Hagersten, SC 2002; Dice, Marathe, Shavit, PPoPP 2012 (effects on locks).

use core::cell::RefCell;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;

use crate::memory::line::LineState;
use crate::scheduler::pool::ThreadPhase;
use crate::world::{World, at_turn, current, suspend};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    /// A write, or an access that may write.
    Write,
}

#[derive(Debug, Clone, Copy)]
struct LineWaiter {
    thread: u32,
    socket: usize,
}

#[derive(Debug, Default)]
pub(crate) struct LineQueue {
    waiters: VecDeque<LineWaiter>,
    chosen: bool,
    /// Number of consecutive accesses from one socket while CPUs of other sockets waited.
    turns: u32,
}

impl LineQueue {
    fn is_ahead(&self) -> bool {
        self.chosen || !self.waiters.is_empty()
    }

    fn choose(&mut self, socket: Option<usize>, turns_max: u32) -> Option<LineWaiter> {
        let is_near = |waiter: &LineWaiter| Some(waiter.socket) == socket;
        let is_far = |waiter: &LineWaiter| !is_near(waiter);
        let near = self.waiters.iter().position(is_near);
        let far = self.waiters.iter().position(is_far);
        let place = match (near, far) {
            (Some(near), Some(_)) if self.turns < turns_max => {
                self.turns += 1;
                near
            }
            // The socket that has the cache line has used up its `turns_max` accesses in a row. So
            // the thread of another socket that has waited longest gets the line. If `turns_max` is
            // 0, the thread that has waited longest gets the line, on any socket.
            (Some(near), Some(far)) if turns_max == 0 => near.min(far),
            (Some(near), None) => near,
            (_, Some(far)) => far,
            (None, None) => return None,
        };
        if far == Some(place) {
            self.turns = 0;
        }
        self.chosen = true;
        self.waiters.remove(place)
    }
}

enum LineTurn {
    Mine,
    Waits,
}

/// Runs `f`, which accesses a cache line and has effects that other CPUs may observe. First waits
/// until the running CPU's clock is the earliest and the line is available. Returns `None` outside
/// a simulation. The world is borrowed while `f` runs, so `f` must neither suspend nor drop values
/// of the simulated program.
#[inline]
pub(crate) fn access<R>(
    line: &LineState,
    use_: AccessKind,
    f: impl FnOnce(&mut World) -> R,
) -> Option<R> {
    access_since(line, use_, |world, _| f(world))
}

/// Like [`access`], but also passes to `f` the time at which the CPU requested the line.
#[inline]
pub(crate) fn access_since<R>(
    line: &LineState,
    use_: AccessKind,
    f: impl FnOnce(&mut World, u64) -> R,
) -> Option<R> {
    let cell = current()?;
    let mut world = at_turn(cell);
    line.renew(world.epoch);
    let asked_ps = world.scheduler.now_ps;
    if world.must_wait(line, use_) {
        drop(world);
        wait_for_line(cell, line);
        world = cell.borrow_mut();
        let result = f(&mut world, asked_ps);
        world.go_on(line);
        return Some(result);
    }
    Some(f(&mut world, asked_ps))
}

#[cold]
#[inline(never)]
fn wait_for_line(cell: &RefCell<World>, line: &LineState) {
    cell.borrow_mut().join_queue(line);
    loop {
        suspend();
        match cell.borrow_mut().look_for_turn(line) {
            LineTurn::Mine => return,
            LineTurn::Waits => {}
        }
    }
}

impl World {
    #[inline]
    fn must_wait(&self, line: &LineState, use_: AccessKind) -> bool {
        let queue = line.queue.load(Relaxed);
        if line.busy_until_ps() <= self.scheduler.now_ps && queue == 0 {
            return false;
        }
        self.must_queue(line, use_, queue)
    }

    fn must_queue(&self, line: &LineState, use_: AccessKind, queue: u32) -> bool {
        let ahead = queue != 0 && self.line_queues[queue as usize - 1].is_ahead();
        let cpu = self.scheduler.cpu;
        // A CPU that reads a shared line from its own cache never waits. A CPU that has the line
        // exclusively must wait if other CPUs are in the line's queue.
        let has =
            use_ == AccessKind::Read && line.is_shared_by(cpu) || !ahead && line.is_only_in(cpu);
        // No other thread runs during a panic, so a destructor must not wait for another thread.
        let waits = ahead || line.busy_until_ps() > self.scheduler.now_ps;
        waits && !has && self.caches.queueing && !std::thread::panicking()
    }

    /// Puts the running CPU into a line's queue. When the transfer ends, the first waiter wakes and
    /// chooses the thread that accesses the line next.
    fn join_queue(&mut self, line: &LineState) {
        if line.queue.load(Relaxed) == 0 {
            self.line_queues.push(LineQueue::default());
            line.queue.store(self.line_queues.len() as u32, Relaxed);
        }
        self.scheduler.me().in_line_queue = true;
        let socket = self.caches.fabric.socket_of(self.scheduler.cpu);
        let queue = &mut self.line_queues[line.queue.load(Relaxed) as usize - 1];
        let is_first = !queue.is_ahead();
        queue.waiters.push_back(LineWaiter { thread: self.scheduler.thread, socket });
        match is_first {
            true => self.scheduler.stall_until(line.busy_until_ps()),
            false => self.scheduler.spin(ThreadPhase::Stalled),
        }
    }

    /// Called when a thread in the queue wakes. If the line is free, chooses the waiting thread
    /// that accesses the line next. Returns `Mine` if the running thread has been chosen, by this
    /// call or by an earlier call of another thread.
    fn look_for_turn(&mut self, line: &LineState) -> LineTurn {
        let thread = self.scheduler.thread;
        let socket = line.last_holder().map(|cpu| self.caches.fabric.socket_of(cpu));
        let queue = &mut self.line_queues[line.queue.load(Relaxed) as usize - 1];
        if !queue.waiters.iter().any(|waiter| waiter.thread == thread) {
            self.scheduler.me().in_line_queue = false;
            return LineTurn::Mine;
        }
        if line.busy_until_ps() > self.scheduler.now_ps {
            self.scheduler.stall_until(line.busy_until_ps());
            return LineTurn::Waits;
        }
        let next = queue.choose(socket, self.near_turns).expect("at least this thread waits");
        if next.thread == thread {
            self.scheduler.me().in_line_queue = false;
            return LineTurn::Mine;
        }
        self.scheduler.end_stall(next.thread, self.scheduler.now_ps);
        self.scheduler.spin(ThreadPhase::Stalled);
        LineTurn::Waits
    }

    /// Ends a thread's access to a cache line for which it had waited. The first thread that waits
    /// for the cache line wakes at the time at which the cache line is free.
    fn go_on(&mut self, line: &LineState) {
        let queue = &mut self.line_queues[line.queue.load(Relaxed) as usize - 1];
        queue.chosen = false;
        if let Some(first) = queue.waiters.front() {
            let (thread, time_ps) = (first.thread, line.busy_until_ps().max(self.scheduler.now_ps));
            self.scheduler.end_stall(thread, time_ps);
        }
    }
}
