//! How much payload memory requests of groups with limits may have, and who waits for it.
//!
//! A request that waits for a limit of its group keeps its buffer for as long as the limit says:
//! eight clients of a group of 4 MB/s, each with a write of 32 MiB, would have all memory for a
//! minute, and large requests of everybody else would stop. So such requests count, from their
//! header until the drives are done with them, in their group's part: an eighth of the memory, and
//! one request whatever its size. All parts together are half of the memory, and one request. Reads
//! and writes of a group have a part each, as a limit may hold for one of them only. What finds no
//! room waits unread at its socket.
//! Owned by the `Budget`, one for all threads; memory_wait.rs takes, the pools give back, and the
//! worker's memory_retry.rs asks whose turn it is.
//!
//! Invariants: connections of a part are served in the order in which they came, so small requests
//! do not overtake a large one for ever; one that waits only for all parts together comes before
//! those of other parts that came later. Whoever waits does so while somebody else's bytes are
//! counted: when these come back, the thread that gave them looks who is next.
//!
//! Lock order: taken alone, and for a few instructions.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_block::GroupId;

use super::budget::Waiter;
use super::{Pool, PoolBuffer};
use crate::mailbox::lock;

/// A part is one in so many of the memory.
const PART: usize = 8;
/// All parts together are one in so many of it.
const ALL_PARTS: usize = 2;

/// Requests of a group in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) group: GroupId,
    pub(crate) is_read: bool,
}

/// The connection that may go on, of those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Nobody,
    /// This connection of the thread that asks, which is off its line now.
    Here(Waiter),
    /// One of another thread.
    Elsewhere,
}

/// Where a connection stands in its part's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its turn has come.
    First,
    /// Whoever waits comes before it.
    Last,
}

/// What requests of groups with limits hold, and the connections that wait for some of it.
#[derive(Debug)]
pub(crate) struct GroupParts {
    /// How many connections wait, for a look without the lock.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    part_bytes: usize,
    all_bytes: usize,
    /// Bytes of each part that holds some, and of all.
    held: Vec<(Part, usize)>,
    held_bytes: usize,
    /// Of each part the connections that wait, and for how many bytes.
    lines: VecDeque<(Part, VecDeque<(Waiter, usize)>)>,
}

