//! Turns at a cache line that several CPUs want at once: the near come first, within a bound.
//!
//! `access` is the gate of every access to a line. A CPU that has the line as it needs it goes on;
//! one that wants a line which is on its way to somebody joins the line's `LineQueue` and stalls.
//! When the transfer ends, the next one is chosen: the longest waiter of the socket that has the
//! line, as caches serve requests of their own socket before those that came over a link; but of
//! another socket after as many turns as the model allows, and with no such turns always the
//! longest waiter. Source: what makes a line go that way, and what follows for locks, is in
//! Radovic, Hagersten, SC 2002, and Dice, Marathe, Shavit, PPoPP 2012.

use core::cell::RefCell;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;

use crate::memory::line::LineState;
use crate::scheduler::pool::State;
use crate::world::{World, at_turn, current, suspend};

/// What an access does to its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It reads.
    Read,
    /// It writes, or may.
    Write,
}

/// A thread that waits for its turn.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    thread: u32,
    socket: usize,
}

/// The threads that wait for a line.
#[derive(Debug, Default)]
pub(crate) struct LineQueue {
    waiters: VecDeque<Waiter>,
    /// A waiter was chosen, and has not had its turn yet.
    chosen: bool,
    /// Turns within one socket since the line last came to another, while others waited.
    turns: u32,
}

impl LineQueue {
    /// Whether somebody comes before whoever asks now.
    fn is_ahead(&self) -> bool {
        self.chosen || !self.waiters.is_empty()
    }

    /// Takes out the waiter whose turn it is, the line being in this socket.
    fn choose(&mut self, socket: Option<usize>, turns_max: u32) -> Option<Waiter> {
        let is_near = |waiter: &Waiter| Some(waiter.socket) == socket;
        let is_far = |waiter: &Waiter| !is_near(waiter);
        let near = self.waiters.iter().position(is_near);
        let far = self.waiters.iter().position(is_far);
        let place = match (near, far) {
            (Some(near), Some(_)) if self.turns < turns_max => {
                self.turns += 1;
                near
            }
            // In order of request where near ones have no turns, else the far one's turn has come.
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

/// What a thread that waited is to do.
enum Turn {
    /// Goes on with its access.
    Mine,
    /// Waits on.
    Waits,
}

/// Does what concerns a line and others can see, when it is the running CPU's turn, and the line's;
/// `None` outside a simulation. `f` neither suspends nor drops values of the program.
#[inline]
pub(crate) fn access<R>(line: &LineState, use_: Use, f: impl FnOnce(&mut World) -> R) -> Option<R> {
    access_since(line, use_, |world, _| f(world))
}

/// `access` for whoever counts waits: `f` also gets the time when the CPU asked for the line, which
/// lies before its stall.
#[inline]
pub(crate) fn access_since<R>(
    line: &LineState,
    use_: Use,
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

/// Stalls the running CPU until the line's turn has come to it.
#[cold]
#[inline(never)]
fn wait_for_line(cell: &RefCell<World>, line: &LineState) {
    cell.borrow_mut().join_queue(line);
    loop {
        suspend();
        match cell.borrow_mut().look_for_turn(line) {
            Turn::Mine => return,
            Turn::Waits => {}
        }
    }
}

impl World {
    /// Whether the running CPU's access has to wait for others.
    #[inline]
    fn must_wait(&self, line: &LineState, use_: Use) -> bool {
        let queue = line.queue.load(Relaxed);
        if line.busy_until_ps() <= self.scheduler.now_ps && queue == 0 {
            return false;
        }
        self.must_queue(line, use_, queue)
    }

    fn must_queue(&self, line: &LineState, use_: Use, queue: u32) -> bool {
        let ahead = queue != 0 && self.line_queues[queue as usize - 1].is_ahead();
        let cpu = self.scheduler.cpu;
        // What a CPU has alone it keeps until somebody else's turn comes; what it shares, until a
        // write's has.
        let has = use_ == Use::Read && line.is_shared_by(cpu) || !ahead && line.is_only_in(cpu);
        // Destructors of a thread that panics run to their end without the others.
        let waits = ahead || line.busy_until_ps() > self.scheduler.now_ps;
        waits && !has && self.caches.queueing && !std::thread::panicking()
    }

    /// The running CPU waits for a line; the first one that does looks when its transfer ends.
    fn join_queue(&mut self, line: &LineState) {
        if line.queue.load(Relaxed) == 0 {
            self.line_queues.push(LineQueue::default());
            line.queue.store(self.line_queues.len() as u32, Relaxed);
        }
        self.scheduler.me().in_line_queue = true;
        let socket = self.caches.fabric.socket_of(self.scheduler.cpu);
        let queue = &mut self.line_queues[line.queue.load(Relaxed) as usize - 1];
        let is_first = !queue.is_ahead();
        queue.waiters.push_back(Waiter { thread: self.scheduler.thread, socket });
        match is_first {
            true => self.scheduler.stall_until(line.busy_until_ps()),
            false => self.scheduler.spin(State::Stalled),
        }
    }

    /// A thread that waits was woken: it was chosen, or it is the one that chooses.
    fn look_for_turn(&mut self, line: &LineState) -> Turn {
        let thread = self.scheduler.thread;
        let socket = line.last_holder().map(|cpu| self.caches.fabric.socket_of(cpu));
        let queue = &mut self.line_queues[line.queue.load(Relaxed) as usize - 1];
        if !queue.waiters.iter().any(|waiter| waiter.thread == thread) {
            self.scheduler.me().in_line_queue = false;
            return Turn::Mine;
        }
        if line.busy_until_ps() > self.scheduler.now_ps {
            self.scheduler.stall_until(line.busy_until_ps());
            return Turn::Waits;
        }
        let next = queue.choose(socket, self.near_turns).expect("the thread itself waits");
        if next.thread == thread {
            self.scheduler.me().in_line_queue = false;
            return Turn::Mine;
        }
        self.scheduler.end_stall(next.thread, self.scheduler.now_ps);
        self.scheduler.spin(State::Stalled);
        Turn::Waits
    }

    /// The one whose turn it was has had it: another waiter looks when the line is free again.
    fn go_on(&mut self, line: &LineState) {
        let queue = &mut self.line_queues[line.queue.load(Relaxed) as usize - 1];
        queue.chosen = false;
        if let Some(first) = queue.waiters.front() {
            let (thread, time_ps) = (first.thread, line.busy_until_ps().max(self.scheduler.now_ps));
            self.scheduler.end_stall(thread, time_ps);
        }
    }
}