impl GroupParts {
    /// Of a server with so much memory for payload.
    pub(crate) fn new(max_bytes: usize) -> GroupParts {
        let state = State {
            part_bytes: max_bytes / PART,
            all_bytes: max_bytes / ALL_PARTS,
            held: Vec::new(),
            held_bytes: 0,
            lines: VecDeque::new(),
        };
        GroupParts { waiting: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    /// Whether somebody waits.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: a hint; threads are rung when there is something for them.
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Counts bytes in a part, unless there is no room for them or others come first.
    pub(crate) fn take(&self, part: Part, bytes: usize, place: Place) -> bool {
        let mut state = lock(&self.state);
        let is_behind = place == Place::Last
            && state.lines.iter().any(|(other, line)| {
                let first = line.front().map_or(0, |(_, bytes)| *bytes);
                *other == part || state.fits_part(*other, first)
            });
        let may = !is_behind && state.fits_part(part, bytes) && state.fits_all(bytes);
        if may {
            state.add(part, bytes);
        }
        may
    }

    /// Counts more bytes in a part, whatever it holds.
    pub(crate) fn add(&self, part: Part, bytes: usize) {
        if bytes > 0 {
            lock(&self.state).add(part, bytes);
        }
    }

    /// Takes bytes out of a part; whether somebody waits who may have room now.
    pub(crate) fn give(&self, part: Part, bytes: usize) -> bool {
        let mut state = lock(&self.state);
        state.held_bytes -= bytes;
        let at = state.held.iter().position(|(known, _)| *known == part);
        let at = at.expect("the part of a buffer that counts in it holds something");
        state.held[at].1 -= bytes;
        if state.held[at].1 == 0 {
            state.held.swap_remove(at);
        }
        !state.lines.is_empty()
    }

    /// Puts a connection that is in no line, and the bytes that it waits for, into one.
    pub(crate) fn join(&self, part: Part, wish: (Waiter, usize), place: Place) {
        let mut state = lock(&self.state);
        match state.lines.iter_mut().find(|(known, _)| *known == part) {
            Some((_, line)) if place == Place::First => line.push_front(wish),
            Some((_, line)) => line.push_back(wish),
            None => state.lines.push_back((part, VecDeque::from([wish]))),
        }
        self.note(&state);
    }

    /// Takes a connection out of its line; whether others wait, who may have been behind it.
    pub(crate) fn leave(&self, thread: usize, serial: u64) -> bool {
        let mut state = lock(&self.state);
        let is_other =
            |(waiter, _): &(Waiter, usize)| (waiter.thread, waiter.serial) != (thread, serial);
        state.lines.iter_mut().for_each(|(_, line)| line.retain(is_other));
        state.lines.retain(|(_, line)| !line.is_empty());
        self.note(&state);
        !state.lines.is_empty()
    }

    /// The connection whose turn it is and for which there is room; if it is one of this thread it
    /// is taken out of its line, and the line is behind the others from then on.
    pub(crate) fn next(&self, thread: usize) -> Next {
        let mut state = lock(&self.state);
        let firsts = state.lines.iter().enumerate().filter_map(|(at, (part, line))| {
            line.front().filter(|(_, bytes)| state.fits_part(*part, *bytes)).map(|one| (at, *one))
        });
        // Those behind the first that waits for all parts only wait for it.
        let Some((at, (waiter, bytes))) = firsts.take(1).next() else { return Next::Nobody };
        if !state.fits_all(bytes) {
            return Next::Nobody;
        }
        if waiter.thread != thread {
            return Next::Elsewhere;
        }
        if let Some((part, mut line)) = state.lines.remove(at) {
            line.pop_front();
            if !line.is_empty() {
                state.lines.push_back((part, line));
            }
        }
        self.note(&state);
        Next::Here(waiter)
    }

    fn note(&self, state: &State) {
        let waiting = state.lines.iter().map(|(_, line)| line.len()).sum();
        self.waiting.store(waiting, Ordering::Relaxed); // Relaxed: as in `is_wanted`.
    }
}

impl State {
    fn add(&mut self, part: Part, bytes: usize) {
        self.held_bytes += bytes;
        match self.held.iter_mut().find(|(known, _)| *known == part) {
            Some((_, held_bytes)) => *held_bytes += bytes,
            None => self.held.push((part, bytes)),
        }
    }

    /// Whether a part has room for so much more.
    fn fits_part(&self, part: Part, bytes: usize) -> bool {
        let held = self.held.iter().find(|(known, _)| *known == part);
        held.is_none_or(|(_, held_bytes)| held_bytes + bytes <= self.part_bytes)
    }

    /// Whether all parts together have.
    fn fits_all(&self, bytes: usize) -> bool {
        self.held_bytes == 0 || self.held_bytes + bytes <= self.all_bytes
    }
}

impl Pool {
    /// A buffer for a request of a group with limits: it counts in the group's part, where its
    /// bytes were taken already.
    pub(crate) fn enter_part(&mut self, buffer: &mut PoolBuffer, part: Part, taken_bytes: usize) {
        buffer.part = Some(part);
        self.budget.parts.add(part, buffer.len() - taken_bytes);
    }

    /// The buffer's request waits for limits no longer: the buffer is out of its group's part.
    #[inline]
    pub(crate) fn leave_part(&mut self, buffer: &mut PoolBuffer) {
        if let Some(part) = buffer.part.take() {
            self.give_part(part, buffer.len());
        }
    }

    /// Gives bytes of a part back.
    pub(crate) fn give_part(&mut self, part: Part, bytes: usize) {
        self.part_freed |= self.budget.parts.give(part, bytes);
    }

    /// Those that wait for parts of groups have reason to try again.
    pub(crate) fn note_part_freed(&mut self) {
        self.part_freed = true;
    }

    /// Whether there is something new since the last call for those that wait for a part.
    pub(crate) fn take_part_freed(&mut self) -> bool {
        std::mem::take(&mut self.part_freed)
    }

    /// A connection waits for its group's part, and for so many bytes of that.
    pub(crate) fn join_part_line(&mut self, part: Part, wish: (Waiter, usize), place: Place) {
        self.budget.parts.join(part, wish, place);
        // What it waits for may have come back in between.
        self.part_freed = true;
    }

    /// A connection waits for its group's part no longer; those behind it may go on.
    pub(crate) fn leave_part_line(&mut self, serial: u64) {
        self.part_freed |= self.budget.parts.leave(self.thread, serial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const WRITES: Part = Part { group: GroupId(1), is_read: false };
    const READS: Part = Part { group: GroupId(1), is_read: true };
    const OTHER: Part = Part { group: GroupId(2), is_read: false };

    fn waiter(thread: usize, serial: u64) -> Waiter {
        Waiter { thread, index: 0, serial }
    }

    #[test]
    fn a_part_is_an_eighth_or_one_request_and_all_parts_are_half() {
        let parts = GroupParts::new(256 * MIB);
        assert!(
            parts.take(WRITES, 30 * MIB, Place::Last) && parts.take(WRITES, 2 * MIB, Place::Last)
        );
        assert!(!parts.take(WRITES, 1, Place::Last), "an eighth");
        assert!(parts.take(READS, 33 * MIB, Place::Last), "one request whatever its size");
        assert!(!parts.take(READS, 1, Place::Last));
        let of_group = |group| Part { group: GroupId(group), is_read: false };
        assert!(
            parts.take(of_group(3), 32 * MIB, Place::Last)
                && parts.take(of_group(4), 31 * MIB, Place::Last)
        );
        assert!(!parts.take(OTHER, 1, Place::Last), "half of all");
        assert!(!parts.give(READS, 33 * MIB), "nobody waits");
        assert!(parts.take(OTHER, 32 * MIB, Place::Last));
        let small = GroupParts::new(8 * MIB);
        assert!(
            small.take(WRITES, 8 * MIB, Place::Last) && !small.take(OTHER, 1, Place::Last),
            "one there always is"
        );
    }

    #[test]
    fn connections_of_a_part_have_their_turns_and_others_do_not_wait_behind_them() {
        let parts = GroupParts::new(256 * MIB);
        assert!(
            parts.take(WRITES, 20 * MIB, Place::Last) && !parts.take(WRITES, 32 * MIB, Place::Last)
        );
        parts.join(WRITES, (waiter(0, 1), 32 * MIB), Place::Last);
        assert!(
            parts.is_wanted() && !parts.take(WRITES, 4096, Place::Last),
            "a large one waits before it"
        );
        parts.join(WRITES, (waiter(1, 2), 4096), Place::Last);
        assert!(parts.take(OTHER, 32 * MIB, Place::Last), "another group does not");
        assert_eq!(parts.next(0), Next::Nobody);
        assert!(parts.give(WRITES, 20 * MIB), "somebody waits");
        assert_eq!((parts.next(1), parts.next(0)), (Next::Elsewhere, Next::Here(waiter(0, 1))));
        assert!(parts.is_wanted() && !parts.take(WRITES, 32 * MIB, Place::Last));
        assert!(parts.take(WRITES, 32 * MIB, Place::First), "its turn has come");
        assert!(parts.next(1) == Next::Nobody && parts.give(WRITES, 32 * MIB));
        assert_eq!(parts.next(1), Next::Here(waiter(1, 2)));
        assert!(!parts.is_wanted() && parts.next(1) == Next::Nobody);
    }

    #[test]
    fn whoever_waits_for_all_parts_comes_before_those_of_other_parts() {
        let parts = GroupParts::new(64 * MIB);
        let of_group = |group| Part { group: GroupId(group), is_read: false };
        assert!((5..9).all(|group| parts.take(of_group(group), 8 * MIB, Place::Last)));
        assert!(!parts.take(WRITES, 8 * MIB, Place::Last));
        parts.join(WRITES, (waiter(0, 1), 8 * MIB), Place::Last);
        assert!(parts.give(of_group(5), 4 * MIB));
        assert_eq!(parts.next(0), Next::Nobody);
        assert!(
            !parts.take(OTHER, 4 * MIB, Place::Last),
            "there is room for it, and an earlier one waits"
        );
        assert!(parts.give(of_group(5), 4 * MIB));
        assert!(!parts.leave(0, 1) && !parts.is_wanted());
        assert!(parts.take(OTHER, 4 * MIB, Place::Last));
    }
}
